"""Requests to the gateway that several tests send."""

from __future__ import annotations

import io

from PIL import Image


def picture(colour: str, kind: str = "png") -> bytes:
    content = io.BytesIO()
    Image.new("RGB", (20, 16), colour).save(content, kind)
    return content.getvalue()


RED, BLUE = picture("red"), picture("blue")
