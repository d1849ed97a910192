"""The drawings of the section on secure aggregation in chapter 6, Federated learning.

Each function takes axes from :func:`thousand_fingers.plotting.figure` and data
that the chapter has computed, and draws them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import ArrayLike, NDArray

from thousand_fingers.plotting import DASHES, MARKERS, PALETTE


def pictures(panels: NDArray[np.object_], images: Sequence[NDArray[Any]], captions: Sequence[str]) -> None:
    """Draw square pictures in a row, each scaled to its own range, each with a line of text."""
    for panel, image, caption in zip(panels, images, captions, strict=True):
        side = round(image.size**0.5)
        panel.imshow(image.reshape(side, side), cmap="gray")
        panel.set_title(caption, fontsize=9)


def group_sizes(
    ax: Axes, sizes: ArrayLike, rates: Mapping[str, tuple[ArrayLike, ArrayLike, ArrayLike]]
) -> None:
    """Draw right guesses against the size of the group, with intervals.

    ``rates`` maps a name to rates and to the lower and upper ends of their intervals.
    """
    for i, (name, (middle, low, high)) in enumerate(rates.items()):
        middle, low, high = map(np.asarray, (middle, low, high))
        ax.errorbar(
            np.asarray(sizes) * 1.04**i,  # side by side, not on top of each other
            middle,
            [middle - low, high - middle],
            color=PALETTE[i],
            marker=MARKERS[i],
            linestyle=DASHES[i],
            capsize=3,
            label=name,
        )
    ax.axhline(0.5, color="grey", lw=0.8, ls=":")
    ax.set_xscale("log", base=2)
    ax.set_xticks(sizes, [f"{size}" for size in np.asarray(sizes)])
    ax.set(xlabel="clients in the sum", ylabel="right guesses: was this client in it?", ylim=(0.4, 1.02))
    ax.legend(loc="upper right")
