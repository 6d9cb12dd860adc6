"""A transport survives the death and restart of Triton, with no wrong answer and no lost shared memory."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from sm.errors import NotReady, UnknownModel
from sm.metrics import TENSORS
from sm.model_processes.answer_guard import AnswerGuard
from sm.models.found_clients import models_of
from sm.router.request_types import Message, TritonRequest
from sm.router.triton_requests import Triton
from sm.triton import server
from sm.triton.calls import Calls
from sm.triton.http_proxy import Upstream
from sm.triton.transport import Transport
from tests.support.boxes import wait_until
from tests.support.series import value
from tests.support.tritons import TritonProcess, prepare_triton

X = np.arange(100_000, dtype=np.float32)[None]


@pytest.fixture(scope="module")
def module_triton(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonProcess]:
    serving = prepare_triton(tmp_path_factory.mktemp("killable"), ["fixed", "counts"])
    yield serving
    serving.stop()


@pytest.fixture
def killable_triton(module_triton: TritonProcess) -> TritonProcess:
    """A running Triton that a test may kill."""
    if module_triton.process is None or module_triton.process.poll() is not None:
        module_triton.start()
    return module_triton


def tensors(way: str = "shared_memory") -> float:
    return value(TENSORS.labels(way))


def test_a_restart_under_load_gives_no_wrong_answer_and_loses_no_memory(
    killable_triton: TritonProcess,
) -> None:
    # Just enough for four callers that each keep an answer until the next one: a lost region would be noticed.
    transport = Transport(killable_triton.settings, replace(killable_triton.box, shared_bytes=8 * 851_968))
    stop = threading.Event()
    wrong_answers: list[int] = []
    errors: list[str] = []

    def call(number: int) -> None:
        x = np.full((1, 100_000), number, np.float32)
        while not stop.is_set():
            try:
                y = transport.infer("fixed", {"x": x})["y"]
            except NotReady as error:
                # Keep only the sentence: the error's traceback refers to the lease of the failed request.
                errors.append(error.sentence)
                time.sleep(0.01)
                continue
            if not (y == 2 * number).all():
                wrong_answers.append(number)

    def wait_for_answers(count: int) -> None:
        begin = tensors()
        wait_until(lambda: tensors() >= begin + count, description="answers through shared memory")

    callers = [threading.Thread(target=call, args=(number,), daemon=True) for number in range(4)]
    for caller in callers:
        caller.start()
    try:
        wait_for_answers(20)
        killable_triton.kill()
        wait_until(lambda: errors, description="a failed call")
        killable_triton.start()
        # Each caller has received answers from the new Triton, which has registered the regions.
        wait_for_answers(40)
        by_message = tensors("grpc")
        wait_for_answers(40)
        assert tensors("grpc") == by_message
    finally:
        stop.set()
    for caller in callers:
        caller.join(60)
    assert wrong_answers == []
    transport.close()
    assert killable_triton.shared_memory_files() == []


def test_a_triton_that_dies_ends_the_stream(killable_triton: TritonProcess) -> None:
    transport = Transport(killable_triton.settings, killable_triton.box)
    answers = transport.stream("counts", {"count": np.array([100]), "seconds": np.array([0.1], np.float32)})
    next(answers)
    killable_triton.kill()
    with pytest.raises(NotReady):
        list(answers)
    transport.close()


def test_a_model_that_a_restarted_triton_could_not_load_is_a_503(killable_triton: TritonProcess) -> None:
    transport = Transport(killable_triton.settings, killable_triton.box)
    transport.infer("fixed", {"x": X})
    killable_triton.kill()
    # The last test of this Triton, as the model stays broken.
    model_file = killable_triton.box.repository / "fixed" / "1" / "model.py"
    model_file.write_text("raise MemoryError('no room for it')")
    killable_triton.launch()
    wait_until(lambda: server.failures(killable_triton.box.http_port), 60, "the model's failure")
    with pytest.raises(NotReady):
        transport.infer("fixed", {"x": X})
    # A caller of the v2 protocol gets the same error.
    upstream = Upstream(killable_triton.box.http_port, 5.0, Calls(AnswerGuard(None)))
    v2 = Triton(upstream, models_of({}, models=("fixed",)))
    with contextlib.closing(upstream), pytest.raises(NotReady):
        v2.run(TritonRequest(Message(b'{"inputs": []}', {}, {}, "id"), "fixed"), None)
    # A name that was never served stays unknown.
    with pytest.raises(UnknownModel):
        transport.infer("nothing", {"x": X})
    transport.close()
