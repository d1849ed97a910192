"""The drawing of an audit's report: what each score finds, at how many false alarms."""

from __future__ import annotations

import io

import matplotlib as mpl
from matplotlib.figure import Figure

from thousand_fingers.figures.membership import curves
from thousand_fingers.membership_audit import Report
from thousand_fingers.plotting import PAGE_WIDTH, STYLE


def report_png(report: Report) -> bytes:
    """Return the curves of all computed scores on logarithmic axes, as a picture of 200 dots per inch.

    The axes begin at one false alarm among the non-members tested: nothing is known below.
    """
    attacks = {finding.title: finding.roc for finding in report.findings if finding.roc is not None}
    with mpl.rc_context(STYLE):
        drawing = Figure(figsize=(PAGE_WIDTH, 4.5))
        curves(drawing.subplots(), attacks, lowest=1 / report.non_members)
        picture = io.BytesIO()
        drawing.savefig(picture, format="png", dpi=200, metadata={"Software": None})
    return picture.getvalue()


def report_alt(report: Report) -> str:
    """Return what the picture says to a reader who does not see it."""
    areas = ", ".join(
        f"{finding.title} {finding.roc.auc:.3f}" for finding in report.findings if finding.roc is not None
    )
    return (
        f"Share of {report.members} members found against share of {report.non_members} non-members accused, "
        f"both axes logarithmic, from 1 of {report.non_members} on. Areas: {areas}. {report.verdict}"
    )
