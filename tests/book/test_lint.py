"""What the lint lets pass and what it must see."""

from __future__ import annotations

import copy

import demo_book as demo
import pytest

from thousand_fingers.book import lint
from thousand_fingers.book.execute import Job, execute
from thousand_fingers.book.ledger import Allowance
from thousand_fingers.book.notebook import Notebook, Record, notebook_bytes, parse_notebook, records_of

PUBLISHED = {"published.demo.mean": Record("published.demo.mean", 0.1235, {"kind": "text"}, 0)}


@pytest.fixture(scope="module")
def executed() -> Notebook:
    text = notebook_bytes(demo.notebook("01_first.ipynb")).decode()
    return parse_notebook(execute(Job("01_first", text)).notebook.decode())


def findings(notebook: Notebook, allowances=()) -> list[str]:
    records = {"01_first.ipynb": records_of(notebook), "every_figure.ipynb": PUBLISHED}
    return lint.lint_chapter(notebook, "01_first.ipynb", allowances, records)


def edited(notebook: Notebook, old: str, new: str) -> Notebook:
    changed = copy.deepcopy(notebook)
    hits = 0
    for cell in changed["cells"]:
        hits += old in cell["source"]
        cell["source"] = cell["source"].replace(old, new)
    assert hits, old
    return changed


def with_output(notebook: Notebook, output: dict) -> Notebook:
    changed = copy.deepcopy(notebook)
    next(c for c in changed["cells"] if c["source"] == demo.SETUP)["outputs"] = [output]
    return changed


def test_a_complete_chapter_passes(executed):
    assert findings(executed) == []


def test_a_chapter_never_executed_is_seen():
    assert lint.lint_outputs(demo.notebook("01_first.ipynb")) == [lint.NEVER_EXECUTED]


def test_a_cell_left_unexecuted_is_seen(executed):
    changed = copy.deepcopy(executed)
    next(c for c in changed["cells"] if c["source"] == demo.RECORD)["execution_count"] = None
    assert "its cells were not executed once each, from the first to the last" in findings(changed)


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ({"output_type": "error", "ename": "E", "evalue": "v", "traceback": []}, "raised E: v"),
        (
            {"output_type": "stream", "name": "stderr", "text": "UserWarning: x"},
            "wrote to stderr: UserWarning: x",
        ),
        ({"output_type": "stream", "name": "stdout", "text": "<A at 0x7f00deadbeef>"}, "a memory address"),
        (
            {"output_type": "stream", "name": "stdout", "text": "np.float64(0.1)"},
            "the repr of a NumPy scalar",
        ),
        ({"output_type": "stream", "name": "stdout", "text": "/home/someone/x"}, "an absolute path"),
        ({"output_type": "stream", "name": "stdout", "text": "0%\r50%\r"}, "a carriage return"),
        (
            {"output_type": "display_data", "data": {"image/png": "AAAA"}, "metadata": {}},
            "a picture without caption and alternative text",
        ),
    ],
)
def test_outputs_that_no_reader_should_meet_are_seen(executed, output, message):
    assert any(message in line for line in findings(with_output(executed, output)))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('print("done")', 'print("done")\ndelta = 10e-5', "10e-"),
        ('print("done")', "from myst_nb import glue", "myst_nb"),
        ('print("done")', "import numpy as np\nnp.random.seed(0)", "global seed"),
        ('print("done")', "import torch\ntorch.manual_seed(0)", "global seed"),
        ('print("done")', "\n".join(f"x{i} = {i}" for i in range(20)), "move the algorithm to src"),
        ("**Budget**: a laptop", "**Budget**: ", "the field Budget is empty"),
        ("- **Wants**: the secret\n", "", "must have the fields"),
        ("**The source says**", "**The source claims**", "must have the fields"),
        ("Correction to the source: sign", "Sign", "must be titled"),
        (":class: objectives", ":class: note", "needs an 'In this chapter' box"),
        (":class: remember", ":class: note", "needs a 'Remember' box"),
        ("{solution} ex-demo-11", "{solution} ex-demo-99", "the exercise ex-demo-11 has no solution"),
        ("## Sources", "## References", "needs the section '## Sources'"),
        (":sync: advanced", ":sync: expert", "has no advanced reading"),
        ("# Chapter 01", "Chapter one", "has no first-level heading"),
        (
            "::demo.mean:.2f",
            "::demo.median:.2f",
            "quotes demo.median of 01_first.ipynb, which does not record it",
        ),
        ("01_first.ipynb::demo.mean:.2f", "demo.mean:.2f", "without a file name"),
        ("::demo.mean:.2f", "::demo.mean:.2z", "with the format '.2z'"),
        ("::demo.mean:.2f", "::demo.mean", "with the format ''"),
        ("::demo.mean:.2f", "::demo.mean:s", "with the format 's'"),
        ("- a line", "- {glue:text}`01_first.ipynb::demo.mean:.2f`", "before the cell that computes it"),
        ("Lines rise.", "Lines rise by 0.5 each.", "the naked number 0.5"),
        ("Lines rise.", "Lines rise by $\\varepsilon = 0.5$ each.", "the naked number 0.5"),
        ("Lines rise.", "Lines rise 40 times.", "the naked number 40"),
        ("Lines rise.", "Lines rise by 7 %.", "the naked number 7 %"),
        ("Lines rise.", "Lines rise like\n$$x^2.$$", "$$ inside a paragraph"),
        ("Lines rise.", "Lines rise like $$x^2$$ or so.", "$$ inside a paragraph"),
        ("Lines rise.", "Lines rise like $x^{2$.", "unequal braces: x^{2"),
        ("Lines rise.", "Lines rise.\n\n$$\n\\left(x^2\n$$", "unequal \\left and \\right"),
        ("Lines rise.", "Lines rise by $x.", "a dollar sign without its partner"),
        ("it is plus", "it is `{glue:text}`01_first.ipynb::demo.mean:.2f``", "shows {glue:text} as code"),
        ("{admonition} Remember", "{admonition} Remember `x`", "a backtick in its title"),
    ],
)
def test_edits_against_the_rules_are_seen(executed, old, new, message):
    lines = findings(edited(executed, old, new))
    assert any(message in line for line in lines), lines


@pytest.mark.parametrize(
    "text",
    [
        r"The set $\{x : \|x\| < \rho\}$, $\lfloor x\rfloor$, $x \leftarrow y$.",
        "With\n\n$$\n\\left\\{x\\right.\n\\\\[2pt] y\n$$ (eq-label)\n\nit goes on.",
        "```{prf:theorem} A name\n:label: thm-x\n\n$$x$$\n```",
        r"It costs \$5, and `$HOME` is code.",
        '```bash\necho "$HOME" `date`\n```',
    ],
)
def test_right_markup_passes(text):
    assert lint.lint_markup(text) == []


def test_a_printed_value_that_is_not_the_recorded_one_is_seen(executed):
    changed = copy.deepcopy(executed)
    cell = next(c for c in changed["cells"] if c["source"] == demo.RECORD)
    line = next(o for o in cell["outputs"] if o["output_type"] == "stream")
    assert "demo.mean = 0." in line["text"]
    line["text"] = line["text"].replace("demo.mean = 0.", "demo.mean = 1.")
    assert any("does not print its record as it is: demo.mean = 0." in p for p in findings(changed))


@pytest.mark.parametrize(("call", "end"), [("record_rate", "n = 10)"), ("record_mean", "mean of 3)")])
def test_a_rate_and_a_mean_are_printed_with_their_limits(call, end):
    limits = {"demo.x": 0.5, "demo.x.low": 0.25, "demo.x.high": 0.75}

    def cell(text: str) -> Notebook:
        outputs = [{"output_type": "stream", "name": "stdout", "text": text}]
        outputs += [
            {
                "output_type": "display_data",
                "data": {"application/papermill.record/text/plain": repr(value)},
                "metadata": {
                    "scrapbook": {"name": name, "mime_prefix": "application/papermill.record/"},
                    "record": {"digits": 2, "rtol": 1e-6, "kind": "float64"},
                },
            }
            for name, value in limits.items()
        ]
        return {"cell_type": "code", "source": call, "metadata": {}, "execution_count": 1, "outputs": outputs}

    right = f"demo.x = 0.50 (95% interval 0.25 to 0.75, {end}\n"
    assert lint._printing_problems(cell(right)) == []
    assert lint._printing_problems(cell(right.replace("0.25", "0.35"))) != []


def test_tags_that_hide_failures_are_seen(executed):
    changed = copy.deepcopy(executed)
    changed["cells"][4]["metadata"]["tags"] = ["raises-exception"]
    assert any("raises-exception" in line for line in findings(changed))


def test_a_chapter_without_parameters_or_figure_is_seen(executed):
    changed = copy.deepcopy(executed)
    for cell in changed["cells"]:
        cell["metadata"].pop("tags", None)
        cell["outputs"] = [o for o in cell.get("outputs", []) if "figure" not in o.get("metadata", {})]
    lines = findings(changed)
    assert "has no figure" in lines
    assert "exactly one cell must be tagged 'parameters', found 0" in lines


def test_two_figures_in_one_cell_are_seen(executed):
    changed = copy.deepcopy(executed)
    for cell in changed["cells"]:
        figures = [o for o in cell.get("outputs", []) if "figure" in o.get("metadata", {})]
        cell.get("outputs", []).extend(copy.deepcopy(figures))
    assert any("more than one figure" in line for line in findings(changed))


@pytest.mark.parametrize(
    ("text", "naked"),
    [
        ("Twelve or 12 coins, since 2016.", []),
        ("Thirteen is 13.", ["13"]),
        ("A share of 3 % and 0.25.", ["3 %", "0.25"]),
        ("A population of 1,000 people.", ["1,000"]),
        ("See `0.25` and {cite:t}`Dwork2006` and {numref}`fig-13`.", []),
        ("```python\nx = 0.25\n```", []),
        ("```{admonition} Of 0.25\n:class: note-13\nInside 0.5.\n```", ["0.25", "0.5"]),
        ("```{note}\na\n```\n\ntext 99.5\n\n```{note}\nb\n```", ["99.5"]),
        ("`````{tab-set}\n:sync-group: level\n\n````{tab-item} Elementary\nOf 0.5.\n````\n`````", ["0.5"]),
        ("````{note}\n```python\nx = 0.25\n```\nbut 0.75\n````", ["0.75"]),
        ("~~~\n0.5\n~~~\n0.6", ["0.6"]),
        ("```{code-block} python\nx = 0.25\n```\nand 0.3", ["0.3"]),
        ("A [link](https://example.org/13/0.5) to 14.", ["14"]),
        ("$10^{-5}$ and $e^{0.5}$", ["0.5"]),
        ("float64 and SHA256 and x86-64 are words", ["64"]),
        ("1. first\n2. second", []),
        ("{glue:text}`a.ipynb::b.c:.2f` of 20", ["20"]),
        ("chance \\(50\\%\\)", ["50\\%"]),
        ("% a comment of 0.5\n\nWe got 0.75.", ["0.75"]),
        ("{math}`p = 0.5` and {strong}`0.75`", ["0.5", "0.75"]),
        ("It`s one thing.\n\nWe got 0.5.\n\nIt`s another.", ["0.5"]),
        ("A chance of .5, of x.5", [".5"]),
    ],
)
def test_naked_numbers_are_found_in_prose_only(text, naked):
    assert lint.lint_prose(text, []) == naked


def test_allowances_let_exactly_their_text_pass_and_must_be_needed(executed):
    allowed = [Allowance("0.5", "an input"), Allowance("77", "stale")]
    changed = edited(executed, "Lines rise.", "Lines rise by 0.5 each, not by 0.55.")
    lines = findings(changed, allowed)
    assert any("naked number 0.55" in line for line in lines)
    assert not any(line.endswith("naked number 0.5") for line in lines)
    assert "the allowance '77' is not needed" in lines


def test_pages_are_linted_too(tmp_path):
    page = tmp_path / "index.md"
    page.write_text("# A\n\nWe got 0.5 and {glue:text}`x.ipynb::y.z`.\n", encoding="utf-8")
    lines = lint.lint_pages([page], [Allowance("99", "stale")], {})
    assert lines == [
        "index.md has the naked number 0.5",
        "index.md quotes y.z of x.ipynb, which does not record it",
        "the allowance '99' of the pages is not needed",
    ]
