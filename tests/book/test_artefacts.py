"""Shipped results: made whole, refused when stale, recomputed in part."""

from __future__ import annotations

import json
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import thousand_fingers
from thousand_fingers.book import artefacts
from thousand_fingers.book.project import BookError, Project

MODULE = Path(thousand_fingers.__file__).parent
RECIPE = """\
["04_demo"]
function = "book.demo_artefact:squares"
arguments = {{ n = {n} }}
parts = 6
spot_checks = 3
rtol = 1e-9
"""


@pytest.fixture
def project(tmp_path, monkeypatch) -> Project:
    """A project whose artefact is made by a module that exists for this test only."""
    import sys
    import types

    module = types.ModuleType("thousand_fingers.book.demo_artefact")

    def squares(part: int, n: int) -> dict[str, np.ndarray]:
        return {"squares": np.arange(n, dtype=float) ** 2 + part}

    module.squares = squares  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "thousand_fingers.book.demo_artefact", module)
    project = Project(tmp_path)
    package = project.source_dir / "thousand_fingers" / "book"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").write_text("")
    (package / "__init__.py").write_text("")
    (package / "demo_artefact.py").write_text("def squares(part, n): return n\n")
    project.artefacts_dir.mkdir(parents=True)
    (project.artefacts_dir / "recipes.toml").write_text(RECIPE.format(n=4))
    return project


def problems(project: Project) -> list[str]:
    recipe = artefacts.recipes(project)["04_demo"]
    return artefacts.artefact_problems(project, recipe, artefacts.code_digest(project, recipe))


def make(project: Project) -> Path:
    return artefacts.regenerate(project, artefacts.recipes(project)["04_demo"])


def test_an_artefact_is_made_whole_and_passes_its_check(project, monkeypatch):
    path = make(project)
    assert problems(project) == []
    monkeypatch.setattr(artefacts, "find_project", lambda: project)
    arrays = artefacts.load_artefact("04_demo")
    np.testing.assert_array_equal(arrays["squares"][2], [2, 3, 6, 11])
    with np.load(path, allow_pickle=False) as stored:
        header = json.loads(str(stored["header"]))
    assert header["arguments"] == {"n": 4}
    assert header["dtype"] == {"squares": "float64"}


def test_a_missing_artefact_says_how_to_make_it(project):
    assert problems(project) == ["artefact 04_demo is missing: run `fingers regenerate 4`"]
    with pytest.raises(BookError, match="no artefact '99_none'"):
        artefacts.load_artefact("99_none")


def test_changed_code_makes_it_stale_and_a_comment_does_not(project):
    make(project)
    module = project.source_dir / "thousand_fingers" / "book" / "demo_artefact.py"
    module.write_text("# a comment\ndef squares(part, n): return n\n\n\ndef neighbour(): pass\n")
    assert problems(project) == []
    module.write_text("def squares(part, n): return n + 1\n")
    assert "is stale" in problems(project)[0]


def test_a_changed_recipe_is_seen(project):
    make(project)
    (project.artefacts_dir / "recipes.toml").write_text(RECIPE.format(n=5))
    assert "was made by another recipe" in problems(project)[0]


def test_values_edited_by_hand_do_not_come_out_again(project):
    path = make(project)
    with np.load(path, allow_pickle=False) as stored:
        arrays = {key: stored[key] for key in stored.files}
    arrays["squares"] = arrays["squares"] + 1e-6
    np.savez_compressed(path, **arrays)
    found = problems(project)
    assert len(found) == 3
    assert "does not come out again" in found[0]


def test_a_small_number_may_differ_by_the_absolute_tolerance(project):
    recipe = project.artefacts_dir / "recipes.toml"
    recipe.write_text(RECIPE.format(n=4) + "atol = 1e-3\n")
    path = make(project)
    with np.load(path, allow_pickle=False) as stored:
        arrays = {key: stored[key] for key in stored.files}
    arrays["squares"] = arrays["squares"] + 1e-4
    np.savez_compressed(path, **arrays)
    assert problems(project) == []


@pytest.mark.parametrize("keep", [0, 10, 300])
def test_a_truncated_file_is_named(project, keep, monkeypatch):
    path = make(project)
    path.write_bytes(path.read_bytes()[:keep])
    assert "artefact 04_demo is damaged" in problems(project)[0]
    monkeypatch.setattr(artefacts, "find_project", lambda: project)
    with pytest.raises(BookError, match="damaged"):
        artefacts.load_artefact("04_demo")


def test_a_spot_check_vouches_for_file_code_recipe_and_lock(project):
    path = make(project)

    def now() -> str:
        recipe = artefacts.recipes(project)["04_demo"]
        return artefacts.fingerprint(project, recipe, artefacts.code_digest(project, recipe))

    seen = [now()]
    assert now() == seen[0]
    path.write_bytes(path.read_bytes() + b" ")
    seen.append(now())
    (project.source_dir / "thousand_fingers/book/demo_artefact.py").write_text(
        "def squares(p, n): return 1\n"
    )
    seen.append(now())
    (project.root / "requirements.lock").write_text("numpy==1\n")
    seen.append(now())
    assert len(set(seen)) == 4


def test_the_header_names_the_versions_that_computed_it(project):
    with np.load(make(project), allow_pickle=False) as stored:
        versions = json.loads(str(stored["header"]))["versions"]
    assert {"python", "numpy", "scipy", "torch"} == set(versions)
    assert versions["numpy"] == np.__version__


def test_parts_are_computed_under_the_settings_of_a_chapter(project, monkeypatch):
    import sys

    import torch

    def settings(part: int) -> dict[str, np.ndarray]:
        return {
            "settings": np.array([torch.get_default_dtype() == torch.float64, torch.get_num_threads() == 1])
        }

    sys.modules["thousand_fingers.book.demo_artefact"].settings = settings  # type: ignore[attr-defined]
    before = torch.get_default_dtype(), torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    assert artefacts.compute_part("book.demo_artefact:settings", {}, 0)["settings"].all()
    after = torch.get_default_dtype(), torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    assert before == after


def test_a_recipe_that_lacks_an_entry_is_refused(project):
    (project.artefacts_dir / "recipes.toml").write_text('["04_demo"]\nfunction = "x:y"\n')
    with pytest.raises(BookError, match="a recipe lacks 'parts'"):
        artefacts.recipes(project)


def test_parts_computed_elsewhere_are_the_same():
    name, arguments = "book.project:digest", {}
    with ProcessPoolExecutor(1) as pool:
        # any function of the library will do: what travels is its name, not its code
        far = pool.submit(artefacts.compute_part, name, arguments, b"x").result()
    assert far == artefacts.compute_part(name, arguments, b"x")  # type: ignore[arg-type]


def test_a_probe_computes_the_beginning_and_compares_it(project):
    path = project.artefacts_dir / "recipes.toml"
    path.write_text(RECIPE.format(n=4) + "probe = { n = 2 }\n")
    make(project)
    assert problems(project) == []
    shorter = artefacts.recipes(project)["04_demo"]
    assert shorter.probe == {"n": 2}
    stored = project.artefacts_dir / "04_demo.npz"
    with np.load(stored, allow_pickle=False) as content:
        arrays = {key: content[key] for key in content.files}
    arrays["squares"][:, 3] += 1  # beyond the probe: nobody looks
    np.savez_compressed(stored, **arrays)
    assert problems(project) == []
    arrays["squares"][:, 1] += 1
    np.savez_compressed(stored, **arrays)
    assert len(problems(project)) == 3
    assert "does not come out again" in problems(project)[0]


def test_a_probe_that_gives_more_than_was_stored_fails(project):
    path = project.artefacts_dir / "recipes.toml"
    path.write_text(RECIPE.format(n=4) + "probe = { n = 6 }\n")
    make(project)
    assert len(problems(project)) == 3
