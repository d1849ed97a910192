"""What the ledger accepts, and when a claim holds."""

from __future__ import annotations

import pytest

from thousand_fingers.book.ledger import DIFFERS, FAILS, HOLDS, QUOTED, judge, ledger_problems, read_ledger
from thousand_fingers.book.notebook import Record
from thousand_fingers.book.project import BookError, Project


def ledger(tmp_path, text: str):
    folder = tmp_path / "data" / "ledger"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "04.toml").write_text(text, encoding="utf-8")
    return read_ledger(Project(tmp_path), "04")


def entry(**changes: str) -> str:
    lines = {"kind": '"exact"', "value": "1.00", "digits": "2", "source": '"Table 1"', "title": '"Error"'}
    lines |= changes
    return '["dp.x"]\n' + "\n".join(f"{k} = {v}" for k, v in lines.items() if v)


def verdict(tmp_path, text: str, value, kind: str = "float64"):
    claims = ledger(tmp_path, text).claims
    (result,) = judge(claims, {"dp.x": Record("dp.x", value, {"kind": kind, "digits": 2}, 3)})
    return result


def test_an_exact_claim_holds_to_its_digits_and_no_further(tmp_path):
    assert verdict(tmp_path, entry(), 1.0028).verdict == HOLDS
    failing = verdict(tmp_path, entry(), 1.0051)
    assert failing.verdict == FAILS
    assert ledger_problems([failing]) == ["claim dp.x: ours is 1.0051, the ledger says 1.0 (to 2 digits)"]


def test_an_edited_last_digit_of_the_ledger_fails(tmp_path):
    assert verdict(tmp_path, entry(value="1.01"), 1.0028).verdict == FAILS


def test_a_claim_without_a_figure_fails(tmp_path):
    (result,) = judge(ledger(tmp_path, entry()).claims, {})
    assert result.verdict == FAILS


def test_theory_is_compared_at_rtol(tmp_path):
    text = entry(kind='"theory"', value="0.6967346701436833", digits="")
    assert verdict(tmp_path, text, 0.6967346701436833 * (1 + 1e-10)).verdict == HOLDS
    assert verdict(tmp_path, text, 0.69674).verdict == FAILS


def test_a_statistical_claim_holds_inside_its_interval(tmp_path):
    text = entry(
        kind='"statistical"',
        value="",
        digits="",
        interval="[0.78, 0.83]",
        false_alarm="1e-7",
        basis='"binomial, n = 3000"',
    )
    assert verdict(tmp_path, text, 0.806).verdict == HOLDS
    assert verdict(tmp_path, text, 0.84).verdict == FAILS


def test_an_interval_that_would_cry_wolf_is_refused(tmp_path):
    text = entry(
        kind='"statistical"', value="", digits="", interval="[0, 1]", false_alarm="0.05", basis='"b"'
    )
    with pytest.raises(BookError, match="false_alarm must be > 0 and <= 1e-06"):
        ledger(tmp_path, text)


PUBLISHED = {"kind": '"published"', "as_printed": '"1.00 on average"'}


@pytest.mark.parametrize(
    ("value", "printed"),
    [
        ("966.44", "966.44"),
        ("0.663", "66.3 %"),
        ("1.1e-10", "1.1 × 10⁻¹⁰"),
        ("480000", "480,000 users"),
        ("0.577", "57.7%"),
    ],
)
def test_a_published_figure_is_entered_twice(tmp_path, value, printed):
    text = entry(**PUBLISHED | {"value": value, "as_printed": f'"{printed}"'})
    assert ledger(tmp_path, text).claims
    edited = str(float(value) * 1.01)
    with pytest.raises(BookError, match="is not what is as_printed"):
        ledger(tmp_path, entry(**PUBLISHED | {"value": edited, "as_printed": f'"{printed}"'}))


def test_published_figures_that_differ_need_a_reason(tmp_path):
    text = entry(**PUBLISHED)
    assert verdict(tmp_path, text, 1.2).verdict == FAILS
    assert verdict(tmp_path, text + '\nwhy_different = "another data set"', 1.2).verdict == DIFFERS
    assert verdict(tmp_path, text, 1.002).verdict == HOLDS


def test_a_quotation_needs_no_figure_of_ours_and_may_not_have_one(tmp_path):
    text = entry(**PUBLISHED) + "\nours = false"
    (result,) = judge(ledger(tmp_path, text).claims, {})
    assert result.verdict == QUOTED
    assert verdict(tmp_path, text, 1.0).verdict == FAILS


def test_texts_and_counts_are_compared_exactly(tmp_path):
    text = entry(value='"[42.6 40.8]"', digits="")
    assert verdict(tmp_path, text, "[42.6 40.8]", "text").verdict == HOLDS
    assert verdict(tmp_path, text, "[42.6 40.9]", "text").verdict == FAILS
    assert verdict(tmp_path, entry(value="412", digits=""), 412, "count").verdict == HOLDS
    assert verdict(tmp_path, entry(value="412", digits=""), 411, "count").verdict == FAILS


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[[", "04.toml"),
        (entry(kind='"guess"'), "kind must be one of"),
        (entry(source=""), "lacks source"),
        (entry(source='" "'), "must not be empty"),
        (entry(colour='"red"'), "unknown entries colour"),
        (entry(digits=""), "needs digits"),
        (entry(value="true"), "value must be a number or a text"),
        (entry(kind='"statistical"', value="", digits=""), "lacks basis, false_alarm, interval"),
        ('[[allow]]\ntext = "3"', "needs text and reason"),
        ('[[allow]]\ntext = "3"\nreason = ""', "needs text and reason"),
    ],
)
def test_malformed_ledgers_are_refused_with_file_and_reason(tmp_path, text, message):
    with pytest.raises(BookError, match=message):
        ledger(tmp_path, text)


def test_a_missing_ledger_is_empty(tmp_path):
    assert read_ledger(Project(tmp_path), "09").claims == {}
