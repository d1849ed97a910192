"""What pycanon, anonypy and anjana answer on tables given as CSV, and in how many CPU seconds.

    python benchmarks/anonymity_peers/measure.py FOLDER     reads FOLDER/*.csv, writes FOLDER/peers.json

Called by benchmarks/anonymity.py; imports nothing of the book.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anjana.anonymity
import anonypy
import numpy as np
import pandas as pd
from pycanon import anonymity as pycanon

REPEATS = 2


def timed(run: Callable[[], Any]) -> tuple[Any, float]:
    least = float("inf")
    for _ in range(REPEATS):
        before = time.process_time()
        with contextlib.redirect_stdout(io.StringIO()):
            found = run()
        least = min(least, time.process_time() - before)
    return found, least


def report(table: pd.DataFrame, quasi: list[str], secret: str) -> dict[str, Any]:
    """Everything of our report that pycanon has, too."""
    return {
        "k": int(pycanon.k_anonymity(table, quasi)),
        "distinct l": int(pycanon.l_diversity(table, quasi, [secret])),
        "t": float(pycanon.t_closeness(table, quasi, [secret])),
        "alpha": float(pycanon.alpha_k_anonymity(table, quasi, [secret])[0]),
    }


def answers(table: pd.DataFrame, expected: str, run: Callable[[pd.DataFrame], Any]) -> dict[str, str]:
    try:
        found = str(run(table))
    except Exception as error:  # whatever it raises is the answer
        found = f"{type(error).__name__}: {error}"
    return {"right": expected, "peer": found[:60]}


def main(folder: Path) -> None:
    result: dict[str, Any] = {}
    adult = pd.read_csv(folder / "adult.csv")
    quasi = ["age", "sex", "race", "marital_status"]
    result["report"], result["report seconds"] = timed(lambda: report(adult, quasi, "occupation"))
    boxes = {}
    for path in sorted(folder.glob("boxes-*.csv")):
        table = pd.read_csv(path)
        own = anonypy.Mondrian(table, list(table))
        parts, seconds = timed(lambda own=own: own.partition(5))
        labels = np.empty(len(table), dtype=int)
        for i, rows in enumerate(parts):
            labels[rows] = i
        boxes[path.stem] = {"labels": labels.tolist(), "seconds": seconds}
    result["boxes"] = boxes
    levels = json.loads((folder / "levels.json").read_text())
    hierarchies = {
        name: {i: np.array(level, dtype=object) for i, level in enumerate(own)}
        for name, own in levels.items()
    }
    text = adult.astype(dict.fromkeys(quasi, object))
    found, seconds = timed(lambda: anjana.anonymity.k_anonymity(text.copy(), [], quasi, 10, 1, hierarchies))
    sizes = found.groupby(quasi).size()
    result["full domain"] = {
        "classes": len(sizes),
        "k": int(sizes.min()),
        "rows": len(found),
        "seconds": seconds,
    }
    one = ["q"]
    result["known answers"] = {
        "k of a missing value and 30, 30": answers(
            pd.DataFrame({"q": [np.nan, 30, 30]}), "1", lambda t: pycanon.k_anonymity(t, one)
        ),
        "entropy l of two equally frequent values": answers(
            pd.DataFrame({"q": [1] * 4, "s": list("aabb")}),
            "2",
            lambda t: pycanon.entropy_l_diversity(t, one, ["s"]),
        ),
        "smallest c at l = 2 of counts 3, 1": answers(
            pd.DataFrame({"q": [1] * 4, "s": list("aaab")}),
            "4",
            lambda t: pycanon.recursive_c_l_diversity(t, one, ["s"])[0],
        ),
        "rows left of six, one number missing": answers(
            pd.DataFrame({"q": [1.0, 2, np.nan, 4, 5, 6]}),
            "6",
            lambda t: sum(map(len, anonypy.Mondrian(t, one).partition(2))),
        ),
        "smallest class of three rows at k = 5": answers(
            pd.DataFrame({"q": [1, 2, 3]}),
            "refused",
            lambda t: min(map(len, anonypy.Mondrian(t, one).partition(5))),
        ),
    }
    (folder / "peers.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
