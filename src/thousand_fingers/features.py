"""Hand-crafted features: what somebody knew about images before the first private example was read.

Histograms of oriented gradients are due to Dalal and Triggs [DalalTriggs2005]. That a linear model on
features made by hand beats a private network trained from pixels is the finding of Tramèr and Boneh
[TramerBoneh2021]. Nothing here looks at more than one image at a time, so nothing here costs privacy.
Chapter 5 trains on them.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from thousand_fingers.validation import integer, real_array

Floats = NDArray[np.float64]


def oriented_gradients(images: ArrayLike, *, cell: int = 4, orientations: int = 8) -> Floats:
    """Return, for every cell of every image, how much edge runs in which direction.

    The slope of the grey levels is taken by central differences. Its length is shared between the two
    nearest directions (of ``orientations``, opposite ones being the same) and between the nearest cell
    centres, in proportion to nearness; square roots of the sums keep strong edges from drowning the others.

    Parameters
    ----------
    images : array-like of shape (n, height, width)
        Grey levels.
    cell : int, default 4
        Side of a cell in pixels, at least 1; height and width must be multiples of it.
    orientations : int, default 8
        Number of directions, at least 2.

    Returns
    -------
    ndarray of float64, shape (n, height // cell × width // cell × orientations)
        Not negative.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range or the cells do not fit.

    References
    ----------
    [DalalTriggs2005]

    Examples
    --------
    >>> ramp = np.tile(np.arange(8.0), (8, 1))[None]  # rises to the right: direction 0, everywhere
    >>> found = oriented_gradients(ramp, cell=4, orientations=4).reshape(2, 2, 4)
    >>> found[0, 0].round(2).tolist()
    [4.49, 0.0, 0.0, 0.0]
    """
    array = real_array("images", images, ndim=3)
    cell = integer("cell", cell, at_least=1)
    orientations = integer("orientations", orientations, at_least=2)
    n, height, width = array.shape
    if height % cell or width % cell:
        raise ValueError(f"height and width must be multiples of cell = {cell}, got {height} and {width}")
    down, right = np.zeros_like(array), np.zeros_like(array)
    down[:, 1:-1] = array[:, 2:] - array[:, :-2]
    right[:, :, 1:-1] = array[:, :, 2:] - array[:, :, :-2]
    length = np.hypot(down, right)
    direction = np.mod(np.arctan2(down, right), math.pi) / math.pi * orientations
    rows, columns = _nearness(height, cell), _nearness(width, cell)
    cells = np.empty((n, len(rows), len(columns), orientations))
    for k in range(orientations):
        turn = np.abs(direction - k)
        share = np.maximum(0, 1 - np.minimum(turn, orientations - turn))
        cells[..., k] = rows @ (length * share) @ columns.T
    return np.sqrt(cells).reshape(n, -1)


def unit_rows(rows: ArrayLike) -> Floats:
    """Return every row divided by its Euclidean length; a row of zeros stays as it is.

    Parameters
    ----------
    rows : array-like of shape (n, d)
        The rows.

    Returns
    -------
    ndarray of float64, shape (n, d)

    Raises
    ------
    TypeError, ValueError
        If the rows are not finite numbers.

    Examples
    --------
    >>> unit_rows([[3.0, 4.0], [0.0, 0.0]]).tolist()
    [[0.6, 0.8], [0.0, 0.0]]
    """
    array = real_array("rows", rows, ndim=2)
    # Squares of huge or tiny numbers overflow or vanish; a power of two taken out first changes no other bit.
    largest = np.abs(array).max(axis=1, initial=0.0, keepdims=True)
    near_one = np.ldexp(array, -np.frexp(largest)[1])
    lengths = np.linalg.norm(near_one, axis=1, keepdims=True)
    return near_one / np.where(lengths > 0, lengths, 1.0)


def _nearness(size: int, cell: int) -> Floats:
    """Return weights (cells, pixels): 1 at the centre of a cell, falling to 0 at one cell's distance."""
    centres = np.arange(cell / 2 - 0.5, size, cell)
    return np.maximum(0.0, 1 - np.abs(np.arange(size) - centres[:, None]) / cell)
