"""Bad input gets a clear error with the right status, and the box goes on serving."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.support.boxes import RunningBox

pytestmark = pytest.mark.core


@pytest.fixture(autouse=True)
def box_still_serves(box: RunningBox) -> Iterator[None]:
    yield
    assert box.ping()[0] == 200
    assert box.invoke("slow", {"seconds": 0}).json()["result"] == 0


def encode(picture: Image.Image, file_format: str = "PNG", **options: Any) -> bytes:
    stream = io.BytesIO()
    picture.save(stream, file_format, **options)
    return stream.getvalue()


def noise_picture(width: int, height: int, mode: str = "RGB") -> Image.Image:
    shape = (height, width, 3) if mode == "RGB" else (height, width)
    return Image.fromarray(
        np.random.default_rng(1).integers(0, 255, shape, np.uint8), mode if mode != "RGB" else None
    )


@pytest.mark.parametrize("model", ["resnet", "yolov5"])
@pytest.mark.parametrize(
    "picture",
    [
        pytest.param(encode(noise_picture(1, 1)), id="1x1"),
        pytest.param(encode(noise_picture(1, 4000)), id="1x4000"),
        pytest.param(encode(noise_picture(4000, 1)), id="4000x1"),
        pytest.param(encode(noise_picture(64, 48, "L")), id="grey"),
        pytest.param(encode(Image.fromarray(np.full((48, 64), 40_000, np.uint16))), id="16-bit"),
        pytest.param(encode(noise_picture(64, 48).convert("CMYK"), "JPEG"), id="cmyk"),
        pytest.param(encode(noise_picture(64, 48).convert("RGBA")), id="alpha"),
        pytest.param(encode(noise_picture(64, 48), "WEBP"), id="webp"),
    ],
)
def test_pictures_of_every_format_and_shape_are_served(box: RunningBox, model: str, picture: bytes) -> None:
    response = box.invoke(model, base64.b64encode(picture).decode())
    assert response.status_code == 200, response.text
    assert isinstance(response.json()["result"], list)


def test_a_picture_turned_by_exif_gets_the_result_of_the_upright_one(box: RunningBox, cat: bytes) -> None:
    upright = Image.open(io.BytesIO(cat)).convert("RGB")
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned: rotate by 270 degrees to see it upright
    turned_png = encode(upright.transpose(Image.Transpose.ROTATE_90), "PNG", exif=exif)
    upright_png = encode(upright, "PNG")
    responses = [
        box.invoke("resnet", base64.b64encode(picture).decode()).json()
        for picture in (upright_png, turned_png)
    ]
    assert responses[0] == responses[1]


def test_a_client_that_fails_is_a_500_without_a_traceback(box: RunningBox) -> None:
    response = box.invoke("fragile", {})
    assert (response.status_code, response.headers["Content-Type"]) == (500, "application/json")
    assert response.json()["code"] == "client_failed"
    assert "Traceback" not in response.text
