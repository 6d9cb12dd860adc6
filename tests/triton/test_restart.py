from __future__ import annotations

import time

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
