"""A transport survives the death and restart of Triton, with no wrong answer and no lost shared memory."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Event

import numpy as np
import pytest

from sm.errors import NotReady, UnknownModel
from sm.metrics import TENSORS
from sm.model_processes.answer_guard import AnswerGuard
from sm.models.table import models_of
from sm.router.request_types import Message, TritonRequest
from sm.router.triton_requests import TritonForwarder
from sm.triton import server
from sm.triton.calls import Calls
from sm.triton.http_proxy import Upstream
from sm.triton.transport import Transport
from tests.support.boxes import wait_until
from tests.support.series import value
from tests.support.tritons import TritonProcess, prepare_triton


@pytest.fixture(scope="module")
def killable_triton(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonProcess]:
    serving = prepare_triton(tmp_path_factory.mktemp("killable"), ["fixed"])
    serving.start()
    yield serving
    serving.stop()


def tensors(way: str = "shared_memory") -> float:
    return value(TENSORS.labels(way))


def wait_for_answers(count: int) -> None:
    begin = tensors()
    wait_until(lambda: tensors() >= begin + count, description="answers through shared memory")


def test_a_restart_under_load_gives_no_wrong_answer_and_loses_no_memory(
    killable_triton: TritonProcess,
) -> None:
    # Just enough for four callers that each keep an answer until the next one: a lost region would be noticed.
    transport = Transport(killable_triton.settings, replace(killable_triton.box, shared_bytes=8 * 851_968))
    has_failed, stop = Event(), Event()

    def keep_calling(number: int) -> None:
        x = np.full((1, 100_000), number, np.float32)
        while not stop.is_set():
            try:
                y = transport.infer("fixed", {"x": x})["y"]
            except NotReady:
                has_failed.set()
                time.sleep(0.01)
                continue
            assert (y == 2 * number).all()

    with ThreadPoolExecutor(4) as pool:
        callers = [pool.submit(keep_calling, number) for number in range(4)]
        try:
            wait_for_answers(20)
            killable_triton.kill()
            assert has_failed.wait(60)
            killable_triton.start()
            # Each caller has received answers from the new Triton, which has registered the regions.
            wait_for_answers(40)
            by_message = tensors("grpc")
            wait_for_answers(40)
            assert tensors("grpc") == by_message
        finally:
            stop.set()
    for caller in callers:
        caller.result()
    transport.close()
    assert killable_triton.shared_memory_files() == []


def test_a_model_that_the_next_triton_could_not_load_is_a_503(killable_triton: TritonProcess) -> None:
    """The last test of this Triton, as the model stays broken."""
    x = np.zeros((1, 100_000), np.float32)
    transport = Transport(killable_triton.settings, killable_triton.box)
    transport.infer("fixed", {"x": x})
    killable_triton.kill()
    model_file = killable_triton.box.repository / "fixed" / "1" / "model.py"
    model_file.write_text("raise MemoryError('no room for it')")
    killable_triton.launch()
    wait_until(lambda: server.failures(killable_triton.box.http_port), 60, "the model's failure")
    with pytest.raises(NotReady):
        transport.infer("fixed", {"x": x})
    # A caller of the v2 protocol gets the same error.
    upstream = Upstream(killable_triton.box.http_port, 5.0, Calls(AnswerGuard(None)))
    v2 = TritonForwarder(upstream, models_of({}, models=("fixed",)))
    with contextlib.closing(upstream), pytest.raises(NotReady):
        v2.run(TritonRequest(Message(b'{"inputs": []}', {}, {}, "id"), "fixed"), None)
    # A name that was never served stays unknown.
    with pytest.raises(UnknownModel):
        transport.infer("nothing", {"x": x})
    transport.close()
