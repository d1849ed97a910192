"""The mark in the pixels: exact null distributions, what it survives, what it does not, what it refuses."""

from __future__ import annotations

import contextlib
import io
import math
import struct
import warnings
import zlib
from typing import Any

import numpy as np
import pytest
from PIL import Image
from scipy import stats

from thousand_fingers.watermark import image as im
from thousand_fingers.watermark.image import Detection, detect, embed

KEY = 7
MESSAGE = np.random.default_rng(1).integers(0, 2, 48)
PICTURES = im.sample_pictures()
DECIBEL = 40.5


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def marked_at(picture: im.Bytes, decibel: float = DECIBEL) -> im.Bytes:
    """Mark a picture as strongly as the given fidelity allows: noise power grows with the square of strength."""
    at_one = im.psnr(embed(picture, MESSAGE, key=KEY, strength=1.0), picture)
    return embed(picture, MESSAGE, key=KEY, strength=10 ** ((at_one - decibel) / 20))


MARKED = {name: marked_at(picture) for name, picture in PICTURES.items()}
everywhere = pytest.mark.parametrize("name", PICTURES)


def read(image: im.Bytes, **options: object) -> int:
    return detect(image, key=KEY, **options).matches(MESSAGE)  # type: ignore[arg-type]


# --------------------------------------------------------------------------- survives


@everywhere
def test_the_mark_is_at_least_40_decibel_away(name: str) -> None:
    assert im.psnr(MARKED[name], PICTURES[name]) >= 40


@pytest.mark.case("MRK-24")
@everywhere
def test_a_lossless_round_trip_is_exact(name: str) -> None:
    assert read(im.decode(im.encode(MARKED[name], "PNG"))) == 48


@pytest.mark.case("MRK-22")
@everywhere
@pytest.mark.parametrize("subsampling", [0, 1, 2])
@pytest.mark.parametrize("quality", [30, 75, 95])
def test_jpeg_with_any_colour_sampling(name: str, quality: int, subsampling: int) -> None:
    stored = im.encode(MARKED[name], quality=quality, subsampling=subsampling)
    assert read(im.decode(stored)) >= 46


@everywhere
def test_webp(name: str) -> None:
    assert read(im.decode(im.encode(MARKED[name], "WEBP", quality=50))) >= 46


@pytest.mark.case("MRK-25")
@everywhere
@pytest.mark.parametrize("factor", [0.5, 0.75, 1.5])
def test_resized_and_not_brought_back(name: str, factor: float) -> None:
    found = detect(im.resize(MARKED[name], factor), key=KEY)
    assert found.matches(MESSAGE) >= 46
    assert found.scale == pytest.approx(factor)


@pytest.mark.case("MRK-25")
@everywhere
def test_halved_and_enlarged_again(name: str) -> None:
    assert read(im.resize(im.resize(MARKED[name], 0.5), 2.0)) >= 46


@pytest.mark.case("MRK-26")
@everywhere
@pytest.mark.parametrize("seed", range(3))
def test_a_quarter_of_the_area_without_knowing_which(name: str, seed: int) -> None:
    assert read(im.crop(MARKED[name], 0.25, rng=rng(seed))) >= 46


@everywhere
def test_a_screenshot(name: str) -> None:
    assert read(im.screenshot(MARKED[name], rng=rng())) >= 46


@everywhere
def test_grey_and_brighter_and_noisy(name: str) -> None:
    grey = (MARKED[name] @ [0.299, 0.587, 0.114]).round().astype(np.uint8)
    assert read(grey) == 48
    assert read((MARKED[name] * 0.7).astype(np.uint8)) == 48
    noisy = MARKED[name] + rng().normal(0, 8, (*grey.shape, 1))
    assert read(noisy.clip(0, 255).astype(np.uint8)) >= 46


def test_the_offset_and_the_size_are_found() -> None:
    found = detect(MARKED["clouds"][5:, 70:], key=KEY)
    assert (found.offset, found.scale, found.angle, found.note) == ((5, 6), 1.0, 0.0, "")


@everywhere
def test_a_photograph_of_any_of_the_screens_is_read_by_its_corners(name: str) -> None:
    photograph = im.photograph_screen(MARKED[name], tilt=0.06, rng=rng(20))
    straight = im.rectify(photograph.image, photograph.corners, MARKED[name].shape[:2])
    assert read(straight, scales=[1.0]) >= 38  # worn: one in 30,000 for fair coins


@pytest.mark.parametrize("tilt", [0.0, 0.06])
def test_a_photograph_of_the_screen_needs_its_corners(tilt: float) -> None:
    photograph = im.photograph_screen(MARKED["terrain"], tilt=tilt, rng=rng(5))
    assert detect(photograph.image, key=KEY).p_value > 1e-3
    straight = im.rectify(photograph.image, photograph.corners, MARKED["terrain"].shape[:2])
    assert read(straight) >= 46


# --------------------------------------------------------------------------- does not survive


@everywhere
@pytest.mark.parametrize("degrees", [5.0, -5.0])
def test_rotation_is_not_found_unless_looked_for(name: str, degrees: float) -> None:
    turned = im.rotate(MARKED[name], degrees)
    lost = detect(turned, key=KEY)
    assert lost.matches(MESSAGE) <= 38  # one in 20,000 for fair coins
    assert lost.p_value > 1e-3
    found = detect(turned, key=KEY, scales=[1.0], angles=[-5.0, -2.5, 0.0, 2.5, 5.0])
    assert found.matches(MESSAGE) >= 46
    assert found.angle == degrees


@everywhere
def test_a_mirror_is_not_found_unless_turned_back(name: str) -> None:
    mirrored = MARKED[name][:, ::-1]
    assert detect(mirrored, key=KEY).p_value > 1e-3
    assert read(mirrored[:, ::-1]) == 48


@pytest.mark.parametrize(("name", "times"), [("terrain", 1.5), ("clouds", 2.0)])
def test_an_attacker_without_the_key_finds_the_period_and_removes_the_mark(name: str, times: float) -> None:
    assert im.hidden_period(MARKED[name])[0] == im.TILE
    clean = im.add_tile(MARKED[name], im.estimate_tile(MARKED[name]), -times * strength_of(name))
    assert detect(clean, key=KEY).matches(MESSAGE) < 41
    assert im.psnr(clean, PICTURES[name]) > 39


def strength_of(name: str) -> float:
    at_one = im.psnr(embed(PICTURES[name], MESSAGE, key=KEY, strength=1.0), PICTURES[name])
    return float(10 ** ((at_one - DECIBEL) / 20))


def test_the_copy_attack_passes_the_detector() -> None:
    stolen = im.estimate_tile(MARKED["terrain"])
    assert read(im.add_tile(PICTURES["drawing"], stolen, 1.5)) >= 46


# --------------------------------------------------------------------------- nothing to find


def test_matches_of_an_unmarked_image_are_fair_coins_over_keys() -> None:
    part = PICTURES["terrain"][:128, :128]
    found = [detect(part, key=1_000 + key, scales=[1.0]) for key in range(400)]
    counts = np.array([d.matches(MESSAGE) for d in found])
    assert abs(counts.mean() - 24) < 0.85  # five standard errors of the mean, sqrt(12/400)
    assert abs(counts.var() - 12) < 4.3  # and of the variance
    # The place's own p value is a bound: it is too small no more often than it says.
    p_values = np.array([d.p_value for d in found])
    for level in (0.05, 0.2):
        assert (p_values <= level).sum() <= stats.binom.isf(1e-6, 400, level)


@pytest.mark.parametrize("name", PICTURES)
def test_the_wrong_key_and_the_unmarked_image(name: str) -> None:
    assert detect(MARKED[name], key=KEY + 1).p_value > 1e-3
    assert detect(PICTURES[name], key=KEY).p_value > 1e-3


def test_a_fit_has_the_distribution_of_a_coordinate_of_a_uniform_direction() -> None:
    dimension = int(im._band_mask().sum())
    draws = rng().standard_normal((20_000, dimension))
    cosines = draws[:, 0] / np.linalg.norm(draws, axis=1)
    for cosine in (-0.02, 0.0, 0.05, 0.08):
        beyond = im._fit_of_a_wrong_key(cosine)[1]
        low, high = stats.binom.interval(1 - 1e-6, 20_000, beyond)
        assert low <= (cosines >= cosine).sum() <= high


def test_patterns_stay_in_their_band_and_differ_between_keys() -> None:
    drawn = im.patterns(3)
    power = np.abs(np.fft.fft2(drawn)) ** 2
    frequency = np.hypot(*np.meshgrid(np.fft.fftfreq(64), np.fft.fftfreq(64)))
    assert power[:, (frequency < 0.05) | (frequency > 0.22)].max() < 1e-18 * power.max()
    across = drawn.reshape(49, -1) @ im.patterns(4).reshape(49, -1).T
    assert np.abs(across).max() < 0.3


def test_the_patterns_handed_out_are_a_copy() -> None:
    im.patterns(3)[:] = 0
    assert im.patterns(3).any()


# --------------------------------------------------------------------------- exact thresholds


@pytest.mark.case("MRK-28")
@pytest.mark.parametrize(
    ("n_bits", "expected"),
    [(8, (8, None, None, None)), (32, (24, 26, 30, 32)), (48, (33, 36, 41, 44)), (64, (42, 45, 51, 56))],
)
def test_thresholds_by_counting(n_bits: int, expected: tuple[int | None, ...]) -> None:
    found = tuple(im.match_threshold(rate, n_bits) for rate in (1e-2, 1e-3, 1e-6, 1e-9))
    assert found == expected
    for rate, matches in zip((1e-2, 1e-3, 1e-6, 1e-9), found, strict=True):
        if matches is not None:
            tail = sum(math.comb(n_bits, k) for k in range(matches, n_bits + 1)) / 2**n_bits
            assert tail <= rate < tail + math.comb(n_bits, matches - 1) / 2**n_bits


def test_p_values_by_counting() -> None:
    for matches in range(49):
        tail = sum(math.comb(48, k) for k in range(matches, 49)) / 2**48
        assert im.match_p_value(matches) == pytest.approx(tail, rel=1e-12)


def test_psnr_by_hand() -> None:
    black, white = np.zeros((4, 4), np.uint8), np.full((4, 4), 255, np.uint8)
    assert im.psnr(black, white) == 0.0
    assert im.psnr(black, black) == math.inf
    assert im.psnr(np.full((2, 2), 0.1), np.zeros((2, 2))) == pytest.approx(20)


# --------------------------------------------------------------------------- kinds of images


@pytest.mark.case("MRK-21")
def test_the_answer_is_bits_and_probabilities_never_text() -> None:
    for data in (PICTURES["clouds"], rng().integers(0, 256, (200, 200, 3), dtype=np.uint8)):
        found = detect(data, key=KEY)
        assert isinstance(found, Detection)
        assert found.bits.dtype == bool
        assert found.bits.shape == (48,)
        assert 0 <= found.p_value <= 1
        assert math.isfinite(found.sync_z)


def test_floats_from_0_to_1_and_bytes_agree() -> None:
    picture = PICTURES["clouds"]
    as_float = embed(picture / 255, MESSAGE, key=KEY, strength=2.0)
    assert as_float.dtype == np.float64
    assert as_float.min() >= 0
    assert as_float.max() <= 1
    as_bytes = embed(picture, MESSAGE, key=KEY, strength=2.0)
    assert as_bytes.dtype == np.uint8
    assert np.abs(255 * as_float - as_bytes).max() <= 0.5 + 1e-9
    assert read(as_float) == read(as_bytes) == 48
    single = embed((picture / 255).astype(np.float32), MESSAGE, key=KEY, strength=2.0)
    assert single.dtype == np.float32


def test_a_list_of_numbers_is_an_image_too() -> None:
    numbers = np.full((64, 64), 0.5).tolist()
    assert read(embed(numbers, MESSAGE, key=KEY, strength=3.0), scales=[1.0]) >= 46  # type: ignore[type-var]


def stored(pixels: np.ndarray, file_format: str = "PNG", **options: Any) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, file_format, **options)
    return file.getvalue()


def test_a_photograph_that_was_stored_lying_is_turned_upright() -> None:
    lying = Image.Exif()
    lying[0x0112] = 6  # "turn by a quarter, clockwise"
    upright = im.decode(stored(np.rot90(MARKED["clouds"]), "JPEG", quality=95, exif=lying))
    assert upright.shape == PICTURES["clouds"].shape
    assert read(upright) >= 46


def test_what_is_transparent_is_laid_on_white() -> None:
    colours = np.full((9, 8, 4), 40, dtype=np.uint8)
    colours[..., 3] = 0
    colours[0, 0, 3] = 255
    opened = im.decode(stored(colours))
    assert opened.shape == (9, 8, 3)
    assert opened[0, 0].tolist() == [40, 40, 40]
    assert (opened[1:] == 255).all()


def test_sixteen_bits_a_channel_are_refused_and_not_cut_off() -> None:
    with pytest.raises(ValueError, match="at most 8 bits a channel"):
        im.decode(stored(np.full((9, 9), 40_000, dtype=np.uint16)))


@pytest.mark.parametrize("file_format", ["GIF", "BMP", "TIFF", "EPS"])
def test_other_formats_are_refused(file_format: str) -> None:
    with pytest.raises(ValueError, match="data must be a JPEG, PNG or WebP file"):
        im.decode(stored(np.zeros((9, 9, 3), np.uint8), file_format))


def test_a_small_file_that_claims_a_huge_image_is_refused() -> None:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    data = (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + chunk(b"IDAT", zlib.compress(b"0"))
        + chunk(b"IEND", b"")
    )
    with pytest.raises(ValueError, match="data must be"):
        im.decode(data)


@pytest.mark.parametrize("file_format", ["JPEG", "PNG", "WEBP"])
def test_a_damaged_file_is_refused_or_read_and_nothing_else(file_format: str) -> None:
    source, data = rng(), im.encode(PICTURES["clouds"][:90, :90], file_format)
    for _ in range(150):
        damaged = bytearray(data)
        for place in source.integers(0, len(data), 3):
            damaged[place] = source.integers(256)
        cut = bytes(damaged[: source.integers(len(data) + 1)])
        with warnings.catch_warnings(), contextlib.suppress(ValueError):  # any other error fails the test
            warnings.simplefilter("ignore")
            assert im.decode(cut).dtype == np.uint8


def test_grey_images_and_the_callers_array() -> None:
    grey = PICTURES["clouds"][..., 0].copy()
    before = grey.copy()
    assert read(embed(grey, MESSAGE, key=KEY, strength=2.0)) == 48
    assert (grey == before).all()


@pytest.mark.parametrize("level", [0, 128, 255])
def test_a_flat_image_takes_a_mark_and_says_that_it_had_none(level: int) -> None:
    flat = np.full((300, 300, 3), level, dtype=np.uint8)
    found = detect(flat, key=KEY)
    assert "flat" in found.note
    assert (found.matches(MESSAGE), found.matches(np.zeros(48)), found.p_value) == (0, 0, 1.0)
    assert read(embed(flat, MESSAGE, key=KEY, strength=3.0)) >= 46


@pytest.mark.parametrize(
    ("image", "error", "words"),
    [
        (np.zeros((63, 200), np.uint8), ValueError, "at least 64 by 64"),
        (np.zeros((200, 63, 3), np.uint8), ValueError, "at least 64 by 64"),
        (np.zeros((0, 64), np.uint8), ValueError, "empty"),
        (np.full((64, 64), 1.5), ValueError, "<= 1"),
        (np.full((64, 64), -0.1), ValueError, ">= 0"),
        (np.full((64, 64), np.nan), ValueError, "finite"),
        (np.zeros((64, 64), np.int64), TypeError, "uint8"),
        (np.zeros((64, 64), bool), TypeError, "uint8"),
        (np.zeros((64, 64), np.uint16), TypeError, "uint8"),
        (np.zeros((64, 64, 4), np.uint8), ValueError, "shape"),
        (np.zeros(64, np.uint8), ValueError, "shape"),
        (np.zeros((2, 64, 64, 3), np.uint8), ValueError, "shape"),
    ],
)
def test_images_that_cannot_be_marked(image: im.Bytes, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        embed(image, MESSAGE, key=KEY, strength=1.0)


def test_an_image_smaller_than_a_tile_at_every_size_is_refused() -> None:
    small = PICTURES["clouds"][:50, :50]
    assert detect(small, key=KEY).bits.size == 48  # it may be half of what was marked
    with pytest.raises(ValueError, match="tile of 64 pixels"):
        detect(small, key=KEY, scales=[1.0, 2.0])
    with pytest.raises(ValueError, match="tile of 64 pixels"):
        detect(PICTURES["clouds"][:20, :20], key=KEY)


@pytest.mark.parametrize("message", [np.zeros(47), np.zeros((48, 1)), np.full(48, 2), np.full(48, 0.5)])
def test_messages_that_are_none(message: np.ndarray) -> None:
    with pytest.raises(ValueError, match="message"):
        im.message_tile(message, key=KEY)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: im.patterns(-1), ValueError),
        (lambda: im.patterns(1.0), TypeError),
        (lambda: embed(PICTURES["clouds"], MESSAGE, key=KEY, strength=0.0), ValueError),
        (lambda: embed(PICTURES["clouds"], MESSAGE, key=KEY, strength=-1.0), ValueError),
        (lambda: im.add_tile(PICTURES["clouds"], np.zeros((32, 32)), 1.0), ValueError),
        (lambda: detect(PICTURES["clouds"], key=KEY, scales=[]), ValueError),
        (lambda: detect(PICTURES["clouds"], key=KEY, scales=[0.0]), ValueError),
        (lambda: detect(PICTURES["clouds"], key=KEY, angles=[np.nan]), ValueError),
        (lambda: im.match_threshold(0.0), ValueError),
        (lambda: im.match_p_value(49), ValueError),
        (lambda: im.psnr(np.zeros((2, 2)), np.zeros((2, 3))), ValueError),
        (lambda: im.encode(np.zeros((9, 9)), "PNG"), TypeError),
        (lambda: im.encode(np.zeros((9, 9), np.uint8), "GIF"), ValueError),
        (lambda: im.encode(np.zeros((9, 9), np.uint8), quality=0), ValueError),
        (lambda: im.decode(b"not an image"), ValueError),
        (lambda: im.decode(im.encode(PICTURES["clouds"])[:5_000]), ValueError),
        (lambda: im.resize(PICTURES["clouds"], 0.0), ValueError),
        (lambda: im.crop(PICTURES["clouds"], 1.5, rng=rng()), ValueError),
        (lambda: im.crop(PICTURES["clouds"], 0.5, rng=0), TypeError),
        (lambda: im.rotate(PICTURES["clouds"], math.inf), ValueError),
        (lambda: im.screenshot(PICTURES["clouds"], rng=0), TypeError),
        (lambda: im.photograph_screen(PICTURES["clouds"], tilt=0.3, rng=rng()), ValueError),
        (lambda: im.photograph_screen(PICTURES["clouds"], tilt=0.1, rng=0), TypeError),
        (lambda: im.rectify(PICTURES["clouds"], np.zeros((4, 2)), (9, 9)), ValueError),
        (lambda: im.rectify(PICTURES["clouds"], [[0, 0], [1, 1], [2, 2], [0, 3]], (9, 9)), ValueError),
        (lambda: im.rectify(PICTURES["clouds"], [[0, 0], [0, 9], [9, 9], [9, 0]], (9, 9)), ValueError),
        (lambda: im.estimate_tile(np.full((64, 64), 9, np.uint8)), ValueError),
        (lambda: im.hidden_period(PICTURES["clouds"], [480]), ValueError),
        (lambda: im.hidden_period(PICTURES["clouds"], []), ValueError),
        (lambda: im.hidden_period(np.full((128, 128), 9, np.uint8)), ValueError),
        (lambda: im.rectify(PICTURES["clouds"], [[0, 0], [9, 0], [9, 9], [0, 9]], 9), ValueError),
        (lambda: im.rectify(PICTURES["clouds"], [[0, 0], [9, 0], [9, 9], [0, 9]], (9, 9, 3)), ValueError),
        (lambda: im.encode(np.zeros((1, 70_000), np.uint8)), ValueError),
        (lambda: im.encode(np.zeros((1, 17_000), np.uint8), "WEBP"), ValueError),
    ],
)
def test_arguments_that_are_refused(call, error: type[Exception]) -> None:
    with pytest.raises(error):
        call()


@pytest.mark.parametrize(("row", "column"), [(40, 60), (200, 300), (380, 500)])
def test_a_spot_is_where_it_was_after_photograph_and_rectification(row: int, column: int) -> None:
    picture = np.zeros((420, 560), dtype=np.uint8)
    picture[row - 10 : row + 10, column - 10 : column + 10] = 255
    photograph = im.photograph_screen(picture, tilt=0.15, rng=rng(row), noise_std=0.0)
    straight = im.rectify(photograph.image, photograph.corners, (420, 560)).sum(axis=2, dtype=float)
    straight[straight < straight.max() / 4] = 0
    centre = [
        np.average(np.arange(n) + 0.5, weights=straight.sum(axis=1 - k)) for k, n in enumerate((420, 560))
    ]
    assert centre == pytest.approx([row, column], abs=0.5)
