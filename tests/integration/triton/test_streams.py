"""A decoupled model's answers are read one by one from a real Triton."""

from __future__ import annotations

import time
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from sm.client.base import Array
from sm.errors import DeadlinePassed, ModelFailed
from sm.invocation import Invocation, running
from sm.triton.transport import Transport
from tests.support.boxes import wait_until
from tests.support.tritons import TritonProcess


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


@pytest.mark.parametrize("count", [0, 5])
def test_the_answers_come_in_their_order(transport: Transport, count: int) -> None:
    numbers = [answer["number"].item() for answer in stream_counts(transport, count)]
    assert numbers == list(range(count))


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
        with pytest.raises(ModelFailed):
            list(transport.stream("refuses", {"x": np.zeros(1, np.float32)}))

    with ThreadPoolExecutor(4) as callers:
        list(callers.map(fail, range(400)))
    assert len(list(stream_counts(transport, 3))) == 3
