"""The lock file is complete, plain, and what is installed."""

import importlib.metadata
import re
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from thousand_fingers.book.lock import EXTRAS, locked_lines

ROOT = Path(__file__).resolve().parents[2]
LINES = (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines()


def test_every_line_is_a_bare_name_and_version():
    for line in LINES:
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*==[0-9][0-9a-z.]*", line), line
    assert sorted(set(LINES), key=lambda line: line.partition("==")[0]) == LINES


def test_no_cuda_helper_is_locked():
    assert not [line for line in LINES if re.match(r"(nvidia|cuda|triton)", line)]


def test_everything_the_project_reaches_is_locked():
    locked = {line.partition("==")[0] for line in LINES}
    assert {line.partition("==")[0] for line in locked_lines()} == locked


def test_this_environment_has_the_locked_versions():
    assert locked_lines() == LINES


@pytest.mark.parametrize("line", LINES)
def test_locked_versions_satisfy_the_declared_ranges(line):
    name, _, version = line.partition("==")
    for text in importlib.metadata.requires("thousand-fingers") or []:
        requirement = Requirement(text)
        applies = requirement.marker is None or any(
            requirement.marker.evaluate({"extra": extra}) for extra in EXTRAS
        )
        if requirement.name == name and applies:
            assert version in requirement.specifier, f"{line} against {text}"


def test_conda_users_get_the_same_constraints():
    text = (ROOT / "environment.yml").read_text(encoding="utf-8")
    assert "-c requirements.lock" in text
