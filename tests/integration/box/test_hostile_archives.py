"""Damaged files beside an archive's client, and ONNX graphs that mean harm, harm their archive only."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from sm.triton import onnx_cpu
from tests.support.box_fixture import Boxes
from tests.support.boxes import wait_until
from tests.support.model_archives import multiplying_model
from tests.support.multi_model_endpoint import MultiModelEndpoint, shared_endpoint
from tests.support.onnx_graphs import endless, plus_one, save_graph

TIMEOUT_S = 5  # of an invocation
CLIENT = """
from pathlib import Path

from sm.client.base import Client

HERE = Path(__file__).parent


class Reader(Client):
    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        {statement}

    def inference(self, payload):
        return 1
"""


@pytest.fixture
def endpoint(boxes: Boxes) -> MultiModelEndpoint:
    """A box with one well-behaved model."""
    endpoint = shared_endpoint(
        boxes, SAGEMAKER_MODEL_SERVER_WORKERS="1", SAGEMAKER_MODEL_SERVER_TIMEOUT=str(TIMEOUT_S)
    )
    endpoint.ensure_loaded("good")
    return endpoint


def check_harmless(endpoint: MultiModelEndpoint, url: str, body: object) -> tuple[int, int]:
    """Load, invoke and unload an archive; return the statuses of the load and of the invocation."""
    triton = endpoint.child_pid("triton")
    load = endpoint.load("bad", url)
    answers = [load, *([endpoint.invoke("bad", body)] if load.ok else [])]
    if load.ok:
        answers.append(endpoint.unload("bad"))
    assert endpoint.infer_y("good") == [2, 4]
    assert endpoint.child_pid("triton") == triton
    for answer in answers:
        assert answer.ok or {"error", "code"} <= answer.json().keys(), answer.text
        assert "Traceback" not in answer.text
    return load.status_code, answers[1].status_code if load.ok else 0


@pytest.mark.parametrize(
    ("file", "statement"),
    [
        ("tokenizer.json", "import tokenizers; tokenizers.Tokenizer.from_file(str(HERE / 'tokenizer.json'))"),
        ("vocab.txt", "self.words = (HERE / 'vocab.txt').read_text('utf-8').split()"),
    ],
)
def test_a_damaged_file_beside_a_client_is_a_500_of_that_archive(
    endpoint: MultiModelEndpoint, file: str, statement: str
) -> None:
    client = CLIENT.format(statement=statement)
    url = Path(endpoint.platform.write_flat("bad", multiplying_model(3), client=client))
    (url / "code" / file).write_bytes(b'{"model": {"type": "BPE", ' + random.Random(1).randbytes(512))
    assert check_harmless(endpoint, str(url), {"payload": {}}) == (200, 500)


TENSORS = """
backend: "python"
input [{name: "x", data_type: TYPE_FP32, dims: [-1, 4]}]
output [{name: "y", data_type: TYPE_FP32, dims: [-1, 4]}]
"""
ONNX_BODY = {"inputs": [{"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]}]}


def write_onnx_archive(endpoint: MultiModelEndpoint, write: Callable[[Path], object]) -> Path:
    """Write an archive of an ONNX graph with the box's own program for it."""
    url = Path(endpoint.platform.write_flat("bad"))
    (url / "config.pbtxt").write_text(TENSORS)
    for name in ("model.py", "batching.py", "engines.py", "request_token.py"):
        shutil.copy(Path(onnx_cpu.__file__).with_name(name), url / "1" / name)
    write(url / "1" / "model.onnx")
    return url


def expand(path: Path, numbers: int) -> object:
    """x [b, 4] to y [numbers / 4, 4]."""
    shape = helper.make_tensor("shape", TensorProto.INT64, [2], [numbers // 4, 4])
    first = helper.make_node("Slice", ["x", "begin", "end"], ["row"])
    begin, end = (
        helper.make_tensor(name, TensorProto.INT64, [1], [at]) for name, at in (("begin", 0), ("end", 1))
    )
    node = helper.make_node("Expand", ["row", "shape"], ["y"])
    x, y = (TensorProto.FLOAT, ["b", 4]), (TensorProto.FLOAT, ["c", 4])
    return save_graph(path, [first, node], {"x": x}, {"y": y}, (shape, begin, end))


@pytest.mark.parametrize("bits", [42, 35])
def test_an_output_that_no_machine_holds_is_an_error_of_that_request(
    endpoint: MultiModelEndpoint, bits: int
) -> None:
    url = write_onnx_archive(endpoint, partial(expand, numbers=2**bits))
    assert check_harmless(endpoint, str(url), ONNX_BODY) == (200, 507)


def test_a_graph_without_end_is_loaded_again_after_its_requests_deadline(
    endpoint: MultiModelEndpoint,
) -> None:
    reloads = partial(endpoint.box.metric, "trireme_model_reloads_total", model="bad")
    endpoint.load_successfully("bad", str(write_onnx_archive(endpoint, endless)))
    answer = endpoint.invoke("bad", ONNX_BODY)
    assert answer.status_code == 504, answer.text
    assert endpoint.infer_y("good") == [2, 4]
    wait_until(lambda: reloads() == 1, description="the reload")
    assert endpoint.invoke("bad", ONNX_BODY).status_code == 504
    assert endpoint.unload("bad").status_code == 200
    assert endpoint.infer_y("good") == [2, 4]
    endpoint.load_successfully("bad", endpoint.platform.write_flat("bad", multiplying_model(3)))
    assert endpoint.invoke("bad").json()["outputs"][0]["data"] == [3, 6]
    endpoint.unload("bad")


def with_unknown_operator(path: Path) -> object:
    tensor = (TensorProto.FLOAT, ["b", 4])
    return save_graph(path, [helper.make_node("Nonsense", ["x"], ["y"])], {"x": tensor}, {"y": tensor})


def with_data_outside(path: Path) -> None:
    plus_one(path)
    graph = onnx.load(path)
    weight = graph.graph.initializer[0]
    weight.ClearField("float_data")
    weight.data_location = TensorProto.EXTERNAL
    for key, value in (("location", "../../../../../../etc/passwd"), ("offset", "0"), ("length", "4")):
        weight.external_data.add(key=key, value=value)
    onnx.save(graph, path)


@pytest.mark.parametrize("write", [with_unknown_operator, with_data_outside])
def test_a_graph_that_onnx_runtime_refuses_is_a_400(
    endpoint: MultiModelEndpoint, write: Callable[[Path], object]
) -> None:
    assert check_harmless(endpoint, str(write_onnx_archive(endpoint, write)), ONNX_BODY) == (400, 0)


def test_a_load_error_names_no_place_in_the_box(endpoint: MultiModelEndpoint) -> None:
    url = Path(endpoint.platform.write_flat("bad"))
    (url / "1" / "model.py").write_text("raise RuntimeError(__file__)\n")
    answer = endpoint.load("bad", str(url))
    assert answer.status_code == 400
    assert answer.json()["error"].endswith(" bad/1/model.py")
    assert str(endpoint.box.run_folder()) not in answer.text
