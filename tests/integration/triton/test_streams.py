"""A decoupled model's answers are read one by one from a real Triton."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from sm.errors import ModelFailed
from sm.triton.transport import Transport
from tests.support.boxes import wait_until
from tests.support.tritons import TritonProcess


def numbers(transport: Transport, count: int, seconds: float = 0.0) -> Iterator[int]:
    inputs = {"count": np.array([count]), "seconds": np.array([seconds], np.float32)}
    return (answer["number"].item() for answer in transport.stream("counts", inputs))


@pytest.mark.parametrize("count", [0, 5])
def test_the_answers_come_in_their_order(transport: Transport, count: int) -> None:
    assert [*numbers(transport, count)] == [*range(count)]


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
    answers = numbers(transport, 3, seconds=0.2)
    assert next(answers) == 0
    transport.rest()
    assert [*answers] == [1, 2]
    assert connections(triton.box.grpc_port) > before
    transport.rest()
    wait_until(lambda: connections(triton.box.grpc_port) == before)
    assert [*numbers(transport, 2)] == [0, 1]


def test_many_failing_streams_do_not_break_triton(transport: Transport) -> None:
    def fail(_: int) -> None:
        with pytest.raises(ModelFailed):
            list(transport.stream("refuses", {"x": np.zeros(1, np.float32)}))

    with ThreadPoolExecutor(4) as callers:
        list(callers.map(fail, range(400)))
    assert [*numbers(transport, 3)] == [0, 1, 2]
