"""Chapter 3's tables beside pycanon, anonypy and anjana: same answers? how fast?

    python benchmarks/anonymity.py                        all tables, measured in this one run
    python benchmarks/anonymity.py --peer-python PYTHON   with peers that are installed elsewhere

The peers pin older releases of NumPy and pandas than the book needs, so they live in an environment of their
own (.venv-bench-anonymity, made here from anonymity_peers/requirements.txt) and read the same tables from files.
Without it the comparison is left out, and said so. First it insists on equal answers wherever the peers are
right. Times are CPU seconds of one thread, the least of several repeats; look at the ratios.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from thousand_fingers.anonymity import Hierarchy, anonymity_report, mondrian, search_lattice
from thousand_fingers.datasets import load_adult
from thousand_fingers.tables import equivalence_classes

PEERS = Path(__file__).parent / "anonymity_peers"
HOME = Path(__file__).resolve().parents[1] / ".venv-bench-anonymity"
QUASI = ["age", "sex", "race", "marital_status"]


def peer_python() -> Path | None:
    python = HOME / "bin" / "python"
    if not (HOME / ".ready").exists():
        venv.create(HOME, with_pip=True, clear=True)
        install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        if subprocess.run([*install, "-r", PEERS / "requirements.txt"], check=False).returncode:
            return None
        (HOME / ".ready").touch()
    return python


def least_cpu_seconds(run: Callable[[], Any], repeats: int = 5) -> tuple[Any, float]:
    least = float("inf")
    for _ in range(repeats):
        before = time.process_time()
        found = run()
        least = min(least, time.process_time() - before)
    return found, least


def line(task: str, ours: float, peer: str, theirs: float, note: str) -> None:
    print(f"{task:34}{ours:10.3f}{peer:>10}{theirs:10.3f}{theirs / ours:9.0f}   {note}")


def adult_hierarchies(adult: pd.DataFrame) -> dict[str, Hierarchy]:
    return {
        "age": Hierarchy.from_rules(
            adult["age"],
            lambda a: f"from {a // 5 * 5}",
            lambda a: f"decade {a // 10}",
            lambda a: f"score {a // 20}",
            "*",
        ),
        "sex": Hierarchy.from_rules(adult["sex"], "*"),
        "race": Hierarchy.from_rules(adult["race"], lambda r: "only White" if r == "White" else "other", "*"),
        "marital_status": Hierarchy.from_rules(
            adult["marital_status"], lambda m: "married" if m.startswith("Married") else "not married", "*"
        ),
    }


def same_partition(first: np.ndarray, second: np.ndarray) -> bool:
    pairs = {*zip(first.tolist(), second.tolist(), strict=True)}
    return len(pairs) == len({*first.tolist()}) == len({*second.tolist()})


def compare(python: Path, folder: Path) -> None:
    adult = load_adult()
    adult = adult[adult["split"] == "train"].dropna().reset_index(drop=True)
    adult[[*QUASI, "occupation"]].to_csv(folder / "adult.csv", index=False)
    hierarchies = adult_hierarchies(adult)
    levels = {name: [list(own.leaves), *map(list, own.levels)] for name, own in hierarchies.items()}
    (folder / "levels.json").write_text(json.dumps(levels, default=int))
    rng = np.random.default_rng(0)
    tables = {}
    for n in (640, 2_560):  # 5 times a power of two, no ties: every half is exact and the boxes must agree
        tables[f"boxes-{n}"] = pd.DataFrame(
            {name: rng.permutation(n) * 10 + i for i, name in enumerate("xyz")}
        )
        tables[f"boxes-{n}"].to_csv(folder / f"boxes-{n}.csv", index=False)
    subprocess.run([str(python), str(PEERS / "measure.py"), str(folder)], check=True)
    peers = json.loads((folder / "peers.json").read_text())

    header = f"{'task':34}{'ours s':>10}{'peer':>10}{'peer s':>10}{'ratio':>9}"
    print(f"{header}   answers")
    report, ours = least_cpu_seconds(lambda: anonymity_report(adult, QUASI, ["occupation"]))
    secret = report.sensitive["occupation"]
    mine = {"k": report.k, "distinct l": secret.distinct_l, "t": secret.t, "alpha": secret.alpha}
    for name, value in mine.items():
        assert abs(value - peers["report"][name]) < 1e-9, (
            f"{name}: {value} here, {peers['report'][name]} there"
        )
    line(
        f"report, {len(adult):,} rows, 4 QI", ours, "pycanon", peers["report seconds"], "k, l, t, alpha equal"
    )
    for name, table in tables.items():
        release, ours = least_cpu_seconds(lambda table=table: mondrian(table, list(table), 5))
        theirs = peers["boxes"][name]
        assert same_partition(release.labels, np.array(theirs["labels"])), f"{name}: other boxes"
        line(f"Mondrian, {len(table):,} rows, 3 QI", ours, "anonypy", theirs["seconds"], "same boxes")
    found, ours = least_cpu_seconds(
        lambda: search_lattice(adult, QUASI, hierarchies, 10, suppression_limit=0.01)
    )
    theirs = peers["full domain"]
    assert theirs["k"] >= 10
    assert found.release.report().k >= 10
    note = (
        f"{found.release.sizes.size} classes, {int(found.release.suppressed.sum())} rows suppressed; theirs "
    )
    note += f"{theirs['classes']} and {len(adult) - theirs['rows']}"
    line(f"full domain, {len(adult):,} rows, k 10", ours, "anjana", theirs["seconds"], note)
    print("\nquestions with a known answer (the tests insist on ours)")
    for question, both in peers["known answers"].items():
        print(f"{question:44}right {both['right']:>8}   peer {both['peer']}")


def alone() -> None:
    rng = np.random.default_rng(0)
    n = 1_000_000
    table = pd.DataFrame(
        {"age": rng.integers(0, 90, n), "place": rng.integers(0, 100_000, n), "hours": rng.integers(0, 40, n)}
    )
    print(f"\nours alone, {n:,} rows, 3 QI: CPU seconds")
    classes, seconds = least_cpu_seconds(lambda: equivalence_classes(table, list(table)), repeats=2)
    print(f"{'classes':20}{seconds:8.2f}   {classes.n_classes:,} classes")
    for strict in (True, False):
        release, seconds = least_cpu_seconds(
            lambda strict=strict: mondrian(table, list(table), 5, strict=strict), repeats=2
        )
        name = "Mondrian, strict" if strict else "Mondrian, relaxed"
        print(
            f"{name:20}{seconds:8.2f}   {release.sizes.size:,} boxes of {release.sizes.min()} to {release.sizes.max()}"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--peer-python", type=Path, metavar="PYTHON")
    arguments = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    python = arguments.peer_python or peer_python()
    if python is None:
        print("pycanon, anonypy, anjana: left out (they could not be installed)", file=sys.stderr)
    else:
        with tempfile.TemporaryDirectory() as scratch:
            compare(python, Path(scratch))
    alone()
