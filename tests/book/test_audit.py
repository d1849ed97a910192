"""The command ``fingers audit``: what it writes, what it refuses, and with which exit status."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from thousand_fingers.book.cli import app
from thousand_fingers.book.project import BookError, UsageError

FILES = ("target", "reference", "members", "non_members")


@pytest.fixture
def files(tmp_path, monkeypatch):
    """What two models said about 40 texts, the first 20 of which the target had learned."""
    rng = np.random.default_rng(0)
    hard = -rng.exponential(size=(40, 15)) - 0.1
    learned = hard * np.where(np.arange(40) < 20, 0.3, 1.0)[:, None]
    for name, values in (("target", learned), ("reference", hard)):
        lines = [
            {"id": i, "log_probabilities": row.tolist(), "correct": (row > np.log(0.5)).tolist()}
            for i, row in enumerate(values)
        ]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for name, ids in (("members", range(20)), ("non_members", range(20, 40))):
        (tmp_path / f"{name}.txt").write_text("\n".join(map(str, ids)))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def arguments(**changes: str) -> list[str]:
    given = {
        "target": "target.jsonl",
        "reference": "reference.jsonl",
        "members": "members.txt",
        "non_members": "non_members.txt",
    } | changes
    return [
        "audit",
        *(word for name, value in given.items() for word in (f"--{name}".replace("_", "-"), value)),
    ]


def run(*more: str, **changes: str):
    result = CliRunner().invoke(app, [*arguments(**changes), *more], env={"COLUMNS": "200"})
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def left(folder: Path) -> set[str]:
    return {p.name for p in folder.iterdir()} - {f"{n}{s}" for n in FILES for s in (".jsonl", ".txt")}


def test_a_report_and_a_figure_are_written(files):
    result = run()
    assert result.exit_code == 0
    assert left(files) == {"membership_audit.json", "membership_audit.png"}
    about = json.loads((files / "membership_audit.json").read_text(encoding="utf-8"))
    assert about["format"] == "thousand-fingers/membership-audit"
    assert about["version"] == 1
    assert about["seed"] == 0
    assert about["figure"]["file"] == "membership_audit.png"
    assert "Areas: EZ (error zone)" in about["figure"]["alt"]
    assert about["inputs"]["target"]["kind"] == "jsonl"
    assert about["inputs"]["target"]["files"][0]["name"] == "target.jsonl"
    assert set(about["inputs"]) == set(FILES)
    assert about["verdict"]["outcome"] == "leak"
    assert about["verdict"]["words"] in result.stdout
    assert "zlib loss: not computed, it needs the texts" in result.stdout
    assert "takes at least 1,100 non-members" in result.stdout
    assert str(files) not in json.dumps(about)  # a report can be shown around
    assert (files / "membership_audit.png").read_bytes().startswith(b"\x89PNG")


def test_the_same_files_give_the_same_report(files):
    run()
    first = (files / "membership_audit.json").read_bytes()
    run("--force")
    assert (files / "membership_audit.json").read_bytes() == first
    run("--out", "other", "--seed", "1")
    other = json.loads((files / "other.json").read_bytes())
    assert other["scores"][0]["auc"] == json.loads(first)["scores"][0]["auc"]


@pytest.mark.parametrize("end", [".json", ".png"])
def test_nothing_but_an_earlier_report_is_overwritten_and_that_only_when_told_to(files, end):
    (files / f"report{end}").write_text("precious")
    for more in ([], ["--force"]):
        with pytest.raises(UsageError, match="is no earlier report"):
            run("--out", "report", *more)
    assert (files / f"report{end}").read_text() == "precious"
    assert run("--out", f"other{end}").exit_code == 0
    earlier = (files / f"other{end}").read_bytes()
    with pytest.raises(UsageError, match="--force"):
        run("--out", "other")
    assert (files / f"other{end}").read_bytes() == earlier
    assert run("--out", "other", "--force").exit_code == 0
    assert left(files) == {f"report{end}", "other.json", "other.png"}


@pytest.mark.parametrize("name", ["", ".", "/", "..", "x" * 300, "loop/x"])
def test_a_name_that_is_none_is_a_usage_error(files, name):
    (files / "loop").symlink_to("loop")
    with pytest.raises((UsageError, BookError), match=r"--out|cannot write"):
        run("--out", name)
    assert left(files) == {"loop"}


@pytest.mark.parametrize(
    "name", ["x" * 300 + ".jsonl", "loop", "loop/x.npz", "loop.gguf", "dir.jsonl", "a\nb"]
)
def test_names_that_are_no_files_are_refused(files, name):
    (files / "loop").symlink_to("loop")
    (files / "loop.gguf").symlink_to("loop.gguf")
    (files / "dir.jsonl").mkdir()
    for option in FILES:
        assert run(**{option: name}).exit_code == 4, option


def test_a_refused_file_leaves_nothing_behind(files):
    (files / "bad.pkl").write_bytes(pickle.dumps({}))
    result = run(target="bad.pkl")
    assert result.exit_code == 4
    assert "refused: bad.pkl: is a pickle" in result.stderr
    (files / "[red]bad.jsonl").write_text('{"id": 1, "log_probabilities": [NaN]}')
    result = run(target="[red]bad.jsonl")
    assert result.exit_code == 4
    assert "refused: [red]bad.jsonl: line 1: NaN is no JSON number" in result.stderr
    assert run(reference="missing.npz").exit_code == 4
    assert left(files) == {"bad.pkl", "[red]bad.jsonl"}


@pytest.mark.parametrize("rate", ["0", "1", "-0.1", "nan", "2"])
def test_an_impossible_rate_is_a_usage_error(files, rate):
    with pytest.raises(UsageError, match=r"--fpr must be > 0 and <= 0\.5"):
        run("--fpr", rate)


def test_a_rate_that_no_number_of_texts_supports_is_answered_with_that_number(files):
    result = run("--fpr", "1e-300")
    assert result.exit_code == 0
    assert "a false-positive rate of 1e-300 takes at least 1.2e+301 non-members" in result.stdout


def test_a_folder_that_cannot_be_written_is_named(files):
    (files / "file").write_text("")
    with pytest.raises(BookError, match="cannot write file/report"):
        run("--out", "file/report")


def test_that_nothing_may_be_written_is_said_before_a_model_reads(files, monkeypatch):
    from thousand_fingers import membership_audit
    from thousand_fingers.book import audit as command

    monkeypatch.setattr(membership_audit, "audit_files", None)
    monkeypatch.setattr(command.os, "access", lambda _, mode: mode != os.W_OK)
    with pytest.raises(
        BookError, match=r"cannot write new/report\.json: .* is not a folder that may be written"
    ):
        run("--out", "new/report")
    assert left(files) == set()


def test_what_is_not_understood_ends_with_2(files):
    assert CliRunner().invoke(app, ["audit"]).exit_code == 2
    assert CliRunner().invoke(app, [*arguments(), "--max-tokens", "1"]).exit_code == 2
    assert CliRunner().invoke(app, [*arguments(), "--fpr", "x"]).exit_code == 2


def test_it_runs_outside_a_checkout_and_draws_no_bars_into_a_pipe(files):
    command = [sys.executable, "-m", "thousand_fingers.book.cli", *arguments()]
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "COLUMNS": "200"}, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout
    assert "written: membership_audit.json, membership_audit.png" in done.stdout


def test_a_pipe_is_refused_and_not_waited_for(files):
    os.mkfifo(files / "slow.jsonl")
    result = run(target="slow.jsonl")
    assert result.exit_code == 4
    assert "not an ordinary file" in result.stderr


def test_the_machinery_does_not_import_the_audit_before_it_is_asked_for():
    code = (
        "import sys, thousand_fingers.book.cli;"
        "print([m for m in sys.modules if m.startswith('thousand_fingers.') and 'audit' in m])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['thousand_fingers.book.audit']"


@pytest.mark.parametrize("where", ["membership_audit.audit_files", "book.audit._outputs"])
def test_an_interruption_is_one_line_and_130(files, monkeypatch, where):
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt  # what Python makes of SIGINT, unless nohup or a shell ignores it

    monkeypatch.setattr(f"thousand_fingers.{where}", interrupted)
    result = run()
    assert result.exit_code == 130
    assert "nothing was left half-written" in result.stderr
    assert left(files) == set()
