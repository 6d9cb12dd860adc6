"""Bodies of 25 MB come through whole, and the memory that they took serves the next ones: it comes to rest.

Workers that have nothing more to do give back what is theirs alone. The regions of shared memory stay for the
next ones, and Triton keeps what it took: its python backend's pool never shrinks.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.boxes import RunningBox, descendants, memory_field, running_box, wait_until
from tests.support.tritons import MODELS

BINARY = "application/vnd.sagemaker-triton.binary+json"
Form = Callable[[RunningBox, NDArray[np.float32]], NDArray[np.float32]]
CLIENT = """
from sm.client.base import TensorClient, TensorPayload


class Plain(TensorClient):
    model, payload = "echo", TensorPayload

    def preprocess(self, payload):
        return {"x": payload.array}

    def postprocess(self, outputs, payload):
        return outputs["y"]
"""
#: 25 MB of numbers, a little less than the limit of 25 MiB.
LARGE: NDArray[np.float32] = np.random.default_rng(1).random(6_250_000, dtype=np.float32)
CALLERS = 4
#: Rounds in a row that take less than one body more, all together, and after how many there is no hope of that.
RESTING = 4
MOST_ROUNDS = 30
#: Bytes by which idle workers, all together, may have more than before: less than one such body for each.
IDLE_MARGIN = 32 * 2**20


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningBox, int]]:
    """A box that has answered, but nothing large, and what its workers had then."""
    folder = tmp_path_factory.mktemp("memory")
    MODELS["echo"].write(folder / "model" / "echo")
    (folder / "clients").mkdir()
    (folder / "clients" / "plain.py").write_text(CLIENT)
    with running_box(folder, folder / "model", clients=(folder / "clients",)) as started:
        for _ in range(20):
            raw(started, LARGE[:100])
            binary(started, LARGE[:100])
        yield started, own_bytes(started)


@pytest.fixture
def box(measured: tuple[RunningBox, int]) -> RunningBox:
    return measured[0]


def raw(box: RunningBox, numbers: NDArray[np.float32]) -> NDArray[np.float32]:
    """There and back as form 2, a ``.npy`` body."""
    body = io.BytesIO()
    np.save(body, numbers)
    response = box.send(
        body.getvalue(),
        "application/x-npy",
        params={"modelname": "plain"},
        headers={"Accept": "application/x-npy"},
    )
    assert response.status_code == 200, response.text[:500]
    numbers_back: NDArray[np.float32] = np.load(io.BytesIO(response.content))
    return numbers_back


def binary(box: RunningBox, numbers: NDArray[np.float32]) -> NDArray[np.float32]:
    """There and back as form 4, a binary v2 body."""
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


def memory(box: RunningBox) -> int:
    """Bytes of all of the box's processes, what they share counted once."""
    return sum(memory_field(pid, "Pss:") for pid in (box.process.pid, *descendants(box.process.pid)))


def round_of(box: RunningBox, form: Form) -> None:
    """Twice as many bodies as there are callers."""
    with ThreadPoolExecutor(CALLERS) as callers:
        for answer in callers.map(lambda _: form(box, LARGE), range(2 * CALLERS)):
            np.testing.assert_array_equal(answer, LARGE)


@pytest.mark.parametrize("form", [raw, binary])
def test_25_mb_come_back_whole_and_what_they_take_comes_to_rest(box: RunningBox, form: Form) -> None:
    """Which worker gets how many at once is chance, and each keeps what its worst moment took. A leak of one body
    in thirty never comes to rest."""
    peaks: list[int] = []
    while len(peaks) < MOST_ROUNDS:
        round_of(box, form)
        peaks.append(max([memory(box), *peaks[-1:]]))
        if len(peaks) > RESTING and peaks[-1] - peaks[-1 - RESTING] < LARGE.nbytes:
            return
    pytest.fail(
        f"after each round of {2 * CALLERS} bodies the box had, in MB: {[peak >> 20 for peak in peaks]}"
    )


def test_idle_workers_have_their_memory_back(measured: tuple[RunningBox, int]) -> None:
    box, before = measured
    round_of(box, raw)
    round_of(box, binary)
    wait_until(lambda: own_bytes(box) <= before + IDLE_MARGIN, description="the workers' memory back")


def own_bytes(box: RunningBox) -> int:
    """Bytes that belong to the workers alone, shared memory left out."""
    return sum(memory_field(pid, "Pss_Anon:") for pid in box.pids("sm.server.worker data"))


def test_nothing_of_a_body_is_left_on_disk(box: RunningBox) -> None:
    raw(box, LARGE)
    files = [path for path in box.run_folder().rglob("*") if path.is_file()]
    assert files
    assert [path for path in files if path.stat().st_size >= LARGE.nbytes] == []
