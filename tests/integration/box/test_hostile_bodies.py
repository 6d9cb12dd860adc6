"""Hostile bodies: pictures that need much memory or time to decode, and arrays that lie about their size.

Also: if Triton refuses a tensor, the error blames the caller who sent it or the client who made it.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import requests
from PIL import Image

from tests.support.box_fixture import Boxes
from tests.support.boxes import RunningBox
from tests.support.hostile_pictures import encode, large_png, many_scans
from tests.support.memory import PeakMemory
from tests.support.npy_bodies import encode_npy

SHAPE_CLIENT = """
import time

from sm.client import Client, ImagePayload


class Shape(Client):
    payload = ImagePayload

    def inference(self, image):
        shape = image.pixels.shape
        time.sleep(0.3)
        return shape
"""
#: A client of the model "echo", whose input is x, FP32 [-1, -1], and whose output is y.
ECHO_CLIENT = """
import numpy as np

from sm.client import ImagePayload, TensorClient, TensorPayload


class Echo(TensorClient):
    model, payload = "echo", {payload}

    def preprocess(self, payload):
        return {inputs}

    def wanted(self, payload):
        return {outputs}

    def postprocess(self, outputs, payload):
        return outputs["y"].shape

    def stream(self, payload):
        yield from self.triton.stream("echo", self.preprocess(payload))
"""
#: By client: the inputs that it gives the model.
INPUTS_BY_CLIENT = {
    "plain": '{"x": payload.array}',
    "cast": '{"x": payload.array.astype(np.float32)}',
    "flat": '{"x": payload.array.ravel().astype(np.float32)}',
    "wrong_name": '{"wrong": payload.array}',
    "one_too_many": '{"x": payload.array, "more": payload.array}',
    "nothing": "{}",
    "wrong_cast": '{"x": payload.array.astype(np.float64)}',
    "no_datatype": '{"x": payload.array.astype(complex)}',
    "wrong_output": '{"x": payload.array}',
    "not_resized": '{"x": payload.pixels.astype(np.float32)}',
}
MIB = 2**20
#: The decode budget of the only worker, in bytes.
BUDGET = 150 * MIB
#: What may come on top of it, in bytes: bodies, bands of pixels, and what the allocator retains.
MARGIN = 100 * MIB


@pytest.fixture(scope="module")
def box(boxes: Boxes) -> Iterator[RunningBox]:
    clients = {"shape.py": SHAPE_CLIENT}
    for name, inputs in INPUTS_BY_CLIENT.items():
        payload = "ImagePayload" if name == "not_resized" else "TensorPayload"
        outputs = ["wrong"] if name == "wrong_output" else None
        clients[f"{name}.py"] = ECHO_CLIENT.format(payload=payload, inputs=inputs, outputs=outputs)
    with boxes.own(
        ("echo",),
        (clients,),
        SAGEMAKER_MODEL_SERVER_WORKERS="1",
        TRIREME_DECODE_MEMORY_MB=str(BUDGET // MIB),
    ) as started:
        yield started


def send_picture(box: RunningBox, picture: bytes, kind: str = "image/png") -> requests.Response:
    return box.send(picture, kind, params={"modelname": "shape"})


@pytest.fixture(scope="module")
def large_picture() -> bytes:
    """16 megapixels, all transparent, in 70 KB: 107 MiB while it is decoded, 46 MiB afterwards."""
    return large_png(4000, 4000)


def test_a_large_transparent_picture_takes_little_more_than_its_pixels(
    box: RunningBox, large_picture: bytes
) -> None:
    peak = PeakMemory(box)
    assert send_picture(box, large_picture).json()["result"] == [4000, 4000, 3]
    assert peak.bytes < 107 * MIB + MARGIN / 2


def test_a_picture_larger_than_the_setting_is_a_413_with_the_number(box: RunningBox) -> None:
    peak = PeakMemory(box)
    response = send_picture(box, large_png(5000, 5000))
    assert (response.status_code, response.json()["code"]) == (413, "too_large")
    assert peak.bytes < MARGIN


def test_large_pictures_at_once_wait_or_get_a_429(box: RunningBox, large_picture: bytes) -> None:
    peak = PeakMemory(box)
    with ThreadPoolExecutor(8) as pool:
        responses = list(pool.map(lambda _: send_picture(box, large_picture), range(8)))
    assert {response.status_code for response in responses} <= {200, 429}
    assert [response for response in responses if response.status_code == 200]
    for response in responses:
        if response.status_code == 429:
            assert (response.json()["code"], "Retry-After" in response.headers) == ("overloaded", True)
    assert peak.bytes < BUDGET + MARGIN
    assert send_picture(box, large_picture).status_code == 200


@pytest.mark.parametrize("content_type", ["application/json", "application/jsonlines"])
def test_json_of_millions_of_lists_is_refused_before_it_is_parsed(box: RunningBox, content_type: str) -> None:
    body = b'{"modelname":"flat","payload":[' + b"[]," * 5_000_000 + b"[]]}"
    peak = PeakMemory(box)
    response = box.send(body, content_type, params={"modelname": "flat"})
    assert (response.status_code, response.json()["code"]) == (413, "too_large")
    assert peak.bytes < 3 * len(body) + MARGIN / 2


def test_a_jpeg_of_thousands_of_scans_is_refused_and_blocks_nobody(box: RunningBox) -> None:
    """Decoding one took minutes, longer than ``send_picture`` waits for a response."""
    bomb, small_jpeg = many_scans(6000, 5000), encode(Image.new("RGB", (64, 48)), "JPEG")
    with ThreadPoolExecutor(8) as pool:
        responses = list(pool.map(lambda _: send_picture(box, bomb, "image/jpeg"), range(16)))
    assert {(response.status_code, response.json()["code"]) for response in responses} == {(400, "bad_input")}
    assert send_picture(box, small_jpeg, "image/jpeg").json()["result"] == [48, 64, 3]


def send_array(box: RunningBox, model: str, *shape: int, dtype: str = "float32") -> requests.Response:
    return box.send(encode_npy(np.zeros(shape, dtype)), "application/x-npy", params={"modelname": model})


@pytest.mark.parametrize(
    ("model", "named"),
    [
        ("wrong_name", "'wrong'"),
        ("one_too_many", "'more'"),
        ("nothing", " no x"),
        ("wrong_output", "'wrong'"),
        ("wrong_cast", "FP64"),
        ("no_datatype", "complex128"),
    ],
)
def test_a_wrong_tensor_of_a_client_is_a_500(box: RunningBox, model: str, named: str) -> None:
    response = send_array(box, model, 3)
    assert (response.status_code, response.json()["code"]) == (500, "client_failed")
    assert named in box.wait_for_log(f"client {model} failed").rpartition(f"client {model} failed")[2]


def test_a_wrong_tensor_of_a_caller_is_a_400(box: RunningBox) -> None:
    assert send_array(box, "plain", 3).json()["result"] == [3]
    for response in (
        send_array(box, "plain", 3, dtype="int64"),
        send_array(box, "plain", 3, 1),
        send_array(box, "cast", 3, 1),
        box.invoke("cast", {"tensor": [[[1]]]}),
    ):
        assert (response.status_code, response.json()["code"]) == (400, "bad_input")
