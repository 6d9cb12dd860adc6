from __future__ import annotations

import threading
import time
from dataclasses import replace

import numpy as np
import pytest

from sm.errors import NotReady
from sm.metrics import TENSORS
from sm.triton.transport import Transport
from tests.triton.serving import Serving

X = np.arange(100_000, dtype=np.float32)[None]


def shared() -> float:
    return float(TENSORS.labels("shared_memory")._value.get())


def test_a_killed_triton_is_found_again_at_once(mortal: Serving) -> None:
    mortal.start()
    transport = Transport(mortal.settings, mortal.box)
    for _ in range(3):
        transport.infer("fixed", {"x": X})
    mortal.kill()
    for _ in range(20):
        with pytest.raises(NotReady):
            transport.infer("fixed", {"x": X})
    mortal.start()
    before, ready = shared(), time.monotonic()
    while True:
        try:
            y = transport.infer("fixed", {"x": X})["y"]
            break
        except NotReady:
            assert time.monotonic() < ready + 5
            time.sleep(0.01)
    assert time.monotonic() - ready < 1
    assert np.array_equal(y, X * 2)
    assert shared() == before + 1
    transport.close()
    assert mortal.files() == []


def test_killed_under_load_no_answer_is_wrong_and_no_memory_is_lost(mortal: Serving) -> None:
    mortal.start()
    # Just enough for four callers that each keep an answer until the next: a lost region would be missed.
    transport = Transport(mortal.settings, replace(mortal.box, shared_bytes=8 * 851_968))
    over = threading.Event()
    wrong: list[int] = []
    refused: list[NotReady] = []

    def call(number: int) -> None:
        x = np.full((1, 100_000), number, np.float32)
        while not over.is_set():
            try:
                y = transport.infer("fixed", {"x": x})["y"]
            except NotReady as error:
                refused.append(error)
                time.sleep(0.01)
                continue
            if not (y == 2 * number).all():
                wrong.append(number)

    callers = [threading.Thread(target=call, args=(number,)) for number in range(4)]
    for caller in callers:
        caller.start()
    time.sleep(0.5)
    mortal.kill()
    mortal.start()
    time.sleep(1)
    before = shared(), float(TENSORS.labels("grpc")._value.get())
    time.sleep(1)
    assert shared() > before[0]
    assert float(TENSORS.labels("grpc")._value.get()) == before[1]
    over.set()
    for caller in callers:
        caller.join(10)
    assert refused
    assert wrong == []
    transport.close()
