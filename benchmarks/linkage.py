"""Chapter 3's scoreboard beside the plain one, and the synthetic table of full size: equal? how fast? how large?

    python benchmarks/linkage.py                    a table of full size, a hundred million ratings
    python benchmarks/linkage.py --share 0.1        a tenth of its people

"Plain" is the formula as it is written: every record of the table in turn, all its ratings compared with all
clues, here already vectorised over the table (one pass over all ratings for each clue). "Literal" is the same
without vectors, person by person, on a few people only. Both must agree with the inverted index first.
Times are CPU seconds of one thread; look at the ratios. Memory is the largest the process ever held.
"""

from __future__ import annotations

import argparse
import math
import resource
import time
from collections.abc import Callable

import numpy as np

from thousand_fingers.linkage import (
    KNOWLEDGE,
    RatingTable,
    Record,
    attack_people,
    draw_clues,
    netflix_like,
    scoreboard_rh,
    scores,
    simulate_company,
    skewed_areas,
)


def plain_scores(table: RatingTable, films: np.ndarray, clues: Record) -> np.ndarray:
    """Add up the formula with one pass over all ratings of the table for each clue."""
    total = np.zeros(table.n_users)
    for film, star, day in zip(clues.items, clues.stars, clues.days, strict=True):
        rows = np.flatnonzero(films == film)
        similarity = np.exp(-np.abs(table.half_stars[rows] / 2 - star) / 1.5)
        similarity += np.exp(-np.abs(table.days[rows] - float(day)) / 30)
        total[table.users[rows]] += similarity / math.log(max(len(rows), 2))
    return total


def literal_score(record: Record, clues: Record, support: np.ndarray) -> float:
    """Score one record as the formula is written."""
    rated = dict(zip(record.items.tolist(), zip(record.stars, record.days, strict=True), strict=True))
    total = 0.0
    for film, star, day in zip(clues.items.tolist(), clues.stars, clues.days, strict=True):
        if film in rated:
            mine = rated[film]
            similarity = math.exp(-abs(mine[0] - star) / 1.5) + math.exp(-abs(float(mine[1] - day)) / 30)
            total += similarity / math.log(max(support[film], 2))
    return total


def cpu_seconds(run: Callable[[], object]) -> float:
    before = time.process_time()
    run()
    return time.process_time() - before


def memory() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6  # Linux: kilobytes


def main(share: float, targets: int) -> None:
    start = time.process_time()
    table = netflix_like(np.random.default_rng(0), share=share)
    seconds = time.process_time() - start
    print(f"table: {table.n_users:,} people, {table.n_items:,} films, {table.n_ratings:,} ratings")
    print(f"made in {seconds:.1f} CPU s; {table.nbytes / 1e9:.2f} GB, peak of the process {memory():.2f} GB")

    rng = np.random.default_rng(1)
    people = rng.choice(np.flatnonzero(table.ratings_per_user >= 8), targets, replace=False)
    records = table.records(people)
    clues = [draw_clues(record, 8, rng, wrong=2, day_error=14) for record in records]
    two = [draw_clues(record, 2, rng, day_error=3) for record in records]
    touched = np.mean([table.support[clue.items].sum() for clue in clues])
    print(f"8 clues touch {touched:,.0f} ratings on average, {touched / table.n_ratings:.2%} of the table")
    seconds = cpu_seconds(lambda: scoreboard_rh(table, clues[0]))  # the first look also makes the codes
    print(f"first look {seconds:.1f} CPU s, with {table.codes.nbytes / 1e9:.2f} GB of codes")
    peak = memory()

    films = np.repeat(np.arange(table.n_items, dtype=np.int16), table.support)
    for clue in clues[:3]:
        difference = np.abs(scores(table, clue) - plain_scores(table, films, clue)).max()
        assert difference < 1e-12, f"scores differ by {difference}"
    few = records[:20]
    literal = [literal_score(record, clues[0], table.support) for record in few]
    difference = np.abs(scores(table, clues[0])[people[:20]] - literal).max()
    assert difference < 1e-12, f"scores differ by {difference}"
    print("equal scores: index, plain and literal, to 1e-12")

    index = min(cpu_seconds(lambda: [scoreboard_rh(table, c) for c in clues]) for _ in range(3)) / targets
    index_two = min(cpu_seconds(lambda: [scoreboard_rh(table, c) for c in two]) for _ in range(3)) / targets
    plain = min(cpu_seconds(lambda: plain_scores(table, films, clues[0])) for _ in range(2))
    literal = cpu_seconds(lambda: [literal_score(r, clues[0], table.support) for r in records])
    literal *= table.n_users / targets
    print(f"{'one target':44}{'CPU ms':>12}{'ratio':>10}")
    for name, cost in (
        ("inverted index, 8 clues, whole decision", index),
        ("inverted index, 2 clues, whole decision", index_two),
        ("plain: all ratings, once per clue, 8 clues", plain),
        ("literal: person by person (extrapolated)", literal),
    ):
        print(f"{name:44}{1e3 * cost:12.1f}{cost / index:10.1f}")
    print(f"largest memory with the index alone {peak:.2f} GB")

    print(f"\n{'knowledge':14}{'first':>9}{'claimed':>9}{'false alarms':>14}   ({targets} targets)")
    for name, knowledge in KNOWLEDGE.items():
        trials = attack_people(table, people, rng, **knowledge)
        rates = trials.found.first, trials.found.right, trials.false_alarms.wrong
        print(f"{name:14}" + "".join(f"{n / targets:{w}.3f}" for n, w in zip(rates, (9, 9, 14), strict=True)))

    areas = skewed_areas(32_038, 281_421_906, 0.44, np.random.default_rng(0))
    years = np.full(80, 1 / 80)
    seconds = cpu_seconds(lambda: simulate_company(areas, 730, np.random.default_rng(1), group_shares=years))
    print(f"\n281 million people given a birthday each, in {seconds:.1f} CPU s")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--share", type=float, default=1.0)
    parser.add_argument("--targets", type=int, default=100)
    arguments = parser.parse_args()
    main(arguments.share, arguments.targets)
