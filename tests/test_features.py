"""Hand-made features: edges land where they are, in the direction they run, and nobody else's image matters."""

from __future__ import annotations

import numpy as np
import pytest

from thousand_fingers.features import oriented_gradients, unit_rows


def ramp(angle: float, side: int = 12) -> np.ndarray:
    """Grey levels that rise in one direction, counted from the right, downwards."""
    row, column = np.mgrid[:side, :side]
    return (np.cos(angle) * column + np.sin(angle) * row)[None] / side


@pytest.mark.parametrize("k", range(8))
def test_a_slope_falls_into_the_bin_of_its_direction(k):
    for turn in (0, np.pi):  # rising and falling are the same direction
        found = oriented_gradients(ramp(k * np.pi / 8 + turn)).reshape(9, 8)
        assert (found.argmax(axis=1) == k).all()
        others = np.delete(found, k, axis=1)
        assert others[4].max() < 1e-5  # in the middle cell, which no border touches


def test_a_slope_between_two_directions_is_shared_by_both():
    found = oriented_gradients(ramp(np.pi / 16)).reshape(9, 8)[4] ** 2
    assert found[0] == pytest.approx(found[1])
    assert found[2:].max() < 1e-12


def test_an_edge_lands_in_its_cell():
    image = np.zeros((1, 12, 12))
    image[0, 4:8, 9] = 1.0
    cells = (oriented_gradients(image) ** 2).reshape(3, 3, 8).sum(axis=2)
    assert cells.argmax() == 5
    assert cells[:, 0].max() == 0


def test_brighter_means_more_and_every_image_is_alone():
    images = np.random.default_rng(0).random((3, 8, 8))
    together = oriented_gradients(images)
    assert np.allclose(oriented_gradients(4 * images), 2 * together)
    assert np.array_equal(oriented_gradients(images[1:2])[0], together[1])
    assert together.shape == (3, 4 * 8)


def test_a_row_gets_length_one_and_zeros_stay():
    found = unit_rows([[1.0, 1.0], [0.0, 0.0], [-3.0, 0.0]])
    assert np.allclose(np.linalg.norm(found, axis=1), [1, 0, 1])


@pytest.mark.parametrize("scale", [1e-320, 1e-200, 1e-8, 1e200, 1e307])
def test_huge_and_tiny_rows_get_length_one_too(scale):
    found = unit_rows(np.array([[3.0, 4.0], [0.0, -1.0]]) * scale)
    assert np.allclose(found, [[0.6, 0.8], [0, -1]], rtol=0, atol=1e-3 if scale < 1e-300 else 1e-15)
    assert np.allclose(np.linalg.norm(found, axis=1), 1, rtol=0, atol=1e-15)


def test_ordinary_rows_are_divided_as_by_hand_to_the_last_bit():
    rows = np.random.default_rng(0).normal(size=(50, 20))
    assert np.array_equal(unit_rows(rows), rows / np.linalg.norm(rows, axis=1, keepdims=True))


@pytest.mark.parametrize(
    ("options", "message"),
    [({"cell": 5}, "multiples of cell = 5"), ({"orientations": 1}, "orientations must be >= 2")],
)
def test_wrong_arguments_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        oriented_gradients(np.zeros((1, 8, 8)), **options)
