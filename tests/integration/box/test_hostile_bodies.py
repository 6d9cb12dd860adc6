"""Hostile and large bodies: pictures that need much memory or time, arrays that lie, and 25 MB at once."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import requests
from numpy.typing import NDArray

from tests.support.boxes import RunningBox, memory_field, wait_until
from tests.support.hostile_pictures import large_png
from tests.support.memory import PeakMemory, proportional_bytes
from tests.support.npy_bodies import encode_npy

MIB = 2**20
#: The decode budget of a worker of small_box, in bytes.
BUDGET = 150 * MIB
#: What may come on top of it, in bytes: bodies, bands of pixels, and what the allocator retains.
MARGIN = 100 * MIB
NPY, BINARY = "application/x-npy", "application/vnd.sagemaker-triton.binary+json"


@pytest.fixture
def box(small_box: RunningBox) -> RunningBox:
    return small_box


def send_npy(box: RunningBox, numbers: NDArray[np.float32]) -> NDArray[np.float32]:
    """Send numbers as a ``.npy`` body; return the numbers of the response."""
    response = box.send(encode_npy(numbers), NPY, params={"modelname": "plain"}, headers={"Accept": NPY})
    assert response.status_code == 200, response.text[:500]
    received: NDArray[np.float32] = np.load(io.BytesIO(response.content))
    return received


def send_binary_v2(box: RunningBox, numbers: NDArray[np.float32]) -> NDArray[np.float32]:
    """Send numbers as a binary v2 body; return the numbers of the response."""
    size = {"binary_data_size": numbers.nbytes}
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, numbers.size], "parameters": size}
    head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    content_type = f"{BINARY};json-header-size={len(head)}"
    response = box.send(head + numbers.tobytes(), content_type, params={"modelname": "echo"})
    assert response.status_code == 200, response.text[:500]
    at = int(response.headers["Content-Type"].rpartition("=")[2])
    return np.frombuffer(response.content[at:], np.float32)


#: 25 MB of numbers, a little less than the body limit of 25 MiB.
LARGE_ARRAY: NDArray[np.float32] = np.random.default_rng(1).random(6_250_000, dtype=np.float32)
CALLERS = 4
#: The memory has levelled off if it grows by less than one body over this many rounds.
STEADY_ROUNDS, MAX_ROUNDS = 4, 30
#: Bytes by which the two idle workers may exceed their memory before.
IDLE_MARGIN = 64 * MIB
RoundTrip = Callable[[RunningBox, NDArray[np.float32]], NDArray[np.float32]]


def send_round(box: RunningBox, round_trip: RoundTrip) -> None:
    """Send twice as many bodies as there are callers; check that each comes back unchanged."""
    with ThreadPoolExecutor(CALLERS) as pool:
        for received in pool.map(lambda _: round_trip(box, LARGE_ARRAY), range(2 * CALLERS)):
            np.testing.assert_array_equal(received, LARGE_ARRAY)


@pytest.mark.exhaustive
def test_idle_workers_return_their_memory_and_no_part_of_a_body_stays_on_disk(box: RunningBox) -> None:
    def private_bytes() -> int:
        return sum(memory_field(pid, "Pss_Anon:") for pid in box.pids("sm.server.worker"))

    for _ in range(20):
        send_npy(box, LARGE_ARRAY[:100])
        send_binary_v2(box, LARGE_ARRAY[:100])
    before = private_bytes()
    send_round(box, send_npy)
    send_round(box, send_binary_v2)
    wait_until(lambda: private_bytes() <= before + IDLE_MARGIN, description="the return of the memory")
    files = [path for path in box.run_folder().rglob("*") if path.is_file()]
    assert files
    assert [path for path in files if path.stat().st_size >= LARGE_ARRAY.nbytes] == []


@pytest.mark.exhaustive
@pytest.mark.parametrize("round_trip", [send_npy, send_binary_v2])
def test_25_mb_come_back_unchanged_and_memory_levels_off(box: RunningBox, round_trip: RoundTrip) -> None:
    """A leak of one body in thirty never levels off."""
    peaks: list[int] = []
    while len(peaks) < MAX_ROUNDS:
        send_round(box, round_trip)
        peaks.append(max([proportional_bytes(box), *peaks[-1:]]))
        if len(peaks) > STEADY_ROUNDS and peaks[-1] - peaks[-1 - STEADY_ROUNDS] < LARGE_ARRAY.nbytes:
            return
    pytest.fail(f"memory in MB after each round of {2 * CALLERS} bodies: {[peak >> 20 for peak in peaks]}")


def send_picture(box: RunningBox, picture: bytes, kind: str = "image/png") -> requests.Response:
    return box.send(picture, kind, params={"modelname": "shape"})


def test_large_pictures_at_once_wait_or_get_a_429(box: RunningBox) -> None:
    """16 megapixels, all transparent, in 70 KB: 107 MiB while it is decoded, 46 MiB afterwards."""
    picture = large_png(4000, 4000)
    peak = PeakMemory(box)
    assert send_picture(box, picture).json()["result"] == [4000, 4000, 3]
    assert peak.bytes < 107 * MIB + MARGIN / 2
    with ThreadPoolExecutor(8) as pool:
        responses = list(pool.map(lambda _: send_picture(box, picture), range(8)))
    assert {response.status_code for response in responses} <= {200, 429}
    assert any(response.ok for response in responses)
    for response in responses:
        if not response.ok:
            assert (response.json()["code"], "Retry-After" in response.headers) == ("overloaded", True)
    assert peak.bytes < BUDGET + MARGIN
    assert send_picture(box, picture).status_code == 200


@pytest.mark.parametrize("content_type", ["application/json", "application/jsonlines"])
def test_json_of_millions_of_lists_is_refused_before_it_is_parsed(box: RunningBox, content_type: str) -> None:
    body = b'{"modelname":"plain","payload":[' + b"[]," * 5_000_000 + b"[]]}"
    peak = PeakMemory(box)
    response = box.send(body, content_type, params={"modelname": "plain"})
    assert (response.status_code, response.json()["code"]) == (413, "too_large")
    assert peak.bytes < 3 * len(body) + MARGIN / 2
