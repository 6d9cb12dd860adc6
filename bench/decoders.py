"""The time of several libraries to decode a photograph scaled down: ``python -m bench.decoders``.

Milliseconds of processor time on one thread, the least and the median of ten turns. PyTurboJPEG (with the
system's libturbojpeg) and pyvips are measured where they are installed; the box uses neither.
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from functools import partial
from importlib import import_module
from statistics import median
from typing import Any

import cv2
import numpy as np
import simplejpeg
from PIL import Image

from bench.photos import jpeg

TURNS = 10
REDUCED = {2: cv2.IMREAD_REDUCED_COLOR_2, 4: cv2.IMREAD_REDUCED_COLOR_4, 8: cv2.IMREAD_REDUCED_COLOR_8}
Decode = Callable[[bytes], object]


def ways(width: int, height: int) -> dict[str, Decode]:
    """Return each way to decode a picture of this size, by name."""
    decoders: dict[str, Decode] = {
        "Pillow": lambda content: np.asarray(Image.open(io.BytesIO(content)).convert("RGB")),
        "OpenCV": by_opencv(cv2.IMREAD_COLOR),
        "simplejpeg": lambda content: simplejpeg.decode_jpeg(content),
    }
    for scale in (2, 4, 8):
        decoders[f"Pillow draft, 1/{scale}"] = by_draft(width // scale, height // scale)
        decoders[f"OpenCV reduced, 1/{scale}"] = by_opencv(REDUCED[scale])
    for eighths in range(1, 8):
        decoders[f"simplejpeg, {eighths}/8"] = by_simplejpeg(
            -(-width * eighths // 8), -(-height * eighths // 8)
        )
    return {**decoders, **by_others()}


def by_opencv(flag: int) -> Decode:
    return lambda content: cv2.imdecode(
        np.frombuffer(content, np.uint8), flag | cv2.IMREAD_IGNORE_ORIENTATION
    )


def by_draft(width: int, height: int) -> Decode:
    def decode(content: bytes) -> object:
        picture = Image.open(io.BytesIO(content))
        picture.draft(None, (width, height))
        return np.asarray(picture.convert("RGB"))

    return decode


def by_simplejpeg(width: int, height: int) -> Decode:
    return lambda content: simplejpeg.decode_jpeg(content, min_width=width, min_height=height)


def by_others() -> dict[str, Decode]:
    """Return the decoders of libraries that the box does not install."""
    decoders: dict[str, Decode] = {}
    try:
        turbo: Any = import_module("turbojpeg").TurboJPEG()
    except (ImportError, RuntimeError, OSError) as error:
        print(f"PyTurboJPEG is not measured: {str(error).splitlines()[0]}")
    else:
        for scale in (2, 4, 8):
            decoders[f"PyTurboJPEG, 1/{scale}"] = partial(turbo.decode, scaling_factor=(1, scale))
    try:
        vips: Any = import_module("pyvips").Image
    except (ImportError, OSError) as error:
        print(f"pyvips is not measured: {error}")
    else:
        for scale in (2, 4, 8):
            decoders[f"pyvips, 1/{scale}"] = partial(by_vips, vips, scale)
    return decoders


def by_vips(vips: Any, scale: int, content: bytes) -> object:
    return vips.jpegload_buffer(content, shrink=scale).numpy()


def main() -> None:
    cv2.setNumThreads(1)
    print("| | way | least ms | median ms |\n|---|---|---|---|")
    for name, width, height in (("12 MP", 4032, 3024), ("2 MP", 1632, 1224)):
        content = jpeg(width, height)
        seconds: dict[str, list[float]] = {}
        known = ways(width, height)
        for _ in range(TURNS):
            for way, decode in known.items():
                began = time.process_time()
                decode(content)
                seconds.setdefault(way, []).append(time.process_time() - began)
        for way, values in seconds.items():
            print(f"| {name} | {way} | {1000 * min(values):.1f} | {1000 * median(values):.1f} |")


if __name__ == "__main__":
    main()
