"""Chapter 10's image mark beside invisible-watermark: the same photographs, message and misfortunes.

    python benchmarks/watermark_image.py            three photographs, two methods of the peer
    python benchmarks/watermark_image.py --quick    one photograph

Both hide 48 bits. Ours is set to 40.5 dB, the peer is as it comes; the first table prints what the marks cost.
Every reading starts from the changed picture alone: nobody is told a size or an offset. 24 of 48 are coins; 0 may
also mean that the peer refuses a picture as too small. Ours must lose no bit of an untouched picture and must not
find its mark in an unmarked one. Times are CPU seconds of one thread; look at the ratios.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image
from scipy import ndimage

from thousand_fingers.watermark import image as im

BITS = np.random.default_rng(1).integers(0, 2, 48)
KEY = 7
Picture = np.ndarray
Method = tuple[Callable[[Picture], Picture], Callable[[Picture], int]]


def photographs(quick: bool) -> dict[str, Picture]:
    import skimage

    folder = Path(skimage.__file__).parent / "data"
    names = ["coffee.png", "chelsea.png", "rocket.jpg"][: 1 if quick else 3]
    return {name: np.asarray(Image.open(folder / name).convert("RGB")) for name in names}


def ours() -> Method:
    def write(picture: Picture) -> Picture:
        once = im.psnr(im.embed(picture, BITS, key=KEY, strength=1.0), picture)
        return im.embed(picture, BITS, key=KEY, strength=10 ** ((once - 40.5) / 20))

    return write, lambda picture: im.detect(picture, key=KEY).matches(BITS)


def theirs(method: str) -> Method:
    from imwatermark import WatermarkDecoder, WatermarkEncoder

    def write(picture: Picture) -> Picture:
        encoder = WatermarkEncoder()
        encoder.set_watermark("bits", BITS.tolist())
        return encoder.encode(picture[..., ::-1].copy(), method)[..., ::-1].copy()

    def read(picture: Picture) -> int:
        try:
            found = WatermarkDecoder("bits", 48).decode(picture[..., ::-1].copy(), method)
        except RuntimeError:  # "image too small": it answers nothing
            return 0
        return int((np.asarray(found).astype(int) == BITS).sum())

    return write, read


def misfortunes() -> dict[str, Callable[[Picture], Picture]]:
    def grey(x: Picture) -> Picture:
        return np.repeat((x @ [0.299, 0.587, 0.114]).round().astype(np.uint8)[..., None], 3, axis=2)

    return {
        "nothing": lambda x: x,
        "JPEG 95": lambda x: im.decode(im.encode(x, quality=95)),
        "JPEG 75": lambda x: im.decode(im.encode(x, quality=75)),
        "JPEG 30": lambda x: im.decode(im.encode(x, quality=30)),
        "half size and back": lambda x: im.resize(im.resize(x, 0.5), 2.0),
        "three quarters size": lambda x: im.resize(x, 0.75),
        "a quarter cut out": lambda x: im.crop(x, 0.25, rng=np.random.default_rng(0)),
        "grey": grey,
        "darker": lambda x: (0.7 * x).astype(np.uint8),
        "blurred": lambda x: ndimage.gaussian_filter(x, (1, 1, 0)),
        "screenshot": lambda x: im.screenshot(x, rng=np.random.default_rng(0)),
        "turned by 1 degree": lambda x: im.rotate(x, 1.0),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one photograph")
    pictures = photographs(parser.parse_args().quick)
    methods = {"ours": ours()}
    try:
        version = importlib.metadata.version("invisible-watermark")
        methods |= {f"{name} {version}": theirs(name) for name in ("dwtDct", "dwtDctSvd")}
    except importlib.metadata.PackageNotFoundError as error:
        print(f"invisible-watermark: left out ({error})")
    marked, columns, first = {}, {}, 0.0
    print(f"{'':22}{'dB':>12}{'s to write':>12}{'s to read':>12}{'ratio':>8}")
    for name, (write, read) in methods.items():
        start = time.process_time()
        marked[name] = [write(picture) for picture in pictures.values()]
        written = time.process_time()
        columns[name] = {"nothing": [read(picture) for picture in marked[name]]}
        both = (written - start) / len(pictures), (time.process_time() - written) / len(pictures)
        first = first or sum(both)
        closeness = [im.psnr(m, p) for m, p in zip(marked[name], pictures.values(), strict=True)]
        shown = f"{min(closeness):.1f}-{max(closeness):.1f}"
        print(f"{name:22}{shown:>12}{both[0]:12.3f}{both[1]:12.3f}{sum(both) / first:8.2f}")
    print(f"\n{'matches of 48, ' + ', '.join(pictures):50}" + "".join(f"{name:>18}" for name in methods))
    for what, change in misfortunes().items():
        counts = {name: [methods[name][1](change(m)) for m in marked[name]] for name in methods}
        columns |= {name: columns[name] | {what: counts[name]} for name in methods}
        print(f"{what:50}" + "".join(f"{' '.join(map(str, c)):>18}" for c in counts.values()))
    unmarked = {name: [read(p) for p in pictures.values()] for name, (_, read) in methods.items()}
    print(f"{'never marked':50}" + "".join(f"{' '.join(map(str, c)):>18}" for c in unmarked.values()))
    exact = min(columns["ours"]["nothing"]) == 48
    print(f"\nours reads an untouched picture exactly: {'yes' if exact else 'NO'}")
    return int(not exact or max(unmarked["ours"]) >= 41)


if __name__ == "__main__":
    sys.exit(main())
