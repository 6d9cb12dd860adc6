"""A model's answers one by one, from a real Triton."""

from __future__ import annotations

import threading
import time
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from sm.client.base import Array
from sm.deadline import Deadline, running
from sm.errors import BadInput, CallerGone, DeadlinePassed, ModelFailed, NotReady, UnknownModel
from sm.triton.transport import Transport
from tests.support.boxes import wait_until
from tests.support.tritons import TritonProcess


def counting(
    transport: Transport, count: int, seconds: float = 0.0
) -> Generator[dict[str, Array], None, None]:
    inputs = {"count": np.array([count]), "seconds": np.array([seconds], np.float32)}
    return transport.stream("counts", inputs)


@pytest.fixture
def cancelled(triton: TritonProcess) -> Path:
    note = triton.notes / "cancelled"
    note.unlink(missing_ok=True)
    return note


def test_every_answer_comes_in_its_order(transport: Transport) -> None:
    assert [answer["number"].tolist() for answer in counting(transport, 5)] == [[0], [1], [2], [3], [4]]


def test_a_model_may_have_nothing_to_say(transport: Transport) -> None:
    assert list(counting(transport, 0)) == []


def test_the_first_answer_is_there_before_the_last_is_made(transport: Transport) -> None:
    answers = counting(transport, 2, seconds=3.0)
    assert next(answers)["number"].tolist() == [0]
    first = time.monotonic()
    assert next(answers)["number"].tolist() == [1]
    # The model rests for three seconds between the two. If they came together, there would be no time between.
    assert time.monotonic() - first > 1


def test_a_model_that_answers_once_is_a_stream_of_one(transport: Transport) -> None:
    x = np.array([[1.0, 2.0]], np.float32)
    (answer,) = transport.stream("echo", {"x": x})
    assert answer["y"].tolist() == x.tolist()


def test_a_stream_that_is_closed_is_cancelled_in_triton(transport: Transport, cancelled: Path) -> None:
    answers = transport.stream("counts", {"count": np.array([1000]), "seconds": np.array([0.05], np.float32)})
    next(answers)
    answers.close()
    wait_until(cancelled.exists)


def test_a_caller_that_hangs_up_ends_the_work(transport: Transport, cancelled: Path) -> None:
    gone = threading.Event()
    with running(Deadline(time.monotonic() + 60, gone.is_set)), pytest.raises(CallerGone):
        for _ in counting(transport, 10, seconds=1.0):
            gone.set()
    wait_until(cancelled.exists)


def test_a_stream_ends_with_its_time(transport: Transport, cancelled: Path) -> None:
    seen = []
    with running(Deadline(time.monotonic() + 1.0)), pytest.raises(DeadlinePassed):
        for answer in counting(transport, 100, seconds=0.2):
            seen.append(answer["number"].item())
    assert seen
    assert seen == list(range(len(seen)))
    wait_until(cancelled.exists)


def test_a_failure_in_the_midst_comes_behind_what_came_before(transport: Transport) -> None:
    seen = []
    with pytest.raises(ModelFailed, match="no such luck"):
        for answer in counting(transport, 20):
            seen.append(answer["number"].item())
    assert seen == list(range(13))


def test_a_triton_whose_streams_fail_many_times_lives_on(transport: Transport) -> None:
    def fails(_: int) -> None:
        with pytest.raises(ModelFailed, match="^not this one$"):
            list(transport.stream("refuses", {"x": np.zeros(1, np.float32)}))

    with ThreadPoolExecutor(4) as callers:
        list(callers.map(fails, range(400)))
    assert len(list(counting(transport, 3))) == 3


def test_a_request_that_triton_refuses_is_the_callers_fault(transport: Transport) -> None:
    with pytest.raises(BadInput, match="unexpected shape for input 'count'"):
        next(transport.stream("counts", {"count": np.array([1, 2]), "seconds": np.zeros(1, np.float32)}))


def test_an_unknown_model_is_told(transport: Transport) -> None:
    with pytest.raises(UnknownModel, match="'nobody'"):
        next(transport.stream("nobody", {}))


def test_a_triton_that_dies_ends_the_stream(killable_triton: TritonProcess) -> None:
    killable_triton.start()
    transport = Transport(killable_triton.settings, killable_triton.box)
    answers = counting(transport, 100, seconds=0.1)
    next(answers)
    killable_triton.kill()
    with pytest.raises(NotReady):
        list(answers)
    transport.close()
