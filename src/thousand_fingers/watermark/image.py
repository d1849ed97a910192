"""A mark in the pixels of an image: hidden by a key, found again after what happens to images.

A *tile* of 64 by 64 pixels carries 48 bits, each as the sign of one of 48 pseudo-random patterns; a 49th pattern
without a message says where the tile begins. The tile is laid over the whole image, faintly where the image is
smooth. This is spread spectrum [Cox1997] with a periodic pattern as a reference for size and place [Kutter1998].
The reader needs the key, not the original. Here too are the things that happen to images, harmless and hostile,
among them the copy attack [Kutter2000]. Chapter 10 explains all of it.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

import numpy as np
from matplotlib import colormaps
from matplotlib.cbook import get_sample_data
from matplotlib.colors import LightSource
from numpy.typing import ArrayLike, NDArray
from PIL import Image, ImageOps
from scipy import ndimage, special, stats
from scipy.linalg import solve_triangular

from thousand_fingers.validation import choice, integer, numpy_generator, real_array, real_number

Floats = NDArray[np.float64]
Bytes = NDArray[np.uint8]
Bits = NDArray[np.bool_]
_Pixels = TypeVar("_Pixels", Bytes, Floats)

#: Side of the tile in pixels, bits in it, and the spatial frequencies (cycles per pixel) that it uses.
TILE, N_BITS, BAND = 64, 48, (0.05, 0.22)
#: Sizes, relative to the marked image, at which :func:`detect` looks for the tile unless told otherwise.
SCALES = (1.0, 0.5, 2 / 3, 0.75, 0.8, 0.9, 1.1, 1.25, 4 / 3, 1.5, 2.0)
# From here on detect looks no further.
_BEYOND_DOUBT = 1e-15
# The pattern that gives the place is this much stronger than the 48 others together.
_SYNC_SHARE = 0.7
# What the formats can hold.
_LARGEST_SIDE = {"JPEG": 65_500, "PNG": 2**31 - 1, "WEBP": 16_383}
_LUMA = np.array([0.299, 0.587, 0.114])

# --------------------------------------------------------------------------- the mark


@dataclass(frozen=True)
class Detection:
    """What :func:`detect` read.

    Parameters
    ----------
    bits : ndarray of bool, shape (48,)
        The message, if there is one. An unmarked image gives bits too: 48 fair coins.
    sync_z : float
        How well the pattern without a message fits, at its best place, in standard deviations of a wrong key.
        The largest of thousands of places: 4 is nothing unusual.
    p_value : float
        Probability, over the choice of the key, of a fit this good somewhere in an image that does not carry
        this key's mark: a union bound over all places, sizes and angles that were tried.
    scale, angle : float
        Size of this image relative to the marked one, and by how many degrees it was turned.
    offset : tuple of int
        Row and column in the tile of the image's first pixel.
    note : str
        Why nothing can be read (a flat image), or an empty text.
    """

    bits: Bits
    sync_z: float
    p_value: float
    scale: float
    angle: float
    offset: tuple[int, int]
    note: str = ""

    def matches(self, message: ArrayLike) -> int:
        """Return how many bits agree with the message; none if nothing could be read."""
        return 0 if self.note else int((self.bits == _message(message)).sum())


def patterns(key: int) -> Floats:
    """Return the patterns of a key: one for the place, then one for each bit.

    Gaussian noise is kept at the frequencies of ``BAND`` and made orthonormal. Each pattern, taken alone, points
    in a direction that is uniform among all images of that band.

    Parameters
    ----------
    key : int
        The secret, at least 0. Whoever has it can read, write and erase the mark.

    Returns
    -------
    ndarray of float64, shape (49, 64, 64)

    Raises
    ------
    ValueError
        If the key is negative.

    Examples
    --------
    >>> drawn = patterns(key=3).reshape(49, -1)
    >>> bool(np.allclose(drawn @ drawn.T, np.eye(49)))
    True
    """
    return _patterns(integer("key", key, at_least=0)).copy()


@lru_cache(maxsize=32)
def _patterns(key: int) -> Floats:
    noise = np.random.default_rng(key).standard_normal((N_BITS + 1, TILE, TILE))
    spectra = np.fft.rfft2(noise) * _band_mask()[:, : TILE // 2 + 1]
    # The half of the spectrum that is kept stands for both halves, except in the first column.
    half = spectra[:, _band_mask()[:, : TILE // 2 + 1]]
    weight = np.sqrt(np.where(np.nonzero(_band_mask()[:, : TILE // 2 + 1])[1] == 0, 1, 2)) / TILE
    triangle = np.linalg.qr(np.concatenate([half.real * weight, half.imag * weight], axis=1).T, mode="r")
    triangle *= np.sign(np.diag(triangle))[:, None]
    flat = solve_triangular(triangle, spectra.reshape(N_BITS + 1, -1), trans="T")
    return np.fft.irfft2(flat.reshape(spectra.shape), s=(TILE, TILE))


@lru_cache(maxsize=1)
def _band_mask() -> Bits:
    frequency = np.hypot(*np.meshgrid(*[np.fft.fftfreq(TILE)] * 2, indexing="ij"))
    return (BAND[0] < frequency) & (frequency < BAND[1])


def message_tile(message: ArrayLike, *, key: int) -> Floats:
    """Return the tile that carries a message.

    Parameters
    ----------
    message : array-like of bool, shape (48,)
        The bits; zeros and ones are accepted.
    key : int
        As in :func:`patterns`.

    Returns
    -------
    ndarray of float64, shape (64, 64)
        With standard deviation 1.

    Raises
    ------
    ValueError
        If the message has not 48 bits or the key is negative.

    Examples
    --------
    >>> tile = message_tile(np.arange(48) % 2, key=3)
    >>> tile.shape, round(float(tile.std()), 6)
    ((64, 64), 1.0)
    """
    bits = _message(message)
    sync, *carriers = _patterns(integer("key", key, at_least=0))
    tile = _SYNC_SHARE * np.sqrt(N_BITS) * sync + np.tensordot(np.where(bits, 1.0, -1.0), carriers, axes=1)
    return np.asarray(tile / tile.std())


def embed(image: _Pixels, message: ArrayLike, *, key: int, strength: float) -> _Pixels:
    """Mark an image.

    Parameters
    ----------
    image : ndarray of shape (height, width) or (height, width, 3)
        Grey or RGB: uint8, or floats from 0 to 1. At least one tile, 64 pixels, in both directions. It is left
        as it is.
    message : array-like of bool, shape (48,)
        The bits.
    key : int
        As in :func:`patterns`.
    strength : float
        Standard deviation of the mark, in levels out of 255, where the image's own local one is about 7.

    Returns
    -------
    ndarray
        The marked image, of the same shape and type.

    Raises
    ------
    TypeError
        If the image holds neither uint8 nor floats.
    ValueError
        If the image has another shape or range or is too small, or another argument is out of range.

    Examples
    --------
    >>> grey, message = np.full((128, 128), 0.5), np.arange(48) % 2
    >>> detect(embed(grey, message, key=3, strength=2.0), key=3).matches(message)
    48
    """
    real_number("strength", strength, above=0)
    return add_tile(image, message_tile(message, key=key), strength)


def add_tile(image: _Pixels, tile: ArrayLike, strength: float) -> _Pixels:
    """Lay a tile over an image, more of it where the image is busy.

    :func:`embed` does this with a message's tile. Whoever has got hold of a tile otherwise
    (:func:`estimate_tile`) can add it to any image, or take it away with a negative strength.

    Parameters
    ----------
    image : ndarray
        As in :func:`embed`.
    tile : array-like of shape (64, 64)
        Usually with standard deviation 1.
    strength : float
        As in :func:`embed`, of either sign.

    Returns
    -------
    ndarray
        Of the image's shape and type.

    Raises
    ------
    TypeError, ValueError
        As in :func:`embed`.

    Examples
    --------
    >>> flat = np.full((64, 64), 100, dtype=np.uint8)
    >>> np.unique(add_tile(flat, np.ones((64, 64)), 5.0))  # 0.4 of it on a flat image
    array([102], dtype=uint8)
    """
    levels = _levels(image)
    height, width = _large_enough(levels)
    pattern = real_array("tile", tile, shape=(TILE, TILE))
    real_number("strength", strength)
    mask = np.clip(0.4 + _local_sd(_luma(levels)) / 12, 0.4, 2.0)
    mark = strength * mask * np.tile(pattern, (-(-height // TILE), -(-width // TILE)))[:height, :width]
    return _like(image, levels + (mark if levels.ndim == 2 else mark[..., None]))


def detect(
    image: Bytes | Floats, *, key: int, scales: Sequence[float] = SCALES, angles: Sequence[float] = (0.0,)
) -> Detection:
    """Read the mark of a key, without the original.

    For each size and angle in turn the image is brought back, its smooth part taken away, the rest divided by
    its local spread and folded modulo the tile, so that all tiles add up. The best fit of the pattern for the
    place, over all 4,096 places and all candidates (or up to the first one that leaves no doubt), decides where
    the 48 signs are read. The signs play no part in that choice. Hence the two exact statements for an image that
    was made without knowing the key: the number of bits that match any given message is Binomial(48, 1/2)
    (:func:`match_p_value`), and the fit at one place is a coordinate of a uniform direction, which gives
    ``p_value``.

    Parameters
    ----------
    image : ndarray
        As in :func:`embed`.
    key : int
        As in :func:`patterns`.
    scales : sequence of float
        Sizes, relative to the marked image, at which to look. One that lies between two of them by more than
        about half a percent is not found.
    angles : sequence of float
        Turns, in degrees, to look for.

    Returns
    -------
    Detection
        Never text: 48 bits of an unmarked image are not a name.

    Raises
    ------
    TypeError, ValueError
        As in :func:`embed`; also if the image is smaller than a tile at every size.

    Examples
    --------
    >>> noise = np.random.default_rng(0).uniform(size=(96, 96))
    >>> found = detect(noise, key=3, scales=[1.0])
    >>> found.p_value > 0.001, found.bits.shape
    (True, (48,))
    """
    luma = _luma(_levels(image))
    sizes = real_array("scales", scales, ndim=1, at_least=0.1, at_most=10.0)
    turns = real_array("angles", angles, ndim=1, at_least=-180.0, at_most=180.0)
    sync, *carriers = _patterns(integer("key", key, at_least=0))
    shapes = {float(s): (round(luma.shape[0] / s), round(luma.shape[1] / s)) for s in sizes}
    shapes = {scale: shape for scale, shape in shapes.items() if min(shape) >= TILE}
    if not shapes:
        raise ValueError(f"image must hold a tile of {TILE} pixels at some scale, got shape {luma.shape}")
    places = TILE**2 * len(shapes) * len(turns)
    wanted = np.fft.fft2(sync).conj()
    best = Detection(
        np.zeros(N_BITS, dtype=bool), 0.0, 1.0, 1.0, 0.0, (0, 0), "the image is flat: nothing to read"
    )
    for angle in turns:
        turned = luma if angle == 0 else ndimage.rotate(luma, -angle, reshape=False, order=1, mode="reflect")
        for scale, shape in shapes.items():
            folded = _fold(_residual(_resize(turned, *shape)))
            spectrum = np.fft.fft2(folded) * _band_mask()
            length = np.linalg.norm(spectrum) / TILE
            if length < 1e-9:
                continue
            fit = np.fft.ifft2(spectrum * wanted).real / length
            row, column = (int(i) for i in np.unravel_index(fit.argmax(), fit.shape))
            z, tail = _fit_of_a_wrong_key(float(fit[row, column]))
            if best.note or z > best.sync_z:
                aligned = np.roll(folded, (-row, -column), axis=(0, 1))
                bits = np.tensordot(carriers, aligned, axes=2) > 0
                offset = (-row % TILE, -column % TILE)
                best = Detection(bits, z, min(1.0, places * tail), scale, float(angle), offset)
            if best.p_value < _BEYOND_DOUBT:
                return best
    return best


def _fit_of_a_wrong_key(cosine: float) -> tuple[float, float]:
    """Return a cosine in standard deviations of a wrong key's, and how often that one is as large or larger."""
    dimension = int(_band_mask().sum())
    beyond = 0.5 * float(special.betainc((dimension - 1) / 2, 0.5, max(1 - cosine**2, 0.0)))
    return cosine * dimension**0.5, beyond if cosine > 0 else 1 - beyond


def match_p_value(matches: int, n_bits: int = N_BITS) -> float:
    """Return the probability that fair coins match a message in so many bits or more, exactly.

    Parameters
    ----------
    matches : int
        From 0 to ``n_bits``.
    n_bits : int, default 48
        Length of the message.

    Returns
    -------
    float

    Raises
    ------
    ValueError
        If an argument is out of range.

    Examples
    --------
    >>> match_p_value(48) == 2.0**-48
    True
    """
    integer("n_bits", n_bits, at_least=1)
    return float(stats.binom.sf(integer("matches", matches, at_least=0, at_most=n_bits) - 1, n_bits, 0.5))


def match_threshold(false_positive_rate: float, n_bits: int = N_BITS) -> int | None:
    """Return the smallest number of matches that fair coins reach no more often than allowed.

    Parameters
    ----------
    false_positive_rate : float
        In (0, 1), for one image and one message.
    n_bits : int, default 48
        Length of the message.

    Returns
    -------
    int or None
        ``None`` if even a match of all bits is too likely.

    Raises
    ------
    ValueError
        If an argument is out of range.

    Examples
    --------
    >>> [match_threshold(rate) for rate in (1e-2, 1e-3, 1e-6, 1e-9)]
    [33, 36, 41, 44]
    >>> match_threshold(1e-6, n_bits=8) is None
    True
    """
    allowed = real_number("false_positive_rate", false_positive_rate, above=0, below=1)
    integer("n_bits", n_bits, at_least=1)
    enough = np.flatnonzero(stats.binom.sf(np.arange(n_bits + 1) - 1, n_bits, 0.5) <= allowed)
    return int(enough[0]) if enough.size else None


def psnr(image: Bytes | Floats, original: Bytes | Floats) -> float:
    """Return the peak signal-to-noise ratio of an image, in decibels.

    Parameters
    ----------
    image, original : ndarray
        As in :func:`embed`, both of one shape.

    Returns
    -------
    float
        ``inf`` if they are equal.

    Raises
    ------
    TypeError, ValueError
        As in :func:`embed`, or if the shapes differ.

    Examples
    --------
    >>> round(psnr(np.full((8, 8), 101, np.uint8), np.full((8, 8), 100, np.uint8)), 2)  # 20 log10 255
    48.13
    """
    difference = _levels(image), _levels(original)
    if difference[0].shape != difference[1].shape:
        raise ValueError(
            f"image must have the original's shape {difference[1].shape}, got {difference[0].shape}"
        )
    error = float(np.mean((difference[0] - difference[1]) ** 2))
    return float("inf") if error == 0 else float(10 * np.log10(255.0**2 / error))


# --------------------------------------------------------------------------- what happens to images


def encode(image: Bytes, file_format: str = "JPEG", *, quality: int = 90, subsampling: int = 2) -> bytes:
    """Return the bytes of an image file.

    Parameters
    ----------
    image : ndarray of uint8
        Grey or RGB.
    file_format : {"JPEG", "PNG", "WEBP"}, default "JPEG"
        PNG is lossless, the others not.
    quality : int, default 90
        From 1 to 100; PNG ignores it.
    subsampling : {2, 1, 0}, default 2
        Of JPEG's colour: 2 is 4:2:0, the usual one; 1 is 4:2:2, 0 is 4:4:4.

    Returns
    -------
    bytes
        Without metadata.

    Raises
    ------
    TypeError
        If the image does not hold uint8.
    ValueError
        If an argument is out of range.

    Examples
    --------
    >>> grey = np.full((64, 64), 7, dtype=np.uint8)
    >>> bool((decode(encode(grey, "PNG")) == grey).all())
    True
    """
    choice("file_format", file_format, ("JPEG", "PNG", "WEBP"))
    integer("quality", quality, at_least=1, at_most=100)
    choice("subsampling", subsampling, (2, 1, 0))
    options = {
        "PNG": {},
        "JPEG": {"quality": quality, "subsampling": subsampling},
        "WEBP": {"quality": quality},
    }
    picture, limit = _picture(image), _LARGEST_SIDE[file_format]
    if max(picture.size) > limit:
        raise ValueError(
            f"image must have at most {limit} pixels a side for {file_format}, got {picture.size}"
        )
    file = io.BytesIO()
    picture.save(file, file_format, **options[file_format])
    return file.getvalue()


def decode(data: bytes) -> Bytes:
    """Return the pixels of an image file.

    Parameters
    ----------
    data : bytes
        JPEG, PNG or WebP, of at most 8 bits a channel. An image that is stored lying, with a note how to turn it,
        is turned upright; what is transparent is laid on white.

    Returns
    -------
    ndarray of uint8, shape (height, width) or (height, width, 3)

    Raises
    ------
    ValueError
        If this is no such file, it is broken, or it has more pixels than Pillow's limit.

    Examples
    --------
    >>> decode(encode(np.zeros((9, 8, 3), np.uint8), "PNG")).shape
    (9, 8, 3)
    """
    try:
        with Image.open(io.BytesIO(data), formats=tuple(_LARGEST_SIDE)) as opened:
            picture = ImageOps.exif_transpose(opened)
    except (OSError, SyntaxError, TypeError, ValueError, Image.DecompressionBombError) as error:
        raise ValueError(f"data must be a JPEG, PNG or WebP file that can be read: {error}") from None
    if picture.mode.startswith(("I", "F")):
        raise ValueError(f"data must have at most 8 bits a channel, got Pillow's mode {picture.mode}")
    if picture.has_transparency_data:
        drawn = picture.convert("RGBA")
        picture = Image.alpha_composite(Image.new("RGBA", drawn.size, "white"), drawn)
    return np.asarray(picture.convert("L" if picture.mode == "L" else "RGB"))


def resize(image: Bytes, factor: float) -> Bytes:
    """Return the image made larger or smaller, with Pillow's bicubic filter.

    Parameters
    ----------
    image : ndarray of uint8
        Grey or RGB.
    factor : float
        From 0.01 to 100.

    Returns
    -------
    ndarray of uint8

    Raises
    ------
    TypeError
        If the image does not hold uint8.
    ValueError
        If an argument is out of range.

    Examples
    --------
    >>> resize(np.zeros((100, 81), np.uint8), 0.5).shape
    (50, 40)
    """
    real_number("factor", factor, at_least=0.01, at_most=100)
    picture = _picture(image)
    width, height = (max(1, round(side * factor)) for side in picture.size)
    return np.asarray(picture.resize((width, height), Image.Resampling.BICUBIC))


def crop(image: Bytes, keep: float, *, rng: np.random.Generator) -> Bytes:
    """Cut out a random part with the proportions of the whole.

    Parameters
    ----------
    image : ndarray of uint8
        Grey or RGB.
    keep : float
        Share of the area that is kept, in (0, 1].
    rng : numpy.random.Generator
        Chooses the place.

    Returns
    -------
    ndarray of uint8

    Raises
    ------
    TypeError
        If the image does not hold uint8 or ``rng`` is no generator.
    ValueError
        If an argument is out of range.

    Examples
    --------
    >>> crop(np.zeros((100, 80), np.uint8), 0.25, rng=np.random.default_rng(0)).shape
    (50, 40)
    """
    height, width = _picture(image).size[::-1]
    side = np.sqrt(real_number("keep", keep, above=0, at_most=1))
    numpy_generator("rng", rng)
    rows, columns = max(1, round(height * side)), max(1, round(width * side))
    top, left = int(rng.integers(height - rows + 1)), int(rng.integers(width - columns + 1))
    return image[top : top + rows, left : left + columns].copy()


def rotate(image: Bytes, degrees: float) -> Bytes:
    """Turn an image about its centre, keeping its size; the corners become black.

    Parameters
    ----------
    image : ndarray of uint8
        Grey or RGB.
    degrees : float
        Counter-clockwise.

    Returns
    -------
    ndarray of uint8

    Raises
    ------
    TypeError
        If the image does not hold uint8.
    ValueError
        If an argument is out of range.

    Examples
    --------
    >>> rotate(np.full((9, 9), 5, np.uint8), 45.0)[0, 0]
    np.uint8(0)
    """
    real_number("degrees", degrees)
    return np.asarray(_picture(image).rotate(degrees, Image.Resampling.BICUBIC))


def screenshot(image: Bytes, *, rng: np.random.Generator) -> Bytes:
    """Show an image at nine tenths of its size in a window, and cut it out of the screen roughly.

    What is left is neither at the old size nor at the old place, has a grey border, has gone through a JPEG of
    quality 80, and holds nothing of the old file but its looks.

    Parameters
    ----------
    image : ndarray of uint8
        Grey or RGB.
    rng : numpy.random.Generator
        Chooses the place of the window and the hand's imprecision.

    Returns
    -------
    ndarray of uint8

    Raises
    ------
    TypeError
        If the image does not hold uint8 or ``rng`` is no generator.
    ValueError
        If it has another shape.

    Examples
    --------
    >>> screenshot(np.zeros((100, 100, 3), np.uint8), rng=np.random.default_rng(0)).shape[2]
    3
    """
    shown = resize(image, 0.9)
    top, left, *border = numpy_generator("rng", rng).integers(5, 20, size=6)
    margins = [(top + 20, 40), (left + 20, 40), (0, 0)][: image.ndim]
    screen = np.pad(shown, margins, constant_values=235)
    rows = slice(top + 20 - border[0], top + 20 + shown.shape[0] + border[1])
    columns = slice(left + 20 - border[2], left + 20 + shown.shape[1] + border[3])
    return decode(encode(screen[rows, columns], quality=80))


@dataclass(frozen=True)
class Photograph:
    """A photograph of a screen.

    Parameters
    ----------
    image : ndarray of uint8, shape (height, width, 3)
        What the camera stored.
    corners : ndarray of float64, shape (4, 2)
        Where the corners of the shown image lie in it, as (x, y): top left, top right, bottom right, bottom left.
    """

    image: Bytes
    corners: Floats


def photograph_screen(
    image: Bytes, *, tilt: float, rng: np.random.Generator, sharpness: float = 1.6, noise_std: float = 4.0
) -> Photograph:
    """Simulate a photograph of a screen that shows an image: perspective, moiré, blur, uneven light, noise.

    A pixel of the screen is three stripes, red, green and blue, with a dark line below. A pixel of the camera
    averages what reaches it along 3 by 3 rays. The two grids do not agree, and their beat is the moiré. Then
    the lens blurs and darkens the edges, the sensor adds noise, and a JPEG of quality 90 is stored.

    Parameters
    ----------
    image : ndarray of uint8
        Grey or RGB.
    tilt : float
        How crooked the camera was held: each corner moves by up to this share of the image's side; below 0.3.
    rng : numpy.random.Generator
        Moves the corners and makes the noise.
    sharpness : float, default 1.6
        Camera pixels per screen pixel, from 0.5 to 4.
    noise_std : float, default 4.0
        Of the sensor, in levels out of 255.

    Returns
    -------
    Photograph

    Raises
    ------
    TypeError
        If the image does not hold uint8 or ``rng`` is no generator.
    ValueError
        If an argument is out of range.

    Examples
    --------
    >>> screen = np.full((80, 100, 3), 200, dtype=np.uint8)
    >>> photograph_screen(screen, tilt=0.05, rng=np.random.default_rng(0)).image.shape
    (141, 176, 3)
    """
    shown = np.asarray(_picture(image).convert("RGB"), dtype=float)
    real_number("tilt", tilt, at_least=0, below=0.3)
    real_number("sharpness", sharpness, at_least=0.5, at_most=4)
    real_number("noise_std", noise_std, at_least=0)
    numpy_generator("rng", rng)
    size = np.array([shown.shape[1], shown.shape[0]], dtype=float)
    unit = np.array([[0, 0], [1, 0], [1, 1], [0, 1]], dtype=float)
    moved = unit + rng.uniform(0, tilt, (4, 2)) * (1 - 2 * unit)
    corners = (0.1 + 0.9 * moved) * size * sharpness  # of a frame with a margin of a tenth all round
    width, height = (int(n) for n in np.rint(size * 1.1 * sharpness))
    back = _homography(corners, unit * size)
    light = np.zeros((height, width, 3))
    columns, rows = np.meshgrid(np.arange(width), np.arange(height))
    for dx, dy in (np.argwhere(np.ones((3, 3))) + 0.5) / 3:
        x, y, depth = np.tensordot(back, [columns + dx, rows + dy, np.ones(columns.shape)], axes=1)
        x, y = x / depth, y / depth
        lit = (x >= 0) & (x < size[0]) & (y >= 0) & (y < size[1]) & (y % 1 < 0.85)
        stripe = (3 * (x % 1)).astype(int).clip(0, 2)[lit]
        at = np.nonzero(lit)
        light[(*at, stripe)] += shown[y[lit].astype(int), x[lit].astype(int), stripe]
    light *= 3 / (9 * 0.85)
    light = ndimage.gaussian_filter(light, (0.6, 0.6, 0))
    from_centre = (columns / width - 0.5) ** 2 + (rows / height - 0.5) ** 2
    light = light * (1 - 0.4 * from_centre)[..., None] + rng.normal(0, noise_std, light.shape)
    stored = decode(encode(np.rint(light.clip(0, 255)).astype(np.uint8)))
    return Photograph(stored, corners)


def rectify(image: Bytes, corners: ArrayLike, shape: tuple[int, int]) -> Bytes:
    """Undo a perspective, given where the corners of the wanted part lie.

    Parameters
    ----------
    image : ndarray of uint8
        Grey or RGB.
    corners : array-like of shape (4, 2)
        As in :class:`Photograph`, for example clicked by hand.
    shape : tuple of int
        Height and width of the result.

    Returns
    -------
    ndarray of uint8

    Raises
    ------
    TypeError
        If the image does not hold uint8.
    ValueError
        If the corners do not go round a convex shape, or another argument is out of range.

    Examples
    --------
    >>> picture = 25 * np.eye(9, dtype=np.uint8)
    >>> same = rectify(picture, [[0, 0], [9, 0], [9, 9], [0, 9]], (9, 9))
    >>> abs(same.astype(int) - picture).max() <= 1  # Pillow cuts off what is behind the point
    np.True_
    """
    picture = _picture(image)
    if np.shape(shape) != (2,):
        raise ValueError(f"shape must be a height and a width, got {shape!r}")
    height, width = (integer("shape", side, at_least=1) for side in shape)
    wanted = np.array([[0, 0], [width, 0], [width, height], [0, height]], dtype=float)
    found = real_array("corners", corners, shape=(4, 2))
    sides = np.roll(found, -1, axis=0) - found
    turns = sides[:, 0] * np.roll(sides[:, 1], -1) - sides[:, 1] * np.roll(sides[:, 0], -1)
    if not (turns > 0).all():
        raise ValueError("corners must go round a convex shape, clockwise from the top left")
    to_image = _homography(wanted, found)
    coefficients = (to_image / to_image[2, 2]).ravel()[:8]
    return np.asarray(
        picture.transform(
            (width, height), Image.Transform.PERSPECTIVE, tuple(coefficients), Image.Resampling.BICUBIC
        )
    )


def _homography(source: Floats, target: Floats) -> Floats:
    """Return the 3 by 3 matrix of the projective map that sends four points to four points."""
    rows = []
    for (x, y), (u, v) in zip(source, target, strict=True):
        rows += [[x, y, 1, 0, 0, 0, -u * x, -u * y, -u], [0, 0, 0, x, y, 1, -v * x, -v * y, -v]]
    return np.asarray(np.linalg.svd(np.array(rows))[2][-1].reshape(3, 3))


# --------------------------------------------------------------------------- attackers without the key


def hidden_period(image: Bytes | Floats, lags: Sequence[int] = range(16, 101)) -> tuple[int, Floats]:
    """Look for something that repeats, in both directions: what a tiled mark cannot hide.

    Parameters
    ----------
    image : ndarray
        As in :func:`embed`.
    lags : sequence of int
        Shifts, in pixels, to try; each smaller than the image.

    Returns
    -------
    best : int
        The shift at which the image, without its smooth part, is most like itself.
    correlation : ndarray of float64, shape (n_lags,)
        Mean of the correlations at this shift to the side and down.

    Raises
    ------
    TypeError, ValueError
        As in :func:`embed`; also if there is no shift, one is too large, or the image is flat.

    Examples
    --------
    >>> marked = embed(np.full((256, 256), 0.5), np.zeros(48), key=3, strength=2.0)
    >>> hidden_period(marked, range(40, 90))[0]
    64
    """
    residual = _residual(_luma(_levels(image)))
    shifts = [integer("lags", lag, at_least=1, at_most=min(residual.shape) - 1) for lag in lags]
    if not shifts:
        raise ValueError("lags must hold at least one shift, got none")
    power = float((residual**2).mean())
    if not power > 1e-18:
        raise ValueError("image must not be flat: there is nothing that repeats")
    correlation = np.array(
        [
            ((residual[:, lag:] * residual[:, :-lag]).mean() + (residual[lag:] * residual[:-lag]).mean())
            / (2 * power)
            for lag in shifts
        ]
    )
    return shifts[int(correlation.argmax())], correlation


def estimate_tile(image: Bytes | Floats) -> Floats:
    """Estimate the tile of a marked image without the key: take away the smooth part, fold, average.

    Parameters
    ----------
    image : ndarray
        As in :func:`embed`; it starts where its first tile starts, or the estimate is a shifted one, which does
        the attacker no harm.

    Returns
    -------
    ndarray of float64, shape (64, 64)
        With standard deviation 1, ready for :func:`add_tile`.

    Raises
    ------
    TypeError, ValueError
        As in :func:`embed`, or if the image is flat.

    Examples
    --------
    >>> marked = embed(np.full((256, 256), 0.5), np.zeros(48), key=3, strength=2.0)
    >>> bool(np.corrcoef(estimate_tile(marked).ravel(), message_tile(np.zeros(48), key=3).ravel())[0, 1] > 0.9)
    True
    """
    levels = _levels(image)
    _large_enough(levels)
    folded = np.fft.ifft2(np.fft.fft2(_fold(_residual(_luma(levels)))) * _band_mask()).real
    if not folded.std() > 1e-9:
        raise ValueError("image must not be flat: there is nothing to estimate")
    return np.asarray(folded / folded.std())


# --------------------------------------------------------------------------- pictures to mark


def sample_pictures() -> dict[str, Bytes]:
    """Return four pictures that need no download.

    Two are maps of real terrain whose heights arrive with Matplotlib (a fault near Jacksboro, Tennessee, and the
    coast around Vancouver Island), interpolated and lit from the north-west; one is a drawing from the same
    folder, enlarged, with large flat areas; one is generated: clouds whose amplitude falls with frequency as that
    of landscapes does.

    Returns
    -------
    dict of str to ndarray of uint8, shape (height, width, 3)

    Examples
    --------
    >>> {name: picture.shape for name, picture in sample_pictures().items()}
    {'terrain': (516, 604, 3), 'coast': (455, 600, 3), 'drawing': (512, 512, 3), 'clouds': (480, 640, 3)}
    """
    with np.load(get_sample_data("jacksboro_fault_dem.npz", asfileobj=False)) as data:
        terrain = _relief(data["elevation"], 1.5, "gist_earth", 0.15)
    with np.load(get_sample_data("topobathy.npz", asfileobj=False)) as data:
        coast = _relief(data["topo"][::-1], 5.0, "terrain", 0.02)
    with Image.open(get_sample_data("Minduka_Present_Blue_Pack.png", asfileobj=False)) as opened:
        drawn = opened.convert("RGBA").resize((512, 512), Image.Resampling.BICUBIC)
    drawing = Image.alpha_composite(Image.new("RGBA", drawn.size, "white"), drawn).convert("RGB")
    clouds = _clouds((480, 640), np.random.default_rng(10))
    return {"terrain": terrain, "coast": coast, "drawing": np.asarray(drawing), "clouds": clouds}


def _relief(heights: NDArray[np.generic], zoom: float, colours: str, steepness: float) -> Bytes:
    fine = ndimage.zoom(heights.astype(float), zoom)
    shaded = LightSource(azdeg=315, altdeg=45).shade(
        fine, cmap=colormaps[colours], blend_mode="soft", vert_exag=steepness
    )
    return np.rint(255 * shaded[..., :3]).astype(np.uint8)


def _clouds(shape: tuple[int, int], rng: np.random.Generator) -> Bytes:
    frequency = np.hypot(*np.meshgrid(*map(np.fft.fftfreq, shape), indexing="ij"))
    frequency[0, 0] = np.inf
    field = np.fft.ifft2(np.fft.fft2(rng.standard_normal(shape)) / frequency**1.3).real
    white = special.expit(2 * field / field.std())[..., None]
    sky = np.array([70.0, 120.0, 190.0])
    return np.rint(sky + white * (245 - sky) + rng.normal(0, 1.5, (*shape, 1))).clip(0, 255).astype(np.uint8)


# --------------------------------------------------------------------------- pixels


def _message(message: ArrayLike) -> Bits:
    bits = real_array("message", message, shape=(N_BITS,))
    if not np.isin(bits, (0, 1)).all():
        raise ValueError("message must hold bits, 0 or 1")
    return bits.astype(bool)


def _levels(image: Bytes | Floats) -> Floats:
    """Return a checked image as floats from 0 to 255."""
    pixels = np.asarray(image)
    if pixels.ndim not in (2, 3) or (pixels.ndim == 3 and pixels.shape[2] != 3):
        raise ValueError(f"image must have shape (height, width) or (height, width, 3), got {pixels.shape}")
    if pixels.dtype == np.uint8:
        if pixels.size == 0:
            raise ValueError(f"image must not be empty, got shape {pixels.shape}")
        return pixels.astype(np.float64)
    if pixels.dtype.kind != "f":
        raise TypeError(f"image must hold uint8, or floats from 0 to 1, got dtype {pixels.dtype}")
    return 255.0 * real_array("image", pixels, at_least=0.0, at_most=1.0)


def _like(image: _Pixels, levels: Floats) -> _Pixels:
    """Return floats from 0 to 255 in the type and range of ``image``."""
    clipped, kind = levels.clip(0, 255), np.asarray(image).dtype
    if kind == np.uint8:
        return np.rint(clipped).astype(np.uint8)
    return (clipped / 255).astype(kind)


def _picture(image: Bytes) -> Image.Image:
    pixels = np.asarray(image)
    if pixels.dtype != np.uint8:
        raise TypeError(f"image must hold uint8, got dtype {pixels.dtype}")
    _levels(pixels)
    return Image.fromarray(np.ascontiguousarray(pixels))


def _large_enough(levels: Floats) -> tuple[int, int]:
    height, width = levels.shape[:2]
    if min(height, width) < TILE:
        raise ValueError(f"image must have at least {TILE} by {TILE} pixels, got {height} by {width}")
    return height, width


def _luma(levels: Floats) -> Floats:
    return levels if levels.ndim == 2 else np.asarray(levels @ _LUMA)


def _local_sd(luma: Floats) -> Floats:
    mean = ndimage.uniform_filter(luma, 9)
    return np.sqrt(np.maximum(ndimage.uniform_filter(luma**2, 9) - mean**2, 0))


def _residual(luma: Floats) -> Floats:
    """Take away the smooth part and divide by the local spread, with one level as the least."""
    rest = luma - ndimage.gaussian_filter(luma, 3, truncate=3)
    power = np.maximum(ndimage.uniform_filter(rest**2, 9), 0)  # running sums leave a few -1e-14
    return np.asarray(rest / (np.sqrt(power) + 1))


def _resize(luma: Floats, height: int, width: int) -> Floats:
    if luma.shape == (height, width):
        return luma
    picture = Image.fromarray(luma.astype(np.float32))
    return np.asarray(picture.resize((width, height), Image.Resampling.BICUBIC), dtype=np.float64)


def _fold(residual: Floats) -> Floats:
    """Average all tiles, complete or cut off, on top of each other."""
    height, width = residual.shape
    padding = ((0, -height % TILE), (0, -width % TILE))
    padded = np.pad(residual, padding)
    tiles = padded.reshape(padded.shape[0] // TILE, TILE, padded.shape[1] // TILE, TILE).sum(axis=(0, 2))
    covered = np.multiply.outer(*(np.bincount(np.arange(n) % TILE, minlength=TILE) for n in (height, width)))
    return np.asarray(tiles / covered)
