from __future__ import annotations

import contextlib
import gc
import threading
import time
from dataclasses import replace

import numpy as np
import pytest

from sm.errors import BadInput, NotReady, UnknownModel
from sm.metrics import TENSORS
from sm.plugins.registry import Registry
from sm.router.invocation import Message, TritonRequest
from sm.router.triton_requests import Triton
from sm.triton import server
from sm.triton.http_proxy import Upstream
from sm.triton.regions import Lease
from sm.triton.transport import Transport
from tests.support.boxes import wait_until
from tests.support.tritons import TritonProcess

X = np.arange(100_000, dtype=np.float32)[None]


def shared() -> float:
    return float(TENSORS.labels("shared_memory").value)


def by_message() -> float:
    return float(TENSORS.labels("grpc").value)


def test_a_killed_triton_is_found_again_by_the_same_transport(killable_triton: TritonProcess) -> None:
    killable_triton.start()
    transport = Transport(killable_triton.settings, killable_triton.box)
    for _ in range(3):
        transport.infer("fixed", {"x": X})
    killable_triton.kill()
    for _ in range(20):
        with pytest.raises(NotReady):
            transport.infer("fixed", {"x": X})
    killable_triton.start()
    before = shared()

    def found_again() -> bool:
        try:
            return np.array_equal(transport.infer("fixed", {"x": X})["y"], X * 2)
        except NotReady:
            return False

    wait_until(found_again, description="an answer of the new Triton")
    assert shared() == before + 1
    transport.close()
    assert killable_triton.shared_memory_files() == []


def test_a_model_that_a_new_triton_has_not_loaded_is_a_503_and_no_404(killable_triton: TritonProcess) -> None:
    killable_triton.start()
    transport = Transport(killable_triton.settings, killable_triton.box)
    transport.infer("fixed", {"x": X})
    killable_triton.kill()
    code = killable_triton.box.repository / "fixed" / "1" / "model.py"
    code.write_text("raise MemoryError('no room for it')")
    killable_triton.launch()
    wait_until(lambda: server.live(killable_triton.box.http_port), 60, "Triton's answer")
    wait_until(lambda: server.failures(killable_triton.box.http_port), 60, "the model's failure")
    with pytest.raises(NotReady):
        transport.infer("fixed", {"x": X})
    # The same for a caller of the v2 protocol.
    upstream = Upstream(killable_triton.box.http_port, 5.0)
    v2 = Triton(upstream, Registry({}, models=("fixed",)))
    with contextlib.closing(upstream), pytest.raises(NotReady):
        v2.run(TritonRequest(Message(b'{"inputs": []}', {}, {}, "id"), "fixed"))
    # Another name was never there.
    with pytest.raises(UnknownModel):
        transport.infer("nothing", {"x": X})
    transport.forget(["fixed"])
    with pytest.raises((NotReady, UnknownModel)):
        transport.infer("fixed", {"x": X})
    transport.close()


def test_a_failed_request_keeps_no_shared_memory_until_the_garbage_collector_comes(
    killable_triton: TritonProcess,
) -> None:
    killable_triton.start()
    transport = Transport(killable_triton.settings, killable_triton.box)
    transport.infer("fixed", {"x": X})
    gc.collect()
    gc.disable()
    try:
        with pytest.raises(BadInput):
            transport.infer("fixed", {"x": X[:, None]})
        killable_triton.kill()
        for _ in range(5):
            with pytest.raises(NotReady):
                transport.infer("fixed", {"x": X})
        assert [thing for thing in gc.get_objects() if isinstance(thing, Lease)] == []
    finally:
        gc.enable()
    transport.close()


def test_killed_under_load_no_answer_is_wrong_and_no_memory_is_lost(killable_triton: TritonProcess) -> None:
    killable_triton.start()
    # Just enough for four callers that each keep an answer until the next: a lost region would be missed.
    transport = Transport(killable_triton.settings, replace(killable_triton.box, shared_bytes=8 * 851_968))
    over = threading.Event()
    wrong: list[int] = []
    refused: list[str] = []

    def call(number: int) -> None:
        x = np.full((1, 100_000), number, np.float32)
        while not over.is_set():
            try:
                y = transport.infer("fixed", {"x": x})["y"]
            except NotReady as error:
                # Its sentence alone: the error's traceback has the lease of the failed request.
                refused.append(error.sentence)
                time.sleep(0.01)
                continue
            if not (y == 2 * number).all():
                wrong.append(number)

    callers = [threading.Thread(target=call, args=(number,), daemon=True) for number in range(4)]
    started = shared()
    for caller in callers:
        caller.start()
    try:
        wait_until(lambda: shared() >= started + 20, description="answers under load")
        killable_triton.kill()
        wait_until(lambda: refused, description="a refusal")
        killable_triton.start()
        restarted = shared()
        # Each caller has had answers of the new Triton, and its regions are registered there.
        wait_until(lambda: shared() >= restarted + 40, description="answers through shared memory again")
        before = by_message()
        again = shared()
        wait_until(lambda: shared() >= again + 40, description="more of them")
        assert by_message() == before
    finally:
        over.set()
    for caller in callers:
        caller.join(60)
    assert wrong == []
    transport.close()
