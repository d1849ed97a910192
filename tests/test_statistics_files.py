from __future__ import annotations

import io
import json
import pickle
import zipfile
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from thousand_fingers.language_model_files import FileRefusedError
from thousand_fingers.statistics_files import read_statistics, read_texts

LINES = [
    {
        "id": "a",
        "log_probabilities": [-0.5, -2.0, -1e-3],
        "correct": [True, False, True],
        "expected": [-1.0, -2.5, -0.1],
        "deviation": [0.5, 1.0, 0.0],
        "tokens": [7, 0, 12],
    },
    {
        "id": 42,
        "log_probabilities": [-3],
        "correct": [False],
        "expected": [-2.0],
        "deviation": [1.5],
        "tokens": [9],
        "comment": "an integer may stand for a number, and other fields are ignored",
    },
]
TABLES = {
    "ids": np.array(["a", "42"]),
    "lengths": np.array([3, 1]),
    "log_probabilities": np.array([[-0.5, -2.0, -1e-3], [-3.0, np.nan, 99.0]]),
    "correct": np.array([[True, False, True], [False, True, True]]),
    "expected": np.array([[-1.0, -2.5, -0.1], [-2.0, 0, 0]], dtype=np.float32),
    "deviation": np.array([[0.5, 1.0, 0.0], [1.5, -1, -1]]),
    "tokens": np.array([[7, 0, 12], [9, -5, 0]], dtype=np.int32),
}


def write_lines(path: Path, *lines: object) -> Path:
    path.write_text("\n".join(json.dumps(line) for line in lines), encoding="utf-8")
    return path


def refusal(read, path: Path) -> str:
    with pytest.raises(FileRefusedError) as caught:
        read(path)
    assert str(path) in str(caught.value)
    return str(caught.value)


# --------------------------------------------------------------------------- what is read


@pytest.mark.parametrize("kind", ["jsonl", "npz", "packed npz"])
def test_both_forms_hold_the_same(tmp_path, kind):
    path = tmp_path / f"scores.{kind.split()[-1]}"
    if kind == "jsonl":
        write_lines(path, *LINES)
    else:
        (np.savez if kind == "npz" else np.savez_compressed)(path, **TABLES)
    read = read_statistics(path)
    said = read.statistics
    assert read.ids == ("a", "42")
    assert read.has_correct
    np.testing.assert_array_equal(said.log_probabilities, [[-0.5, -2.0, -1e-3], [-3.0, np.nan, np.nan]])
    np.testing.assert_array_equal(said.correct, [[True, False, True], [False, False, False]])
    np.testing.assert_allclose(said.expected, [[-1.0, -2.5, -0.1], [-2.0, np.nan, np.nan]], rtol=1e-7)
    np.testing.assert_array_equal(said.deviation, [[0.5, 1.0, 0.0], [1.5, np.nan, np.nan]])
    np.testing.assert_array_equal(said.tokens, [[7, 0, 12], [9, -1, -1]])


def test_only_log_probabilities_are_needed(tmp_path):
    read = read_statistics(write_lines(tmp_path / "s.jsonl", {"id": 1, "log_probabilities": [-1.0, -2.0]}))
    assert not read.has_correct
    assert read.statistics.expected is None
    assert read.statistics.tokens is None


def test_a_mark_of_byte_order_blank_lines_and_windows_line_ends_do_no_harm(tmp_path):
    path = tmp_path / "s.jsonl"
    path.write_bytes(
        b'\xef\xbb\xbf{"id": 1, "log_probabilities": [-1]}\r\n\r\n{"id": 2, "log_probabilities": [-1]}\r\n'
    )
    assert read_statistics(path).ids == ("1", "2")


def test_rounding_above_zero_is_mended_and_more_is_not(tmp_path):
    path = write_lines(tmp_path / "s.jsonl", {"id": 1, "log_probabilities": [3e-8, -1.0]})
    assert read_statistics(path).statistics.log_probabilities[0, 0] == 0.0
    write_lines(path, {"id": 1, "log_probabilities": [1e-3, -1.0]})
    assert "line 1: log_probabilities must be <= 0, got 0.001" in refusal(read_statistics, path)


@pytest.mark.filterwarnings("error")
def test_half_precision_is_read_as_it_is(tmp_path):
    half = TABLES["log_probabilities"].astype(np.float16)
    np.savez(tmp_path / "s.npz", **(TABLES | {"log_probabilities": half}))
    read = read_statistics(tmp_path / "s.npz").statistics.log_probabilities
    np.testing.assert_array_equal(read[0], half[0].astype(np.float64))


def test_a_first_choice_may_be_as_likely_as_another_token(tmp_path):
    line = {"id": 1, "log_probabilities": [np.log(0.5) + 1e-6, np.log(0.5)], "correct": [False, True]}
    assert read_statistics(write_lines(tmp_path / "s.jsonl", line)).has_correct


def test_lists_of_texts(tmp_path):
    path = write_lines(tmp_path / "m.jsonl", {"text": "Grüße"}, {"id": 7, "text": "two\nlines"})
    listed = read_texts(path)
    assert listed.ids == (f"{path}, line 1", "7")
    assert listed.texts == ("Grüße", "two\nlines")
    assert read_texts(write_lines(path, {"id": "x"}, {"id": "y"})).texts is None
    plain = tmp_path / "m.txt"
    plain.write_text("x\n\n y \n", encoding="utf-8")
    assert read_texts(plain).ids == ("x", "y")


# --------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize("read", [read_statistics, read_texts])
@pytest.mark.parametrize("name", ["s.pkl", "s.pt", "s.pickle", "s.bin", "s.joblib", "s.pth"])
def test_pickles_are_refused_by_name(tmp_path, read, name):
    (tmp_path / name).write_bytes(pickle.dumps({"a": 1}))
    assert "pickle" in refusal(read, tmp_path / name)


@pytest.mark.parametrize("read", [read_statistics, read_texts])
@pytest.mark.parametrize("name", ["s.csv", "s.json", "s.parquet", "s.h5", "s.npy", "s", "s.jsonl.gz"])
def test_other_kinds_are_refused_by_name(tmp_path, read, name):
    (tmp_path / name).write_bytes(b"1,2\n")
    assert "not of a kind that is read" in refusal(read, tmp_path / name)


@pytest.mark.parametrize("read", [read_statistics, read_texts])
@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "is empty"),
        (b"\n \n", "nothing but blank lines"),
        (b'{"id": 1, "text": "x", "log_probabilities": [-1]}\n{"id', "line 2: is no JSON"),
        (b'[{"id": 1}]', "line 1: must be one JSON object"),
        (b'"x"', "must be one JSON object"),
        (b'{"id": "\xff\xfe", "text": "x"}', "line 1: is not UTF-8"),
        ('{"id": 1}'.encode("utf-16"), "is not UTF-8"),
        (b"\x1f\x8b\x08\x00abc", "is packed"),
        (b"PK\x03\x04abc", "is packed"),
        (pickle.dumps({"id": 1}), "a pickle, whatever its name"),
        (b'{"id": 1.5, "text": "x", "log_probabilities": [-1]}', "id must be a string or an integer"),
        (b'{"id": true, "text": "x", "log_probabilities": [-1]}', "id must be a string or an integer"),
        (b'{"id": " ", "text": "x", "log_probabilities": [-1]}', "id must be a string or an integer"),
        (b'{"id": "\\ud800", "text": "x", "log_probabilities": [-1]}', "id must be a string or an integer"),
        (b'{"id": 1, "id": 2, "text": "x"}', "stands there twice"),
        (b'{"id": 1, "text": "x", "log_probabilities": [-1]}\n' * 2, "line 2: the id '1' stands there twice"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"id": 1, "x": ' + b"9" * 5000 + b"}", "too large"),
    ],
)
def test_damaged_lines_are_refused_with_their_number(tmp_path, read, content, reason):
    (tmp_path / "s.jsonl").write_bytes(content)
    assert reason in refusal(read, tmp_path / "s.jsonl")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"log_probabilities": None}, "must be a list of numbers"),
        ({"log_probabilities": -1.0}, "must be a list of numbers"),
        ({"log_probabilities": []}, "log_probabilities is empty"),
        ({"log_probabilities": [-1.0, None, -1.0]}, "must be a list of numbers"),
        ({"log_probabilities": [-1.0, True, -1.0]}, "must be a list of numbers"),
        ({"log_probabilities": [-1.0, "-1.0", -1.0]}, "must be a list of numbers"),
        ({"log_probabilities": [[-1.0, -1.0, -1.0]]}, "must be a list of numbers"),
        ({"log_probabilities": [0.5, 2.0, 0.1]}, "these look like losses"),
        ({"log_probabilities": [0.5, 0.9, 0.1]}, "look like probabilities: take their natural logarithm"),
        ({"log_probabilities": [-1.0, 2.0, -1.0]}, "must be <= 0, got 2.0"),
        ({"correct": [True, False, False]}, "correct[2] is false, but the token's probability is 0.999"),
        (
            {"log_probabilities": [-0.5, -2.0, -25.0]},
            "correct[2] is true, but the token's probability is 1.39e-11",
        ),
        ({"log_probabilities": [-1.0, -1e300, -1.0]}, "a number beyond 1,000,000"),
        ({"log_probabilities": [-1.0, -(10**9), -1.0]}, "a number beyond 1,000,000"),
        ({"correct": [True, False]}, "correct has 2 entries, log_probabilities has 3"),
        ({"correct": [1, 0, 1]}, "correct must be a list of true and false"),
        ({"expected": [-1.0, 0.5, -1.0]}, "expected must be <= 0"),
        ({"deviation": [1.0, -0.5, 1.0]}, "deviation must be >= 0, got -0.5"),
        ({"tokens": [1, 2.0, 3]}, "tokens must be a list of integers"),
        ({"tokens": [1, -2, 3]}, "tokens must be from 0"),
        ({"tokens": [1, 2**31, 3]}, "tokens must be from 0"),
    ],
)
def test_numbers_that_cannot_be_what_they_are_called_are_refused(tmp_path, change, reason):
    path = write_lines(tmp_path / "s.jsonl", LINES[1], LINES[0] | change)
    text = refusal(read_statistics, path)
    assert "line 2: " in text
    assert reason in text


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity", "-1e999"])
def test_numbers_that_json_does_not_have_are_refused(tmp_path, word):
    (tmp_path / "s.jsonl").write_text(f'{{"id": 1, "log_probabilities": [-1, {word}]}}')
    assert "line 1: " in refusal(read_statistics, tmp_path / "s.jsonl")


def test_fields_are_in_every_line_or_in_none(tmp_path):
    short = {k: v for k, v in LINES[1].items() if k != "correct"}
    path = write_lines(tmp_path / "s.jsonl", LINES[0], short)
    assert "line 2: correct must be in every line or in none" in refusal(read_statistics, path)
    write_lines(path, {"id": 1, "log_probs": [-1]})
    assert "lacks log_probabilities; it has 'id', 'log_probs'" in refusal(read_statistics, path)
    write_lines(path, {k: v for k, v in LINES[0].items() if k != "deviation"})
    assert "expected and deviation must both be given" in refusal(read_statistics, path)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ({"name": "x"}, "has neither text nor id"),
        ({"id": 1, "text": ""}, "text must be a string with something in it"),
        ({"id": 1, "text": 7}, "text must be a string with something in it"),
        ({"id": 1, "text": "\ud800"}, "half a character"),
        ({"id": 1}, "text must be in every line or in none"),
    ],
)
def test_texts_that_are_none_are_refused(tmp_path, line, reason):
    path = write_lines(tmp_path / "m.jsonl", {"id": "first", "text": "some text"}, line)
    assert reason in refusal(read_texts, path)


def test_an_id_twice_in_a_plain_list_is_refused(tmp_path):
    (tmp_path / "m.txt").write_text("a\nb\na\n")
    assert "line 3: the id 'a' stands there twice" in refusal(read_texts, tmp_path / "m.txt")


# --------------------------------------------------------------------------- archives


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"ids": None}, "lacks the array ids"),
        ({"lengths": None}, "lacks the array lengths"),
        ({"log_probabilities": None}, "lacks the array log_probabilities"),
        ({"ids": np.array(["a", "a"])}, "the id 'a' stands there twice"),
        ({"ids": np.array(["a", " "])}, "empty or broken"),
        ({"ids": np.array(["a"])}, "ids must have shape (2,)"),
        ({"ids": np.array([1.0, 2.0])}, "ids must hold strings or integers"),
        ({"ids": np.array(["a", b"b"], dtype=object)}, "holds objects, which are pickles"),
        ({"lengths": np.array([3, 4])}, "lengths must be integers from 1 to 3"),
        ({"lengths": np.array([3, 0])}, "lengths must be integers from 1 to 3"),
        ({"lengths": np.array([3.0, 1.0])}, "lengths must be integers"),
        ({"lengths": np.array([3, 2])}, "text 1: log_probabilities holds nan"),
        (
            {"log_probabilities": np.full((2, 3), 0.5)},
            "look like probabilities: take their natural logarithm",
        ),
        ({"correct": np.array([[True, False, False], [False, True, True]])}, "text 0: correct[2] is false"),
        ({"log_probabilities": np.full((2, 3), -np.inf)}, "text 0: log_probabilities holds -inf"),
        ({"log_probabilities": np.full((2, 3), -1)}, "dtype int64"),
        ({"log_probabilities": np.full((2, 3), -1 + 0j)}, "dtype complex128"),
        ({"log_probabilities": np.zeros((0, 3))}, "two axes"),
        ({"log_probabilities": np.array(["x"])}, "two axes"),
        ({"correct": np.ones((2, 3))}, "correct must have shape"),
        ({"tokens": np.ones((2, 4), int)}, "tokens must have shape (2, 3)"),
    ],
)
def test_arrays_that_cannot_be_what_they_are_called_are_refused(tmp_path, change, reason):
    path = tmp_path / "s.npz"
    np.savez(path, **{n: a for n, a in (TABLES | change).items() if a is not None})
    assert reason in refusal(read_statistics, path)


def test_a_pickle_inside_an_archive_is_not_opened(tmp_path):
    class Bomb:
        def __reduce__(self):
            return (Path(tmp_path / "exploded").touch, ())

    path = tmp_path / "s.npz"
    np.savez(path, **TABLES | {"correct": np.array([[Bomb()] * 3] * 2, dtype=object)})
    assert "holds objects, which are pickles" in refusal(read_statistics, path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps(Bomb()))
    assert "holds a pickle" in refusal(read_statistics, path)
    assert not (tmp_path / "exploded").exists()


def test_an_archive_cut_anywhere_or_damaged_is_refused(tmp_path):
    path = tmp_path / "s.npz"
    np.savez_compressed(path, **TABLES)
    whole = path.read_bytes()
    for size in (1, 10, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        refusal(read_statistics, path)
    rng = np.random.default_rng(0)
    for _ in range(200):
        damaged = bytearray(whole)
        for place in rng.integers(0, len(whole), size=3):
            damaged[place] = rng.integers(256)
        path.write_bytes(damaged)
        with suppress(FileRefusedError):  # and nothing else
            read_statistics(path)
    path.write_bytes(b"no archive")
    assert "no NumPy archive" in refusal(read_statistics, path)


def test_a_header_that_promises_more_than_there_is_is_refused_at_once(tmp_path):
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "<f8", "fortran_order": False, "shape": (2, 10**15)}
    )
    path = tmp_path / "s.npz"
    np.savez(path, **{n: a for n, a in TABLES.items() if n != "log_probabilities"})
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("log_probabilities.npy", header.getvalue() + b"\0" * 48)
    assert "log_probabilities is cut off or damaged" in refusal(read_statistics, path)
    np.savez(path, **{n: a for n, a in TABLES.items() if n != "correct"})
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("correct.npy", b"\x93NUMPY\x01\x00\x10\x00{'descr': x}    ")
    assert "correct is damaged" in refusal(read_statistics, path)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("ids.npy", b"\x93NUMPY")
    assert "packed in an unusual way" in refusal(read_statistics, path)


def test_a_file_that_is_no_file_is_refused(tmp_path):
    (tmp_path / "s.jsonl").mkdir()
    assert "not an ordinary file" in refusal(read_statistics, tmp_path / "s.jsonl")
    assert "no such file" in refusal(read_statistics, tmp_path / "missing.npz")
