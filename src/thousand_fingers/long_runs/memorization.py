"""Chapter 1's long run: what models of several sizes remember of people who occur once, and more often."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from thousand_fingers.memorization import exposures, extract, plan_of_width, planted_corpus, train_model
from thousand_fingers.validation import integer


def model_size(part: int, *, widths: Sequence[int], seeds: int) -> dict[str, NDArray[np.generic]]:
    """Compute one part of the curve over model sizes: one width, one seed.

    Parameters
    ----------
    part : int
        Counts seeds inside widths.
    widths : sequence of int
        As in :func:`thousand_fingers.memorization.plan_of_width`.
    seeds : int
        How many per width; seed s also invents the people.

    Returns
    -------
    dict of str to ndarray
        ``exposure`` and ``recited``, shape (levels, people per level); ``parameters``.

    Raises
    ------
    TypeError, ValueError
        If there is no such part.

    Examples
    --------
    >>> model_size(3, widths=[8], seeds=4)["exposure"].shape  # doctest: +SKIP
    (6, 8)
    """
    seeds = integer("seeds", seeds, at_least=1)
    part = integer("part", part, at_least=0, at_most=len(widths) * seeds - 1)
    width, seed = widths[part // seeds], part % seeds
    planted = planted_corpus(np.random.default_rng(seed))
    plan = plan_of_width(width)
    model = train_model(planted.table, plan, seed=seed).model
    shape = len(np.unique(planted.repetitions)), -1
    return {
        "exposure": exposures(model, planted.people).reshape(shape),
        "recited": np.array(extract(model, planted.people).recited).reshape(shape),
        "parameters": np.array(plan.architecture.parameters),
    }
