"""Chapter 3's long run: Scoreboard-RH [NarayananShmatikov2008] on synthetic tables of full size."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from thousand_fingers.linkage import KNOWLEDGE, attack_people, netflix_like
from thousand_fingers.validation import integer


def full_size(part: int, *, targets: int) -> dict[str, NDArray[np.int64]]:
    """Attack a synthetic table of full size under every condition of :data:`thousand_fingers.linkage.KNOWLEDGE`.

    One part of a shipped result: each has its own table, its own targets and its own clues.

    Parameters
    ----------
    part : int
        Seed of everything, at least 0.
    targets : int
        How many people with at least 8 ratings are looked for under each condition.

    Returns
    -------
    dict of str to ndarray of int
        ``counts``, shape (6, 4): targets, those in first place alone, right claims at a threshold of 1.5, and
        false alarms about people who are not there. ``ratings``, shape (1,): ratings in the table.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range.

    Examples
    --------
    >>> full_size(0, targets=1)["counts"].shape  # doctest: +SKIP
    (6, 4)
    """
    integer("part", part, at_least=0)
    integer("targets", targets, at_least=1)
    rng = np.random.default_rng(part)
    table = netflix_like(rng)
    enough = np.flatnonzero(table.ratings_per_user >= 8)
    rows = []
    for knowledge in KNOWLEDGE.values():
        people = rng.choice(enough, targets, replace=False)
        trials = attack_people(table, people, rng, **knowledge)
        rows.append([targets, trials.found.first, trials.found.right, trials.false_alarms.wrong])
    return {"counts": np.array(rows), "ratings": np.array([table.n_ratings])}
