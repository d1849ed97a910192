"""Third check: what a reader must never meet on a page.

A notebook that crashed half-way, a number typed by hand, a picture that only
the sighted can use: Jupyter Book publishes all of them without a warning.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from thousand_fingers.book.ledger import Allowance
from thousand_fingers.book.notebook import (
    Cell,
    Notebook,
    Record,
    boxes_of,
    code_cells,
    figures_of,
    is_limit,
    records_of,
    tags_of,
    title_of,
)
from thousand_fingers.book.record import shown

MAX_CELL_LINES = 16
THREAT_MODEL_FIELDS = (
    "Attacker knows",
    "May query",
    "Wants",
    "Budget",
    "Measured by",
    "Privacy unit",
)
CORRECTION_FIELDS = ("The source says", "Why it is a slip", "Shown here")
CORRECTION_TITLE = "Correction to the source: "
MIN_EXERCISES = 3
NEVER_EXECUTED = "was never executed: `make refresh` executes it and writes its outputs"

_FORBIDDEN_OUTPUT = {
    r"0x[0-9a-f]{8,}": "a memory address",
    r"np\.(float|int|bool|str)\w*\(": "the repr of a NumPy scalar",
    r"(?<![\w.])/(home|root|tmp|work|Users|usr|var)/": "an absolute path",
    r"[A-Z]:\\\\?\w": "an absolute path",
    r"\r": "a carriage return (a progress bar?)",
}
_FORBIDDEN_SOURCE = {
    r"(?<![\w.])10e-": "'10e-' is nearly always meant to be '1e-'",
    r"\bmyst_nb\b": "readers in other front ends have no myst_nb; use record()",
    r"\btqdm\b": "progress bars write to stderr",
    r"(np|numpy)\.random\.seed|torch\.manual_seed": "a global seed; pass a generator",
    r"weights_only\s*=\s*False|allow_pickle\s*=\s*True": "unpickling that is not restricted",
}
_FORBIDDEN_TAGS = ("raises-exception", "papermill-error-cell-tag", "skip-execution")


def lint_sources(notebook: Notebook) -> list[str]:
    """Check what an author wrote: cells, tags, page grammar.

    Parameters
    ----------
    notebook : dict

    Returns
    -------
    list of str
        One line for each finding.
    """
    problems = _page_grammar(notebook)
    parameter_cells = 0
    for count, (_, cell) in enumerate(code_cells(notebook), start=1):
        where = f"cell [{count}]"
        parameter_cells += "parameters" in tags_of(cell)
        lines = [line for line in cell["source"].splitlines() if line.strip()]
        if len(lines) > MAX_CELL_LINES:
            problems.append(
                f"{where} has {len(lines)} lines, more than {MAX_CELL_LINES}: move the algorithm to src"
            )
        problems += [f"{where} uses {what}" for what in _matches(_FORBIDDEN_SOURCE, cell["source"])]
        problems += [f"{where} carries the tag {tag}" for tag in _FORBIDDEN_TAGS if tag in tags_of(cell)]
    if parameter_cells != 1:
        problems.append(f"exactly one cell must be tagged 'parameters', found {parameter_cells}")
    return problems


def lint_outputs(notebook: Notebook) -> list[str]:
    """Check what the execution left: complete, without errors, accessible.

    Parameters
    ----------
    notebook : dict

    Returns
    -------
    list of str
        One line for each finding.
    """
    problems = []
    cells = list(code_cells(notebook))
    counts = [cell.get("execution_count") for _, cell in cells]
    if all(count is None for count in counts):
        return [NEVER_EXECUTED]
    if counts != list(range(1, len(counts) + 1)):
        problems.append("its cells were not executed once each, from the first to the last")
    for count, (_, cell) in enumerate(cells, start=1):
        problems += [f"cell [{count}] {what}" for what in _output_problems(cell)]
    if not any(figures_of(cell) for _, cell in cells):
        problems.append("has no figure")
    return problems


def lint_prose(
    text: str,
    allowances: Iterable[Allowance],
    used: set[str] | None = None,
) -> list[str]:
    """Find the numbers in a piece of prose that nobody computed.

    Parameters
    ----------
    text : str
        MyST Markdown of one cell or page.
    allowances : iterable of Allowance
        Numbers that may stand there.
    used : set of str, optional
        Receives the texts of the allowances that were met.

    Returns
    -------
    list of str
        The naked numbers: decimals, percentages, integers above 12.

    Examples
    --------
    >>> lint_prose("We measured 0.25 on {glue:text}`a.ipynb::x.y:.2f` of 10.", [])
    ['0.25']
    """
    prose = _prose_only(text)
    for allowance in sorted(allowances, key=lambda a: -len(a.text)):
        pattern = rf"(?<![\d.,]){re.escape(allowance.text)}(?!\d|[.,]\d)"
        prose, met = re.subn(pattern, " ", prose)
        if met and used is not None:
            used.add(allowance.text)
    return [m.group().strip() for m in _NUMBER.finditer(prose) if _is_naked(m.group())]


def lint_markup(text: str) -> list[str]:
    r"""Find what MyST would print instead of reading it, or read as something else.

    None of it makes a build warn: a formula shows its dollars, a quotation its
    name, a box its fence.

    Parameters
    ----------
    text : str
        MyST Markdown of one cell or page.

    Returns
    -------
    list of str
        One line for each finding.

    Examples
    --------
    >>> lint_markup(r"Half of it, $\frac{1}{2$.")
    ['has a formula with unequal braces: \\frac{1}{2']
    """
    problems = [
        f"has a box with a backtick in its title, which opens no box: {match.group().strip()}"
        for match in _BROKEN_FENCE.finditer(text)
    ]
    text = _OPTION_LINE.sub("", _COMMENT.sub(" ", _without_code_blocks(text)))
    problems += [
        f"shows {match['role']} as code: take the backticks around the role away"
        for match in _ROLE_AS_CODE.finditer(text)
    ]
    for paragraph in re.split(r"\n\s*\n", _ROLE.sub(" ", text)):
        problems += _formula_problems(_INLINE_CODE.sub(" ", paragraph).strip())
    return problems


def lint_quotes(
    text: str, records: Mapping[str, Mapping[str, Record]], here: str, cell: int | None
) -> list[str]:
    """Check that each quoted figure exists and is visible above.

    Parameters
    ----------
    text : str
        MyST Markdown.
    records : mapping of str to mapping of str to Record
        Records by file name, the page of every figure included.
    here : str
        File name of the page that the text belongs to.
    cell : int or None
        Position of the text in its notebook; ``None`` for a plain page.

    Returns
    -------
    list of str
        One line for each quotation that cannot be resolved.
    """
    problems = []
    for match in _QUOTE.finditer(text):
        target = match["target"]
        file, separator, key = target.partition("::")
        if not separator:
            problems.append(f"quotes {target!r} without a file name (write {here}::{target})")
            continue
        name, _, form = key.partition(":")
        found = records.get(file, {}).get(name)
        if found is None:
            problems.append(f"quotes {name} of {file}, which does not record it")
        elif file == here and cell is not None and found.cell > cell:
            problems.append(f"quotes {name} before the cell that computes it")
        elif not _formats(found.value, form):
            problems.append(
                f"quotes {name} with the format {form!r}: it must end in s for a text, d for a count, f, e or % "
                "for a real number"
            )
    return problems


def lint_chapter(
    notebook: Notebook,
    file: str,
    allowances: Iterable[Allowance],
    records: Mapping[str, Mapping[str, Record]],
) -> list[str]:
    """Run every lint on one chapter.

    Parameters
    ----------
    notebook : dict
        In normal form, executed.
    file : str
        Its file name.
    allowances : iterable of Allowance
        Numbers that its prose may contain.
    records : mapping of str to mapping of str to Record
        Records of all files.

    Returns
    -------
    list of str
        One line for each finding.
    """
    allowances = list(allowances)
    problems = lint_sources(notebook) + lint_outputs(notebook)
    used: set[str] = set()
    for position, cell in enumerate(notebook["cells"]):
        if cell["cell_type"] != "markdown":
            continue
        label = f"the text {_opening(cell['source'])!r}"
        naked = lint_prose(cell["source"], allowances, used)
        problems += [f"{label} has the naked number {number}" for number in naked]
        problems += [f"{label} {what}" for what in lint_markup(cell["source"])]
        problems += [f"{label} {what}" for what in lint_quotes(cell["source"], records, file, position)]
    unused = [a.text for a in allowances if a.text not in used]
    problems += [f"the allowance {text!r} is not needed" for text in unused]
    return problems


def lint_pages(
    pages: Iterable[Path],
    allowances: Iterable[Allowance],
    records: Mapping[str, Mapping[str, Record]],
) -> list[str]:
    """Check the plain Markdown pages for naked numbers, broken markup and dead quotations.

    Parameters
    ----------
    pages : iterable of Path
    allowances : iterable of Allowance
    records : mapping of str to mapping of str to Record

    Returns
    -------
    list of str
        One line for each finding.
    """
    allowances = list(allowances)
    used: set[str] = set()
    problems = []
    for page in pages:
        text = page.read_text(encoding="utf-8")
        naked = lint_prose(text, allowances, used)
        problems += [f"{page.name} has the naked number {number}" for number in naked]
        problems += [f"{page.name} {what}" for what in lint_markup(text)]
        problems += [f"{page.name} {what}" for what in lint_quotes(text, records, page.name, None)]
    unused = [a.text for a in allowances if a.text not in used]
    return problems + [f"the allowance {text!r} of the pages is not needed" for text in unused]


def all_records(notebooks: Mapping[str, Notebook]) -> dict[str, dict[str, Record]]:
    """Return the records of several notebooks by file name."""
    return {file: records_of(notebook) for file, notebook in notebooks.items()}


def _formats(value: float | int | str, form: str) -> bool:
    # MyST-NB takes what follows the last colon for a format, converts by its last letter, then formats.
    kinds: dict[str, type] = {"s": str, "d": int, "f": float, "e": float, "g": float, "%": float}
    try:
        format(kinds[form[-1:]](value), form)
    except (KeyError, ValueError):
        return False
    return isinstance(value, str) == (form[-1:] == "s")


def _page_grammar(notebook: Notebook) -> list[str]:
    problems = []
    if not title_of(notebook):
        problems.append("has no first-level heading")
    models = boxes_of(notebook, "threat-model")
    if len(models) != 1:
        problems.append(f"needs exactly one threat-model box, found {len(models)}")
    for box in models:
        problems += _field_problems("the threat model", box.fields, THREAT_MODEL_FIELDS)
    for box in boxes_of(notebook, "correction"):
        if not box.title.startswith(CORRECTION_TITLE):
            problems.append(f"a correction box must be titled '{CORRECTION_TITLE}…', got {box.title!r}")
        problems += _field_problems(f"the box {box.title!r}", box.fields, CORRECTION_FIELDS)
    text = "\n".join(cell["source"] for cell in notebook["cells"] if cell["cell_type"] == "markdown")
    for css_class, what in (("objectives", "an 'In this chapter' box"), ("remember", "a 'Remember' box")):
        if not re.search(rf"^:class: (.* )?{css_class}( .*)?$", text, re.MULTILINE):
            problems.append(f"needs {what} (:class: {css_class})")
    exercises = set(re.findall(r"\{exercise(?:-start)?\}[^\n]*\n:label: (\S+)", text))
    solutions = set(re.findall(r"\{solution(?:-start)?\} (\S+)", text))
    if len(exercises) < MIN_EXERCISES:
        problems.append(f"needs at least {MIN_EXERCISES} exercises, found {len(exercises)}")
    problems += [f"the exercise {label} has no solution" for label in sorted(exercises - solutions)]
    for level in ("elementary", "advanced"):
        if f":sync: {level}" not in text:
            problems.append(f"has no {level} reading (:sync: {level})")
    for heading in ("## What this does not say", "## Sources"):
        if not re.search(rf"^{heading}\s*$", text, re.MULTILINE):
            problems.append(f"needs the section '{heading}'")
    return problems


def _field_problems(what: str, fields: Mapping[str, str], wanted: tuple[str, ...]) -> list[str]:
    if tuple(fields) != wanted:
        return [f"{what} must have the fields {', '.join(wanted)}, got {', '.join(fields) or 'none'}"]
    return [f"{what}: the field {name} is empty" for name, text in fields.items() if not text]


def _output_problems(cell: Cell) -> list[str]:
    problems = []
    for output in cell.get("outputs", []):
        if output["output_type"] == "error":
            problems.append(f"raised {output['ename']}: {output['evalue']}")
            continue
        if output.get("name") == "stderr":
            problems.append(f"wrote to stderr: {output['text'].strip().splitlines()[-1]}")
        data = output.get("data", {})
        texts = [output.get("text", "")] + [str(data[m]) for m in data if m.startswith("text/")]
        for text in texts:
            problems += [f"printed {what}" for what in _matches(_FORBIDDEN_OUTPUT, text)]
        picture = any(mime.startswith("image/") for mime in data)
        if picture and "figure" not in output.get("metadata", {}):
            problems.append("shows a picture without caption and alternative text: draw it with figure(...)")
    if len(figures_of(cell)) > 1:
        problems.append("draws more than one figure")
    return problems + _printing_problems(cell)


def _printing_problems(cell: Cell) -> list[str]:
    """Find the records whose value is not the one printed under the cell."""
    records = {name: r for name, r in records_of({"cells": [cell]}).items() if r.kind != "plot"}
    values = {name: shown(record.value, record.about) for name, record in records.items()}
    printed = "\n" + "".join(o["text"] for o in cell.get("outputs", []) if o["output_type"] == "stream")
    problems = []
    for name, value in values.items():
        if is_limit(name, values):
            continue  # printed on the line of its rate
        line, rests = f"{name} = {value}", ["\n"]
        if is_limit(f"{name}.low", values):
            limits = f" (95% interval {values[f'{name}.low']} to {values[f'{name}.high']}, "
            rests = [f"{limits}n = ", f"{limits}mean of "]
        if not any(f"\n{line}{rest}" in printed for rest in rests):
            problems.append(f"does not print its record as it is: {line}")
    return problems


def _formula_problems(paragraph: str) -> list[str]:
    """Find the faults in the formulas of one paragraph, freed of code and roles."""
    problems: list[str] = []
    if "$$" in _DISPLAYED.sub("", paragraph, count=1):
        problems.append("has $$ inside a paragraph, where it displays no formula: put empty lines around it")
        return problems  # what is inside and what outside cannot be told
    for tex in (match["tex"] for match in _FORMULA.finditer(paragraph)):
        bare = re.sub(r"\\[\\{}]", " ", tex)  # printed braces and ends of lines
        for what, opening, closing in (
            ("braces", r"\{", r"\}"),
            (r"\left and \right", r"\\left(?![a-z])", r"\\right(?![a-z])"),
            (r"\begin and \end", r"\\begin\b", r"\\end\b"),
        ):
            if len(re.findall(opening, bare)) != len(re.findall(closing, bare)):
                problems.append(f"has a formula with unequal {what}: {_opening(tex)}")
    if re.search(r"(?<!\\)\$", _FORMULA.sub(" ", paragraph)):
        problems.append("has a dollar sign without its partner (an amount of money is written \\$)")
    return problems


def _matches(patterns: Mapping[str, str], text: str) -> list[str]:
    return [what for pattern, what in patterns.items() if re.search(pattern, text)]


def _opening(text: str) -> str:
    words = " ".join(text.split())
    return words if len(words) <= 40 else words[:39] + "…"


_BROKEN_FENCE = re.compile(r"^[^\S\n]*`{3,}\{[^`\n]*`.*$", re.MULTILINE)
_ROLE_AS_CODE = re.compile(r"(?<!`)`(?P<role>\{(?:glue|cite|numref|ref|eq|doc|math|prf)[\w:-]*\})`(?!`)")
_DISPLAYED = re.compile(r"^\s*\$\$.*?\$\$", re.DOTALL)
_FORMULA = re.compile(r"(?<!\\)(?P<dollars>\${1,2})(?!\$)(?P<tex>.*?)(?<!\\)(?P=dollars)", re.DOTALL)
_QUOTE = re.compile(r"\{glue(?::\w+)?\}`(?P<target>[^`]+)`")
_NUMBER = re.compile(
    r"(?<![\w.])[-−]?\d{1,3}(?:(?:,|\{,\}|\\,| )\d{3})+(?:\.\d+)?(?:\s?\\?%)?(?!\w)"  # 1,000
    r"|(?<![\w.])\.\d+(?!\w)"  # .5
    r"|(?<![A-Za-z_\d.])\d+(?:\.\d+)?(?:e[-+]?\d+)?(?:\s?\\?%|\s?‰)?(?![A-Za-z_]*\d)"
)
_FENCE = re.compile(r"^\s*(?P<marks>`{3,}|~{3,}|:{3,})(?:\{(?P<directive>[\w:-]+)\})?(?P<rest>.*)$")
_CODE_DIRECTIVES = ("code", "code-block", "code-cell", "literalinclude", "mermaid", "raw")
_TARGET_DIRECTIVES = ("solution", "solution-start", "figure", "image", "include")  # their argument is a name
_OPTION_LINE = re.compile(r"^\s*:[\w-]+:.*$", re.MULTILINE)
_LABEL_LINE = re.compile(r"^\([\w-]+\)=\s*$", re.MULTILINE)
# Roles whose text is a target; what others enclose ({math}, {strong} …) is shown and so is prose.
_ROLE = re.compile(r"\{(?:glue|cite|numref|ref|eq|doc|download|term|index|prf|py)[\w:-]*\}`[^`]*`")
_SHOWN_ROLE = re.compile(r"\{[\w:-]+\}`([^`]*)`")
_INLINE_CODE = re.compile(r"(?P<t>`+)(?!`)(?:(?!\n\s*\n).)+?(?<!`)(?P=t)(?!`)", re.DOTALL)
_LINK_TARGET = re.compile(r"\]\([^)]*\)|<https?://[^>]*>|https?://\S+")
_COMMENT = re.compile(r"<!--.*?-->|^%[^\n]*$", re.DOTALL | re.MULTILINE)
_ORDERED_ITEM = re.compile(r"^\s*\d{1,2}\. ", re.MULTILINE)
_YEAR = re.compile(r"(?:19|20)\d\d")


def _prose_only(text: str) -> str:
    text = _without_code_blocks(text)  # first, or a box would be taken for one long code span
    text = _SHOWN_ROLE.sub(r" \1 ", _ROLE.sub(" ", _COMMENT.sub(" ", text)))
    for pattern in (
        _INLINE_CODE,
        _OPTION_LINE,
        _LABEL_LINE,
        _LINK_TARGET,
        _ORDERED_ITEM,
    ):
        text = pattern.sub(" ", text)
    return text


def _without_code_blocks(text: str) -> str:
    """Drop code blocks and the fence lines of directives; keep what directives contain."""
    kept: list[str] = []
    open_fences: list[tuple[str, bool]] = []  # marks, and whether code is inside
    for line in text.splitlines():
        fence = _FENCE.match(line)
        if not fence:
            if not (open_fences and open_fences[-1][1]):
                kept.append(line)
            continue
        marks, directive, rest = fence["marks"], fence["directive"], fence["rest"].strip()
        inside = open_fences[-1] if open_fences else None
        if inside and not directive and not rest and marks.startswith(inside[0]):
            open_fences.pop()
        elif not (inside and inside[1]):
            open_fences.append((marks, directive in _CODE_DIRECTIVES if directive else True))
            kept.append(rest if directive and directive not in _TARGET_DIRECTIVES else "")
    return "\n".join(kept)


def _is_naked(number: str) -> bool:
    bare = number.strip().lstrip("-−")
    if _YEAR.fullmatch(bare):
        return False
    return not (bare.isdecimal() and int(bare) <= 12)
