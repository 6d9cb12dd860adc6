"""Bodies of 25 MB come back unchanged, and the memory that they take is reused: it levels off.

Idle workers return their private memory. The shared-memory regions stay for the
next requests, and Triton keeps what it took: the pool of its python backend never shrinks.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.box_fixture import Boxes
from tests.support.boxes import RunningBox, memory_field, wait_until
from tests.support.memory import proportional_bytes

BINARY = "application/vnd.sagemaker-triton.binary+json"
RoundTrip = Callable[[RunningBox, NDArray[np.float32]], NDArray[np.float32]]
CLIENT = """
from sm.client import TensorClient, TensorPayload


class Plain(TensorClient):
    model, payload = "echo", TensorPayload

    def preprocess(self, payload):
        return {"x": payload.array}

    def postprocess(self, outputs, payload):
        return outputs["y"]
"""
#: 25 MB of numbers, a little less than the body limit of 25 MiB.
LARGE_ARRAY: NDArray[np.float32] = np.random.default_rng(1).random(6_250_000, dtype=np.float32)
CALLERS = 4
#: The memory has levelled off if it grows by less than one body over this many rounds. The test gives up after MAX_ROUNDS.
STEADY_ROUNDS = 4
MAX_ROUNDS = 30
#: Bytes by which all idle workers together may exceed their memory before: less than one body per worker.
IDLE_MARGIN = 32 * 2**20


@pytest.fixture(scope="module")
def box_and_private_bytes(boxes: Boxes) -> Iterator[tuple[RunningBox, int]]:
    """A box that has answered small requests only, and its workers' private memory then."""
    with boxes.own(("echo",), ({"plain.py": CLIENT},)) as started:
        for _ in range(20):
            send_npy(started, LARGE_ARRAY[:100])
            send_binary_v2(started, LARGE_ARRAY[:100])
        yield started, private_bytes(started)


@pytest.fixture
def box(box_and_private_bytes: tuple[RunningBox, int]) -> RunningBox:
    return box_and_private_bytes[0]


def send_npy(box: RunningBox, numbers: NDArray[np.float32]) -> NDArray[np.float32]:
    """Send numbers as a ``.npy`` body; return the numbers of the response."""
    stream = io.BytesIO()
    np.save(stream, numbers)
    response = box.send(
        stream.getvalue(),
        "application/x-npy",
        params={"modelname": "plain"},
        headers={"Accept": "application/x-npy"},
    )
    assert response.status_code == 200, response.text[:500]
    received: NDArray[np.float32] = np.load(io.BytesIO(response.content))
    return received


def send_binary_v2(box: RunningBox, numbers: NDArray[np.float32]) -> NDArray[np.float32]:
    """Send numbers as a binary v2 body; return the numbers of the response."""
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, numbers.size]}
    head = json.dumps(
        {
            "inputs": [{**tensor, "parameters": {"binary_data_size": numbers.nbytes}}],
            "parameters": {"binary_data_output": True},
        }
    ).encode()
    response = box.send(
        head + numbers.tobytes(), f"{BINARY};json-header-size={len(head)}", params={"modelname": "echo"}
    )
    assert response.status_code == 200, response.text[:500]
    size = int(response.headers["Content-Type"].rpartition("=")[2])
    return np.frombuffer(response.content[size:], np.float32)


def send_round(box: RunningBox, round_trip: RoundTrip) -> None:
    """Send twice as many bodies as there are callers; check that each comes back unchanged."""
    with ThreadPoolExecutor(CALLERS) as pool:
        for response_array in pool.map(lambda _: round_trip(box, LARGE_ARRAY), range(2 * CALLERS)):
            np.testing.assert_array_equal(response_array, LARGE_ARRAY)


@pytest.mark.exhaustive
@pytest.mark.parametrize("round_trip", [pytest.param(send_npy, marks=pytest.mark.exhaustive), send_binary_v2])
def test_25_mb_come_back_unchanged_and_their_memory_levels_off(
    box: RunningBox, round_trip: RoundTrip
) -> None:
    """How many bodies a worker gets at once is chance, and it keeps what the most took. A leak of one body in
    thirty never levels off."""
    peaks: list[int] = []
    while len(peaks) < MAX_ROUNDS:
        send_round(box, round_trip)
        peaks.append(max([proportional_bytes(box), *peaks[-1:]]))
        if len(peaks) > STEADY_ROUNDS and peaks[-1] - peaks[-1 - STEADY_ROUNDS] < LARGE_ARRAY.nbytes:
            return
    pytest.fail(f"memory in MB after each round of {2 * CALLERS} bodies: {[peak >> 20 for peak in peaks]}")


@pytest.mark.exhaustive
def test_idle_workers_return_their_memory(box_and_private_bytes: tuple[RunningBox, int]) -> None:
    box, bytes_before = box_and_private_bytes
    send_round(box, send_npy)
    send_round(box, send_binary_v2)
    wait_until(
        lambda: private_bytes(box) <= bytes_before + IDLE_MARGIN,
        description="the return of the workers' memory",
    )


def private_bytes(box: RunningBox) -> int:
    """Private memory of the workers in bytes, without shared memory."""
    return sum(memory_field(pid, "Pss_Anon:") for pid in box.pids("sm.server.worker data"))


@pytest.mark.exhaustive
def test_no_part_of_a_body_stays_on_disk(box: RunningBox) -> None:
    send_npy(box, LARGE_ARRAY)
    files = [path for path in box.run_folder().rglob("*") if path.is_file()]
    assert files
    assert [path for path in files if path.stat().st_size >= LARGE_ARRAY.nbytes] == []
