"""Second check: what the outside world says, and whether our figures agree.

``data/ledger/NN.toml`` holds one table per claim. Its key is the name of the
record that the chapter makes, and its ``kind`` says how the two are compared:

``exact``
    equal after rounding to ``digits`` (a text or a count: equal);
``theory``
    a closed form, equal within ``rtol``;
``statistical``
    inside ``interval``, whose ``basis`` is theory or calibration seeds that
    the printed run does not use, at the stated ``false_alarm`` probability;
``published``
    somebody else's figure with its ``source``, entered twice so that a slip of
    the keyboard is seen: as a number and ``as_printed`` there; where ours
    differs after rounding, ``why_different`` must say why.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from thousand_fingers.book.notebook import Record
from thousand_fingers.book.project import BookError, Project
from thousand_fingers.book.record import shown

KINDS = ("exact", "theory", "statistical", "published")
_REQUIRED = {
    "exact": {"value", "source", "title"},
    "theory": {"value", "source", "title"},
    "statistical": {"interval", "false_alarm", "basis", "source", "title"},
    "published": {"value", "as_printed", "source", "title"},
}
_OPTIONAL = {
    "exact": {"digits"},
    "theory": {"rtol", "digits"},
    "statistical": {"digits"},
    "published": {"digits", "why_different", "ours"},
}
MAX_FALSE_ALARM = 1e-6

HOLDS, DIFFERS, FAILS, QUOTED = "holds", "differs, explained", "fails", "quoted"


@dataclass(frozen=True)
class Claim:
    """One claim with an outside truth."""

    name: str
    kind: str
    source: str
    title: str
    value: float | int | str | None = None
    digits: int | None = None
    rtol: float = 1e-9
    interval: tuple[float, float] | None = None
    false_alarm: float | None = None
    basis: str = ""
    as_printed: str = ""
    why_different: str = ""
    ours: bool = True

    def shown(self) -> str:
        """Return the claim as the page *Every figure* prints it."""
        if self.interval is not None:
            low, high = (shown(float(end), {"digits": self.digits or 4}) for end in self.interval)
            return f"in [{low}, {high}]"
        if isinstance(self.value, float) and self.digits is not None:
            return f"{self.value:.{self.digits}f}"
        if isinstance(self.value, float):
            return f"{self.value:.6g}"
        return str(self.value)


@dataclass(frozen=True)
class Allowance:
    """A number that prose may contain, and the reason."""

    text: str
    reason: str


@dataclass(frozen=True)
class Ledger:
    """Claims and allowances of one chapter, or of the plain pages."""

    claims: dict[str, Claim]
    allowances: tuple[Allowance, ...]


@dataclass(frozen=True)
class Verdict:
    """How a claim compares with the record of the same name."""

    claim: Claim
    record: Record | None
    verdict: str
    detail: str = ""


def read_ledger(project: Project, name: str) -> Ledger:
    """Read ``data/ledger/<name>.toml``; a missing file is an empty ledger.

    Parameters
    ----------
    project : Project
    name : str
        Two digits of a chapter, or ``"pages"``.

    Returns
    -------
    Ledger

    Raises
    ------
    BookError
        If the file is not TOML or an entry is not of the form described in
        this module.
    """
    path = project.ledger_dir / f"{name}.toml"
    if not path.is_file():
        return Ledger({}, ())
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise BookError(f"{path}: {error}") from None
    allowances = [_allowance(path, entry) for entry in content.pop("allow", [])]
    return Ledger({key: _claim(path, key, entry) for key, entry in content.items()}, tuple(allowances))


def judge(claims: Mapping[str, Claim], records: Mapping[str, Record]) -> list[Verdict]:
    """Compare claims with records.

    Parameters
    ----------
    claims : mapping of str to Claim
    records : mapping of str to Record
        Of the regenerated notebook, or of the committed one.

    Returns
    -------
    list of Verdict
        One for each claim, in the ledger's order.
    """
    return [_judge(claim, records.get(name)) for name, claim in claims.items()]


def ledger_problems(verdicts: list[Verdict]) -> list[str]:
    """Return one line for each claim that does not hold."""
    return [f"claim {v.claim.name}: {v.detail}" for v in verdicts if v.verdict == FAILS]


def _judge(claim: Claim, record: Record | None) -> Verdict:
    if not claim.ours:
        if record is not None:
            return Verdict(claim, record, FAILS, "says ours = false, but the chapter records this figure")
        return Verdict(claim, None, QUOTED)
    if record is None:
        return Verdict(claim, None, FAILS, "the chapter records no figure of this name")
    agrees, detail = _agrees(claim, record)
    if agrees:
        return Verdict(claim, record, HOLDS)
    if claim.kind == "published":
        if claim.why_different:
            return Verdict(claim, record, DIFFERS, detail)
        detail += "; a published figure that differs from ours needs why_different"
    return Verdict(claim, record, FAILS, detail)


def _agrees(claim: Claim, record: Record) -> tuple[bool, str]:
    ours = record.value
    if claim.kind == "statistical":
        assert claim.interval is not None
        if isinstance(ours, str):
            return False, f"an interval cannot judge the text {ours!r}"
        low, high = claim.interval
        return low <= ours <= high, f"{ours} is not in [{low}, {high}]"
    detail = f"ours is {ours!r}, the ledger says {claim.value!r}"
    if isinstance(claim.value, str) or isinstance(ours, str):
        return claim.value == ours, detail
    assert claim.value is not None
    if claim.digits is not None:
        return round(float(ours), claim.digits) == round(float(claim.value), claim.digits), (
            f"{detail} (to {claim.digits} digits)"
        )
    if isinstance(ours, int) and isinstance(claim.value, int):
        return ours == claim.value, detail
    return math.isclose(
        ours, claim.value, rel_tol=claim.rtol, abs_tol=0.0 if claim.value else 1e-15
    ), f"{detail} (rtol {claim.rtol})"


def _claim(path: Path, key: str, entry: Any) -> Claim:
    where = f"{path}: [{key!r}]"
    if not isinstance(entry, dict):
        raise BookError(f"{where} must be a table")
    kind = entry.get("kind")
    if kind not in KINDS:
        raise BookError(f"{where} kind must be one of {', '.join(KINDS)}, got {kind!r}")
    given = set(entry) - {"kind"}
    if missing := _REQUIRED[kind] - given:
        raise BookError(f"{where} lacks {', '.join(sorted(missing))}")
    if unknown := given - _REQUIRED[kind] - _OPTIONAL[kind]:
        raise BookError(f"{where} has unknown entries {', '.join(sorted(unknown))}")
    if not str(entry["source"]).strip() or not str(entry["title"]).strip():
        raise BookError(f"{where} source and title must not be empty")
    if kind == "statistical":
        interval = entry["interval"]
        if not (isinstance(interval, list) and len(interval) == 2 and interval[0] <= interval[1]):
            raise BookError(f"{where} interval must be [low, high], got {interval!r}")
        if not 0 < entry["false_alarm"] <= MAX_FALSE_ALARM:
            raise BookError(
                f"{where} false_alarm must be > 0 and <= {MAX_FALSE_ALARM}, got {entry['false_alarm']}"
            )
        entry = {**entry, "interval": (float(interval[0]), float(interval[1]))}
    elif not isinstance(entry["value"], int | float | str) or isinstance(entry["value"], bool):
        raise BookError(f"{where} value must be a number or a text, got {entry['value']!r}")
    elif kind == "exact" and isinstance(entry["value"], float) and "digits" not in entry:
        raise BookError(f"{where} an exact real number needs digits")
    if kind == "published" and not _printed(entry["value"], str(entry["as_printed"])):
        raise BookError(
            f"{where} value {entry['value']!r} is not what is as_printed: {entry['as_printed']!r}"
        )
    return Claim(name=key, **entry)


def _printed(value: float | int | str, text: str) -> bool:
    """Tell whether the digits of a value, or of its percentage, stand in a text as one number."""
    if isinstance(value, str):
        return value in text
    forms = {
        f"{float(mantissa):.12g}"
        for v in (value, 100 * value)
        for mantissa in [f"{v:.12e}".partition("e")[0]]
    }
    forms |= {f"{v:.12g}" for v in (value, 100 * value)}
    numbers = re.findall(r"\d+(?:\.\d+)?", text.replace(",", ""))
    return bool(forms & {f"{float(number):.12g}" for number in numbers})


def _allowance(path: Path, entry: Any) -> Allowance:
    if not isinstance(entry, dict) or set(entry) != {"text", "reason"} or not all(entry.values()):
        raise BookError(f"{path}: [[allow]] needs text and reason, got {entry!r}")
    return Allowance(str(entry["text"]), str(entry["reason"]))
