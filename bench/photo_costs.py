"""The cost of turning a photograph into ResNet's input, without a server: ``python -m bench.photo_costs``.

Milliseconds of processor time on one thread, the least of the turns: the box's client, and the peers' ways of
:mod:`bench.photo_work`. Other load on the machine changes the figures, and the ratios little.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import cv2

from bench.photo_work import OpenCvResnet, PillowResnet
from bench.photos import MODEL, photos
from sm.client import ImagePayload, Preprocessing
from sm.settings import HERE

TURNS = 7


def ways() -> dict[str, Callable[[bytes], object]]:
    """Return each way from bytes to a tensor."""
    prepared = Preprocessing.read(HERE / "model" / MODEL / "preprocess.json")
    # Their models are not needed, nor where those would be.
    opencv, pillow = (kind.__new__(kind) for kind in (OpenCvResnet, PillowResnet))

    def box(content: bytes) -> object:
        payload = ImagePayload(image=content)
        return prepared(payload.pixels_at_least(*prepared.decode_size), payload.size)

    def full(content: bytes) -> object:
        return prepared(ImagePayload(image=content).pixels)

    return {
        "the box": box,
        "the box, in full": full,
        "OpenCV": opencv.preprocess,
        "Pillow": pillow.preprocess,
    }


def main() -> None:
    cv2.setNumThreads(1)
    known = ways()
    print(f"| picture | {' | '.join(known)} | OpenCV / the box |\n|---|{'---|' * len(known)}---|")
    for photo in photos():
        seconds_by_way: dict[str, list[float]] = {name: [] for name in known}
        for _ in range(TURNS):
            for name, way in known.items():
                began = time.process_time()
                way(photo.content)
                seconds_by_way[name].append(time.process_time() - began)
        least = {name: 1000 * min(seconds) for name, seconds in seconds_by_way.items()}
        cells = " | ".join(f"{value:.1f}" for value in least.values())
        print(f"| {photo.name} | {cells} | {least['OpenCV'] / least['the box']:.2f} |")


if __name__ == "__main__":
    main()
