"""A client that returns the same two masks for every picture, one in each form of a mask."""

from __future__ import annotations

import numpy as np

from sm.client import Client, ImagePayload, Masks, Picture


class Shapes(Client):
    """Two shapes, one with a mask as run lengths and one as a PNG."""

    payload = ImagePayload
    result = Masks(items="shapes", relative=True, box="place")

    def inference(self, payload: ImagePayload) -> dict[str, object]:
        height, width = payload.pixels.shape[:2]
        half = np.zeros((height, width, 3), np.uint8)
        half[:, width // 2 :] = 255
        # Run lengths go column by column: no pixel outside, then all of the left half.
        left = {"size": [height, width], "counts": [0, height * (width // 2)]}
        return {
            "shapes": [
                {"label": "left", "score": 0.9, "place": [0.1, 0.1, 0.4, 0.9], "mask": left},
                {
                    "label": "right",
                    "score": 0.4,
                    "place": [0.6, 0.2, 0.9, 0.8],
                    "mask": Picture(half).as_json(),
                },
            ]
        }
