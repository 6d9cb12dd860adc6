"""A decoupled model's answers are read one by one from a real Triton."""

from __future__ import annotations

import time
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from sm.client.base import Array
from sm.errors import BadInput, DeadlinePassed, ModelFailed
from sm.invocation import Invocation, running
from sm.triton.transport import Transport
from tests.support.boxes import WAIT_TIMEOUT_S, wait_until
from tests.support.tritons import TritonProcess

pytestmark = pytest.mark.core


def stream_counts(
    transport: Transport, count: int, seconds: float = 0.0
) -> Generator[dict[str, Array], None, None]:
    inputs = {"count": np.array([count]), "seconds": np.array([seconds], np.float32)}
    return transport.stream("counts", inputs)


@pytest.fixture
def cancelled_note(triton: TritonProcess) -> Path:
    file = triton.notes / "cancelled"
    file.unlink(missing_ok=True)
    return file


def test_the_answers_come_in_their_order(transport: Transport) -> None:
    assert [answer["number"].tolist() for answer in stream_counts(transport, 5)] == [[0], [1], [2], [3], [4]]


def test_a_stream_may_be_empty(transport: Transport) -> None:
    assert list(stream_counts(transport, 0)) == []


def test_the_first_answer_arrives_before_the_last_is_made(
    transport: Transport, triton: TritonProcess
) -> None:
    go_on = triton.notes / "go-on"
    go_on.unlink(missing_ok=True)
    with running(Invocation(time.monotonic() + WAIT_TIMEOUT_S)):
        answers = stream_counts(transport, 2, seconds=-1.0)
        assert next(answers)["number"].tolist() == [0]
        # The model makes its second answer only now.
        go_on.touch()
        assert [answer["number"].tolist() for answer in answers] == [[1]]


def connections(port: int) -> int:
    """Count the connections to a port of this machine, as the kernel lists them."""
    files = (Path("/proc/self/net") / name for name in ("tcp", "tcp6"))
    rows = (line.split() for file in files for line in file.read_text().splitlines()[1:])
    return sum(row[2].endswith(f":{port:04X}") and row[3] == "01" for row in rows)


def test_at_rest_the_worker_has_no_grpc_connection_and_a_stream_keeps_it(
    transport: Transport, triton: TritonProcess
) -> None:
    transport.metadata("counts")  # A connection for calls with one answer is kept.
    before = connections(triton.box.grpc_port)
    answers = stream_counts(transport, 3, seconds=0.2)
    assert next(answers)["number"].tolist() == [0]
    transport.rest()
    assert [answer["number"].tolist() for answer in answers] == [[1], [2]]
    assert connections(triton.box.grpc_port) > before
    transport.rest()
    wait_until(lambda: connections(triton.box.grpc_port) == before)
    assert len(list(stream_counts(transport, 2))) == 2


def test_a_model_that_answers_once_is_a_stream_of_one(transport: Transport) -> None:
    x = np.array([[1.0, 2.0]], np.float32)
    (answer,) = transport.stream("echo", {"x": x})
    assert answer["y"].tolist() == x.tolist()


def test_a_stream_that_is_closed_is_cancelled_in_triton(transport: Transport, cancelled_note: Path) -> None:
    answers = transport.stream("counts", {"count": np.array([1000]), "seconds": np.array([0.05], np.float32)})
    next(answers)
    answers.close()
    wait_until(cancelled_note.exists)


def test_a_stream_ends_at_its_deadline(transport: Transport, cancelled_note: Path) -> None:
    numbers: list[int] = []

    def is_cut_off() -> bool:
        with running(Invocation(time.monotonic() + 1.0)), pytest.raises(DeadlinePassed):
            for answer in stream_counts(transport, 100, seconds=0.2):
                numbers.append(answer["number"].item())
        return bool(numbers)

    # On a busy machine the deadline may pass before the first answer.
    wait_until(is_cut_off)
    assert numbers == list(range(len(numbers)))
    wait_until(cancelled_note.exists)


def test_many_failing_streams_do_not_break_triton(transport: Transport) -> None:
    def fail(_: int) -> None:
        with pytest.raises(ModelFailed, match="^not this one$"):
            list(transport.stream("refuses", {"x": np.zeros(1, np.float32)}))

    with ThreadPoolExecutor(4) as callers:
        list(callers.map(fail, range(400)))
    assert len(list(stream_counts(transport, 3))) == 3


def test_a_stream_that_triton_refuses_is_bad_input(transport: Transport) -> None:
    with pytest.raises(BadInput, match="unexpected shape for input 'count'"):
        next(transport.stream("counts", {"count": np.array([1, 2]), "seconds": np.zeros(1, np.float32)}))
