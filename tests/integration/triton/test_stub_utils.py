"""A Python model in the wheel's Triton reads and writes every datatype, with the installed NumPy."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from sm.triton.tensors import DTYPES
from sm.triton.transport import Transport
from tests.support.tritons import Model, TritonProcess, prepare_triton

REVERSE_EVERY_INPUT = """
assert all(isinstance(t, pb.Tensor) for t in request.inputs())
return {"of_" + t.name(): t.as_numpy()[::-1] for t in request.inputs()}
"""


@pytest.fixture
def typed_triton(tmp_path: Path) -> Iterator[TritonProcess]:
    serving = prepare_triton(tmp_path, [])
    inputs = {name: (name, [-1]) for name in DTYPES}
    outputs = {f"of_{name}": (name, [-1]) for name in DTYPES}
    Model(REVERSE_EVERY_INPUT, inputs, outputs).write(serving.box.repository / "typed")
    serving.start()
    yield serving
    serving.stop()


def test_every_datatype_arrives_unchanged_at_any_size(typed_triton: TritonProcess) -> None:
    transport = Transport(typed_triton.settings, typed_triton.box)
    for size in (5, 70_001, 0):
        inputs = {name: (np.arange(size) % 100).astype(dtype) for name, dtype in DTYPES.items()}
        outputs = transport.infer("typed", inputs)
        for name, x in inputs.items():
            y = outputs[f"of_{name}"]
            assert y.dtype == x.dtype
            assert np.array_equal(y, x[::-1]), (name, size)
    transport.close()
    assert "Traceback" not in (typed_triton.box.run / "triton.log").read_text()
