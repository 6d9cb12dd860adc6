"""Models that hang, and ONNX graphs that mean harm, harm their archive only."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import onnx
import pytest
import requests
from onnx import TensorProto, helper

from tests.support.box_fixture import Boxes
from tests.support.boxes import RunningBox, wait_until
from tests.support.faults.attack import model_pids
from tests.support.model_archives import chain_config, multiplying_model
from tests.support.multi_model_endpoint import MultiModelEndpoint, shared_endpoint
from tests.support.onnx_graphs import long_loop, plus_one, save_graph
from tests.support.raw_http import begin_post
from tests.support.tritons import DecoupledModel, Model
from trireme_extensions.convert import onnx_cpu

TIMEOUT_S = 8  # of an invocation


@pytest.fixture(scope="module")
def gpu_memory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a fake nvidia-smi beside it prints."""
    file = tmp_path_factory.mktemp("gpu") / "memory"
    file.write_text("100, 1000\n")
    nvidia_smi = file.with_name("nvidia-smi")
    nvidia_smi.write_text(f"#!/bin/sh\ncat {file}\n")
    nvidia_smi.chmod(0o755)
    return file


@pytest.fixture
def endpoint(boxes: Boxes, gpu_memory: Path) -> MultiModelEndpoint:
    """A box with one well-behaved model, a limit for its GPU, and no namespacing."""
    endpoint = shared_endpoint(
        boxes,
        SAGEMAKER_MODEL_SERVER_WORKERS="1",
        SAGEMAKER_MODEL_SERVER_TIMEOUT=str(TIMEOUT_S),
        TRIREME_MODEL_TIMEOUT_SECONDS=str(TIMEOUT_S + 2),
        TRIREME_STREAM_TIMEOUT=str(TIMEOUT_S),
        SAGEMAKER_TRITON_DISABLE_MODEL_NAMESPACING="true",
        SAGEMAKER_TRITON_MODEL_LOAD_GPU_LIMIT="0.8",
        PATH=f"{gpu_memory.parent}:{os.environ['PATH']}",
    )
    endpoint.ensure_loaded("good")
    return endpoint


def check_harmless(endpoint: MultiModelEndpoint, url: str, body: object) -> tuple[int, int]:
    """Load, invoke and unload an archive; return the statuses of the load and of the invocation."""
    triton = endpoint.child_pid("triton")
    load = endpoint.load("bad", url)
    answers = [load, *([endpoint.invoke("bad", body), endpoint.unload("bad")] if load.ok else [])]
    assert endpoint.infer_y("good") == [2, 4]
    assert endpoint.child_pid("triton") == triton
    for answer in answers:
        assert answer.ok or {"error", "code"} <= answer.json().keys(), answer.text
        assert "Traceback" not in answer.text
        assert str(endpoint.box.run_folder()) not in answer.text
    return load.status_code, answers[1].status_code if load.ok else 0


def test_a_taken_step_is_a_409_and_a_full_gpu_a_507(endpoint: MultiModelEndpoint, gpu_memory: Path) -> None:
    steps = {"pre": multiplying_model(2), "whole": chain_config("pre")}
    endpoint.load_successfully("one", endpoint.platform.write_nested("one", steps))
    response = endpoint.load("two", endpoint.platform.write_nested("two", steps))
    assert (response.status_code, response.json()["code"]) == (409, "conflict")
    url = endpoint.platform.write_flat("three", multiplying_model(3))
    gpu_memory.write_text("100, 1000\n900, 1000\n")
    response = endpoint.load("three", url)
    gpu_memory.write_text("100, 1000\n")
    assert (response.status_code, response.json()["code"]) == (507, "out_of_memory")
    endpoint.load_successfully("three", url)
    assert (endpoint.infer_y("one"), endpoint.infer_y("three")) == ([2, 4], [3, 6])


TENSORS = """
backend: "python"
input [{name: "x", data_type: TYPE_FP32, dims: [-1, 4]}]
output [{name: "y", data_type: TYPE_FP32, dims: [-1, 4]}]
"""
ONNX_BODY = {"inputs": [{"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]}]}


def write_onnx_archive(endpoint: MultiModelEndpoint, write: Callable[[Path], object]) -> str:
    """Write an archive of an ONNX graph with the box's own program for it."""
    url = Path(endpoint.platform.write_flat("bad"))
    (url / "config.pbtxt").write_text(TENSORS)
    for name in ("model.py", "batching.py", "engines.py", "request_token.py"):
        shutil.copy(Path(onnx_cpu.__file__).with_name(name), url / "1" / name)
    write(url / "1" / "model.onnx")
    return str(url)


def huge_output(path: Path, numbers: int) -> None:
    """x [b, 4] to y [numbers / 4, 4]."""
    constants = [("shape", [numbers // 4, 4]), ("begin", [0]), ("end", [1])]
    weights = [helper.make_tensor(name, TensorProto.INT64, [len(row)], row) for name, row in constants]
    nodes = [
        helper.make_node("Slice", ["x", "begin", "end"], ["row"]),
        helper.make_node("Expand", ["row", "shape"], ["y"]),
    ]
    x, y = (TensorProto.FLOAT, ["b", 4]), (TensorProto.FLOAT, ["c", 4])
    save_graph(path, nodes, {"x": x}, {"y": y}, tuple(weights))


def with_unknown_operator(path: Path) -> None:
    tensor = (TensorProto.FLOAT, ["b", 4])
    save_graph(path, [helper.make_node("Nonsense", ["x"], ["y"])], {"x": tensor}, {"y": tensor})


def with_data_outside(path: Path) -> None:
    plus_one(path)
    graph = onnx.load(path)
    weight = graph.graph.initializer[0]
    weight.ClearField("float_data")
    weight.data_location = TensorProto.EXTERNAL
    path.parent.with_name("outside").write_bytes(bytes(4))
    for key, value in (("location", "../outside"), ("offset", "0"), ("length", "4")):
        weight.external_data.add(key=key, value=value)
    onnx.save(graph, path)


@pytest.mark.parametrize(
    ("write", "statuses"),
    [
        (partial(huge_output, numbers=2**42), (200, 507)),  # no machine has so much memory
        (with_unknown_operator, (400, 0)),
        (with_data_outside, (400, 0)),
    ],
    ids=["16 TiB", "unknown operator", "data outside"],
)
def test_a_hostile_graph_is_an_error_of_its_archive(
    endpoint: MultiModelEndpoint, write: Callable[[Path], object], statuses: tuple[int, int]
) -> None:
    assert check_harmless(endpoint, write_onnx_archive(endpoint, write), ONNX_BODY) == statuses


#: Hangs at a negative number, and sleeps that many seconds at another.
HANGS = """
number = float(tensor(request, "x").ravel()[0])
while number == -1:
    pass
while number == -2:
    time.sleep(1)
time.sleep(number)
"""
X, Y = {"x": ("FP32", [-1])}, {"y": ("FP32", [-1])}
HANGING = Model(f'{HANGS}\nreturn {{"y": tensor(request, "x")}}', X, Y, max_batch_size=8)
STREAM = DecoupledModel(
    f'{HANGS}\nyield {{"y": tensor(request, "x")}}', {"x": ("FP32", [1])}, {"y": ("FP32", [1])}
)
STEPS = {"before": multiplying_model(), "step": HANGING, "after": multiplying_model()}
ENSEMBLE = {**STEPS, "all": chain_config("before", "step", "after")}
#: Triton's models, those that are made to hang first.
MODELS = ("alone", "step", "stream", "bad", "before", "after", "good")


def number_body(number: float) -> dict[str, object]:
    return {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [number]}]}


def processes(box: RunningBox) -> dict[str, list[int]]:
    return {name: model_pids(box, name) for name in MODELS}


def counts(box: RunningBox, name: str) -> dict[str, float]:
    return {model: box.metric(f"trireme_model_{name}_total", model=model) for model in MODELS}


@pytest.fixture
def hanging(endpoint: MultiModelEndpoint) -> MultiModelEndpoint:
    """The box with models that hang, each for a reason of its own."""
    platform = endpoint.platform
    if "alone" not in endpoint.names():
        endpoint.load_successfully("alone", platform.write_flat("alone", HANGING))
        endpoint.load_successfully("stream", platform.write_flat("stream", STREAM))
        endpoint.load_successfully("all", platform.write_nested("all", ENSEMBLE))
        endpoint.load_successfully("bad", write_onnx_archive(endpoint, long_loop))
    return endpoint


def test_a_model_that_hangs_is_loaded_again_and_nothing_else_is(hanging: MultiModelEndpoint) -> None:
    """Four hang at once; requests that wait behind one get their answers."""
    box, hung = hanging.box, MODELS[:4]
    before, server = processes(box), hanging.child_pid("triton")
    reloads, hangs = counts(box, "reloads"), counts(box, "hangs")
    assert hanging.invoke("all", number_body(0)).ok
    with ThreadPoolExecutor(9) as pool:
        alone = pool.submit(hanging.invoke, "alone", number_body(-1))
        time.sleep(2)  # so that this one is loaded again first
        others = [
            pool.submit(hanging.invoke, "all", number_body(-2)),
            pool.submit(hanging.invoke, "bad", ONNX_BODY),
        ]
        stream_url = f"{box.url}/v2/models/stream/generate_stream"
        pool.submit(requests.post, stream_url, json={"x": -2.0}, timeout=60)
        time.sleep(0.6 * TIMEOUT_S)  # those who wait now have time left when the model is back
        waiting = [pool.submit(hanging.invoke, "alone", number_body(0)) for _ in range(4)]
        for answer in (alone.result(), *(each.result() for each in others)):
            assert (answer.status_code, answer.json()["code"]) == (504, "deadline_passed"), answer.text
        assert "X-Trireme-Repeated" not in alone.result().headers
        for answer in (each.result() for each in waiting):
            assert (answer.status_code, answer.headers.get("X-Trireme-Repeated")) == (200, "1"), answer.text
    expected = {model: reloads[model] + (model in hung) for model in MODELS}
    wait_until(lambda: counts(box, "reloads") == expected, description="the reloads")
    wait_until(lambda: hanging.invoke("all", number_body(0)).ok, description="the ensemble's answer")
    assert counts(box, "hangs") == {model: hangs[model] + (model in hung) for model in MODELS}
    after = processes(box)
    assert {name for name in MODELS if after[name] != before[name]} == {*hung}
    assert hanging.child_pid("triton") == server
    lines = [json.loads(line) for line in box.log.read_text().splitlines()]
    # A request's own line has a status.
    assert "alone" in {
        line.get("model") for line in lines if "status" not in line and line["level"] != "info"
    }
    assert hanging.unload("bad").status_code == 200


def invoke_and_hang_up(box: RunningBox, number: float, seconds: float) -> None:
    with begin_post(box.port, "/models/alone/invoke", json.dumps(number_body(number)).encode()):
        time.sleep(seconds)


def test_a_model_whose_caller_hung_up_is_loaded_again_too(hanging: MultiModelEndpoint) -> None:
    reloads = partial(hanging.box.metric, "trireme_model_reloads_total", model="alone")
    before = reloads()
    invoke_and_hang_up(hanging.box, -2, 1.5)
    wait_until(lambda: reloads() == before + 1, description="the reload")
    assert hanging.invoke("alone", number_body(0)).ok


@pytest.mark.exhaustive
def test_a_model_that_is_only_slow_is_kept_within_its_own_time(hanging: MultiModelEndpoint) -> None:
    """It takes longer than a request may; then it has nothing to do."""
    box = hanging.box
    before, hangs = processes(box), counts(box, "hangs")
    assert hanging.invoke("alone", number_body(TIMEOUT_S + 0.8)).status_code == 504
    invoke_and_hang_up(box, 1.7, 1.2)
    time.sleep(TIMEOUT_S + 4)
    assert (processes(box), counts(box, "hangs")) == (before, hangs)


NEVER_ENDS = """
while True:
    pass
"""
ECHO_CLIENT = """
from sm.client import Client, Payload


class Text(Payload):
    text: str


class Echo(Client):
    payload = Text

    def inference(self, payload):
        return payload.text
"""


@pytest.mark.exhaustive
@pytest.mark.parametrize("is_deleted", [False, True])
def test_a_client_whose_import_never_ends_stops_no_other_client_for_ever(
    endpoint: MultiModelEndpoint, is_deleted: bool
) -> None:
    for name, code in (("stuck", NEVER_ENDS), ("fine", ECHO_CLIENT)):
        url = endpoint.platform.write_flat(name, multiplying_model())
        (Path(url) / "code").mkdir(exist_ok=True)
        (Path(url) / "code" / "client.py").write_text(code)
        endpoint.load_successfully(name, url)
    (worker,) = endpoint.box.workers()
    body = {"payload": {"text": "a"}}
    assert endpoint.invoke("stuck", body).status_code == 504
    if is_deleted:
        assert endpoint.unload("stuck").status_code == 200
    wait_until(lambda: endpoint.invoke("fine", body).status_code == 200, description="another client")
    wait_until(lambda: worker not in endpoint.box.workers(), description="another worker")
    assert endpoint.invoke("fine", body).json()["result"] == "a"
    assert endpoint.infer_y("good") == [2, 4]
    if not is_deleted:
        for _ in range(2):
            answer = endpoint.invoke("stuck", body)
            assert (answer.status_code, answer.json()["code"]) == (500, "client_failed")
        endpoint.unload("stuck")
    endpoint.unload("fine")


@pytest.mark.exhaustive
def test_an_archive_of_many_files_is_unloaded_as_soon_as_triton_has_let_go_of_it(
    endpoint: MultiModelEndpoint,
) -> None:
    url = endpoint.platform.write_flat("many", multiplying_model(3))
    data = Path(url) / "1" / "data"
    data.mkdir()
    for number in range(20_000):
        (data / f"{number}").touch()
    endpoint.load_successfully("many", url)
    assert endpoint.infer_y("many") == [3, 6]
    assert endpoint.unload("many").status_code == 200
    archives = endpoint.box.run_folder() / "archives-removed"
    wait_until(lambda: not list(archives.glob("*")), description="the end of its files")


@pytest.mark.parametrize("size", [2**17 + 1, 900_000])
@pytest.mark.parametrize("name", ["client.py", "inference.py"])
def test_a_client_that_takes_long_to_parse_is_refused_unread(
    endpoint: MultiModelEndpoint, name: str, size: int
) -> None:
    url = endpoint.platform.write_flat("large", multiplying_model())
    (Path(url) / "code").mkdir(exist_ok=True)
    (Path(url) / "code" / name).write_text("x = [" + "[]," * (size // 3) + "]")
    refused = endpoint.load("large-client", url)
    assert (refused.status_code, refused.json()["code"]) == (400, "bad_input")
    assert endpoint.infer_y("good") == [2, 4]
