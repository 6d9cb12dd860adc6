"""A Python model in the wheel's Triton reads and writes every datatype, with the installed packages."""

from __future__ import annotations

import json
import urllib.error
import urllib.request

import numpy as np
import pytest

from sm.triton.tensors import DTYPES
from sm.triton.transport import Transport
from tests.support.tritons import TritonProcess


def test_every_datatype_arrives_unchanged_at_any_size(transport: Transport) -> None:
    for size in (5, 70_001, 0):
        inputs = {name: (np.arange(size) % 100).astype(dtype) for name, dtype in DTYPES.items()}
        outputs = transport.infer("typed", inputs)
        for name, x in inputs.items():
            y = outputs[f"of_{name}"]
            assert y.dtype == x.dtype
            assert np.array_equal(y, x[::-1]), (name, size)


def test_python_models_run_with_the_packages_of_this_interpreter(triton: TritonProcess) -> None:
    import onnxruntime

    body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [1]}]}
    url = f"http://127.0.0.1:{triton.box.http_port}/v2/models/where/infer"
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(url, json.dumps(body).encode(), timeout=10)
    with refused.value as answer:
        assert onnxruntime.__file__ in answer.read().decode().replace("\\/", "/")
