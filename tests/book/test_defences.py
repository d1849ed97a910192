"""The page of defences: every one has its promise, its attacker, its perimeter and its price, and no cell is bare."""

from __future__ import annotations

import re

import pytest

from thousand_fingers.book.project import find_project

PAGE = (find_project().root / "chapters" / "defences.md").read_text(encoding="utf-8")
COINS = ("Accuracy", "Work", "Memory", "Groups")


def tables() -> list[list[list[str]]]:
    """Return every table of the page as rows of cells, the heading first and without the rule under it."""
    blocks = re.findall(r"(?:^\|.*\|\n)+", PAGE, flags=re.MULTILINE)
    split = [
        [[cell.strip() for cell in line.strip("|").split("|")] for line in b.splitlines()] for b in blocks
    ]
    return [[rows[0], *rows[2:]] for rows in split]


def sections() -> dict[str, str]:
    """Return the text of the section of each defence, by heading."""
    parts = re.split(r"^##+ (.+)\n", PAGE, flags=re.MULTILINE)[1:]
    found = dict(zip(parts[::2], parts[1::2], strict=True))
    return {heading: text for heading, text in found.items() if "**Guarantees**" in text}


def test_both_tables_have_the_same_defences_and_no_empty_cell() -> None:
    promises, prices = tables()
    assert prices[0] == ["Defence", *COINS]
    assert [row[0] for row in promises] == [row[0] for row in prices]
    assert len(promises) - 1 == len(sections())
    for table in (promises, prices):
        assert {len(row) for row in table} == {len(table[0])}
    assert all(cell for row in prices for cell in row)
    assert all(row[1] == "none" or cell for row in promises[1:] for cell in row)


def test_a_promise_is_of_one_of_the_three_kinds_that_the_page_explains() -> None:
    kinds = set(re.findall(r"^(\w+)\n: ", PAGE, flags=re.MULTILINE))
    assert kinds == {"proved", "measured", "none"}
    assert {row[1] for row in tables()[0][1:]} == kinds


@pytest.mark.parametrize("heading", sections())
def test_every_defence_says_what_against_whom_where_and_for_how_much(heading: str) -> None:
    text = sections()[heading]
    for part in ("Guarantees", "Against whom", "Perimeter"):
        assert f"- **{part}**: " in text, f"{heading} lacks {part}"
    assert re.search(r"^- \*\*(Price|What it cost)[^*]*\*\*: ", text, flags=re.MULTILINE), (
        f"{heading} has no price"
    )
    assert re.search(r"\[Chapter (\d+)\]\(\1_|\[Chapter (\d)\]\(0\2_", text), f"{heading} names no chapter"


def test_what_was_not_measured_is_owned_up_to_in_the_section_of_the_defence() -> None:
    missing = [i for i, row in enumerate(tables()[1][1:]) if "not measured" in row[1:]]
    named = [i for i, text in enumerate(sections().values()) if "*Not measured*" in text]
    assert len(named) == len(missing)
    assert "*Nothing* means" in PAGE
    assert "*Not measured* means" in PAGE
