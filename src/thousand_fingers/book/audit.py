"""The command ``fingers audit``: a membership audit of the reader's own model, as JSON and one figure.

It needs no checkout of the book. What it computes is in :mod:`thousand_fingers.membership_audit`, which is
imported when the command runs and not before: the machinery knows the chapters' notebooks, not their modules.
"""

from __future__ import annotations

import json
import os
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from thousand_fingers.book.project import BookError, UsageError, write_atomically

if TYPE_CHECKING:
    from thousand_fingers.membership_audit import Finding, Report

_FILES_REFUSED, _INTERRUPTED = 4, 130
_MODEL = "A model (.gguf, .safetensors or a folder) or what it said (.jsonl, .npz)."

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)


def audit(
    target: Annotated[Path, typer.Option(help=f"The model in question. {_MODEL}")],
    reference: Annotated[Path, typer.Option(help="One that has not seen the members; the same forms.")],
    members: Annotated[Path, typer.Option(help="Texts it was trained on: .jsonl, or .txt with their ids.")],
    non_members: Annotated[Path, typer.Option(help="Texts from the same pool that it was not trained on.")],
    output: Annotated[
        Path, typer.Option("--out", help="Where the report goes: this name with .json and .png.")
    ] = Path("membership_audit"),
    force: Annotated[bool, typer.Option("--force", help="Overwrite an earlier report.")] = False,
    fpr: Annotated[
        list[float] | None, typer.Option(help="False-positive rate, repeatable; 0.01 and 0.001 by default.")
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option(min=2, help="Cut longer texts before a model reads them.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the resamples behind the intervals.")] = 0,
) -> None:
    """Test your own language model: whether the texts that it was trained on show.

    The page "Audit your own model" of the book describes the files and how to read the report.
    """
    try:  # from the imports on, which take seconds
        import numpy as np

        from thousand_fingers.figures.membership_audit import report_alt, report_png
        from thousand_fingers.language_model_files import FileRefusedError
        from thousand_fingers.membership_audit import audit_files

        rates = sorted(set(fpr or (0.01, 0.001)), reverse=True)
        for rate in rates:
            if not 0 < rate <= 0.5:
                raise UsageError(f"--fpr must be > 0 and <= 0.5, got {rate}")
        report_path, figure_path = _outputs(output, force)
        with _Bars() as bars:
            report, inputs = audit_files(
                target=target,
                reference=reference,
                members=members,
                non_members=non_members,
                rng=np.random.default_rng(seed),
                fpr=rates,
                max_tokens=max_tokens,
                progress=bars.show,
            )
        about = report.as_json() | {
            "inputs": inputs,
            "seed": seed,
            "figure": {"file": figure_path.name, "alt": report_alt(report)},
        }
        text = json.dumps(about, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
        for path, data in ((figure_path, report_png(report)), (report_path, text.encode("utf-8"))):
            try:
                write_atomically(path, data)
            except OSError as error:
                raise BookError(f"cannot write {path}: {error.strerror}") from None
    except KeyboardInterrupt:
        err.print("interrupted; nothing was left half-written")
        raise typer.Exit(_INTERRUPTED) from None
    except FileRefusedError as error:
        err.print(f"[red]refused:[/] {escape(str(error))}", soft_wrap=True)
        raise typer.Exit(_FILES_REFUSED) from None
    _print(report)
    out.print(f"written: {report_path}, {figure_path}", soft_wrap=True)


def _outputs(name: Path, force: bool) -> tuple[Path, Path]:
    """Return where report and figure go; overwrite nothing but an earlier report, and that only if told to."""
    if name.suffix in (".json", ".png"):
        name = name.with_suffix("")
    if not name.name.strip("."):
        raise UsageError(f"--out must be the name of a file, got {str(name)!r}")
    paths = name.with_name(f"{name.name}.json"), name.with_name(f"{name.name}.png")
    for path, sign in zip(paths, (b'"format": "thousand-fingers/membership-audit"', b"\x89PNG"), strict=True):
        try:
            if not path.exists():
                continue
            ours = path.is_file() and sign in path.read_bytes()[:200]
        except OSError as error:
            raise UsageError(f"--out does not work, {path}: {error.strerror}") from None
        if not ours:
            raise UsageError(f"{path} is no earlier report: choose another name with --out")
        if not force:
            raise UsageError(f"{path} exists: choose another name with --out, or overwrite it with --force")
    folder = next(parent for parent in paths[0].absolute().parents if parent.exists())
    if not (folder.is_dir() and os.access(folder, os.W_OK)):  # found out before the models read for minutes
        raise BookError(f"cannot write {paths[0]}: {folder} is not a folder that may be written to")
    return paths


def _print(report: Report) -> None:
    computed = [finding for finding in report.findings if finding.roc is not None]
    table = Table("score", "area (95% interval)", box=None)
    for rate in computed[0].rates:
        if rate.point is not None:
            table.add_column(f"found at FPR {rate.fpr:.3g}", justify="right")
    table.add_column("found at FPR 0", justify="right")
    for finding in computed:
        table.add_row(finding.title, *_cells(finding))
    out.print(table)
    for finding in report.findings:
        if finding.roc is None:
            out.print(f"– {finding.title}: not computed, it {finding.missing}", soft_wrap=True)
    for rate in computed[0].rates:
        if rate.point is None:
            needed = f"{rate.needed:,}" if rate.needed < 10**12 else f"{Decimal(rate.needed):.1e}"
            out.print(
                f"– a false-positive rate of {rate.fpr:.3g} takes at least {needed} non-members",
                soft_wrap=True,
            )
    for control in report.controls:
        mark = "[red]✗[/]" if control.separates else "[green]✓[/]"
        out.print(
            f"{mark} {control.title} alone: area {control.auc:.3f} "
            f"(by chance {control.chance.low:.3f} to {control.chance.high:.3f})",
            soft_wrap=True,
        )
    for warning in report.warnings:
        out.print(f"[yellow]![/] {escape(warning)}", soft_wrap=True)
    out.print(f"[bold]{escape(report.verdict)}[/]", soft_wrap=True)


def _cells(finding: Finding) -> list[str]:
    assert finding.roc is not None
    assert finding.auc_interval is not None
    assert finding.no_false_positives is not None
    low, high = finding.auc_interval
    points = [rate.point for rate in finding.rates if rate.point is not None]
    return [
        f"{finding.roc.auc:.3f} ({low:.3f}–{high:.3f})",
        *(
            "{:.1%} ({:.1%}–{:.1%})".format(point.tpr, *point.tpr_interval)
            for point in (*points, finding.no_false_positives)
        ),
    ]


class _Bars:
    """One bar for each model that reads the texts, on a terminal only."""

    def __init__(self) -> None:
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=err,
            disable=not err.is_terminal,
        )
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> _Bars:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def show(self, what: str, done: int, of: int) -> None:
        if what not in self._tasks:
            self._tasks[what] = self._bars.add_task(f"{what} reads the texts", total=of)
        self._bars.update(self._tasks[what], completed=done)
