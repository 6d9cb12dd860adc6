"""What a python model of the wheel's Triton reads and writes, with whatever NumPy is installed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from sm.triton.tensors import DTYPES
from sm.triton.transport import Transport
from tests.support.tritons import Model, TritonProcess, prepare_triton

ANSWER = """
assert all(isinstance(t, pb.Tensor) for t in request.inputs())
return {"of_" + t.name(): t.as_numpy()[::-1] for t in request.inputs()}
"""


@pytest.fixture
def typed(tmp_path: Path) -> Iterator[TritonProcess]:
    serving = prepare_triton(tmp_path, [])
    inputs = {name: (name, [-1]) for name in DTYPES}
    outputs = {f"of_{name}": (name, [-1]) for name in DTYPES}
    Model(ANSWER, inputs, outputs).write(serving.box.repository / "typed")
    serving.start()
    yield serving
    serving.stop()


def test_every_datatype_comes_through_at_any_size(typed: TritonProcess) -> None:
    transport = Transport(typed.settings, typed.box)
    for size in (5, 70_001, 0):
        inputs = {name: (np.arange(size) % 100).astype(dtype) for name, dtype in DTYPES.items()}
        outputs = transport.infer("typed", inputs)
        for name, x in inputs.items():
            y = outputs[f"of_{name}"]
            assert y.dtype == x.dtype
            assert np.array_equal(y, x[::-1]), (name, size)
    transport.close()
    assert "Traceback" not in (typed.box.run / "triton.log").read_text()
