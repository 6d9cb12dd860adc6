"""A folder written for SageMaker's inference toolkit works on a real box, unchanged."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import requests

from tests.support.box_fixture import Boxes
from tests.support.boxes import RunningBox, retry_until_ok, wait_until
from tests.support.script_archives import write_script
from tests.support.tritons import MODELS
from tests.support.wheels import write_wheel

#: A script with all four functions. It imports a module beside it, and its pickle names a class of that module.
FOUR_FUNCTIONS = """
import csv
import io
import json
import os
import pickle

from helpers import Scaler
from sagemaker_inference import content_types, errors


def model_fn(model_dir):
    with open(os.path.join(model_dir, "model.pkl"), "rb") as file:
        return pickle.load(file)


def input_fn(body, content_type):
    if content_type == content_types.JSON:
        assert isinstance(body, str)
        return json.loads(body)["inputs"]
    if content_type == content_types.CSV:
        return [float(cell) for cell in next(csv.reader(io.StringIO(body)))]
    if content_type == "image/png":
        assert isinstance(body, bytes)
        return [len(body)]
    raise errors.UnsupportedFormatError(content_type)


def predict_fn(data, model):
    if data == "raise":
        raise KeyError("a secret of the script")
    if data == "teapot":
        raise errors.BaseInferenceToolkitError(418, "short and stout", "teapot")
    import lazy
    return [lazy.SIGN * value for value in model.scale(data)]


def output_fn(prediction, accept):
    if accept == "text/csv":
        return ",".join(map(str, prediction)), accept
    return json.dumps({"predictions": prediction, "accept": accept})
"""
HELPERS_MODULE = """
class Scaler:
    def __init__(self, factor):
        self.factor = factor

    def scale(self, values):
        return [self.factor * value for value in values]
"""
#: A pickled ``helpers.Scaler``, written by hand: there is no such module here to import.
PICKLED_SCALER = b"chelpers\nScaler\n)\x81}(X\x06\x00\x00\x00factorK\x03ub."


@pytest.fixture(scope="module")
def four_functions_box(boxes: Boxes, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBox]:
    """A box with a script that has all four functions, and no Triton model."""
    folder = tmp_path_factory.mktemp("four")
    repository = write_script(folder / "model", FOUR_FUNCTIONS, helpers=HELPERS_MODULE, lazy="SIGN = -1")
    (repository / "model.pkl").write_bytes(PICKLED_SCALER)
    (repository / "assets").mkdir()
    with boxes.own(repository, SAGEMAKER_MODEL_SERVER_WORKERS="2") as box:
        yield box


def test_the_scripts_four_functions_make_the_response(four_functions_box: RunningBox) -> None:
    response = four_functions_box.send(b'{"inputs": [1, 2]}')
    assert response.status_code == 200
    assert response.headers["Content-Type"] == "application/json"
    assert response.json() == {"predictions": [-3, -6], "accept": "application/json"}


def test_the_script_gets_any_content_type(four_functions_box: RunningBox) -> None:
    response = four_functions_box.send(b"1,2.5", "text/csv; charset=utf-8", headers={"Accept": "text/csv"})
    assert (response.text, response.headers["Content-Type"].partition(";")[0]) == ("-3.0,-7.5", "text/csv")
    assert four_functions_box.send(b"\x89PNG", "image/png").json()["predictions"] == [-12]


def test_an_exception_of_the_script_is_a_500_with_the_traceback_only_in_the_log(
    four_functions_box: RunningBox,
) -> None:
    response = four_functions_box.send(
        b'{"inputs": "raise"}', headers={"X-Amzn-SageMaker-Inference-Id": "raised-here"}
    )
    error = response.json()
    assert (response.status_code, error["code"], error["request_id"]) == (500, "client_failed", "raised-here")
    assert "secret" not in response.text
    assert "in predict_fn" in four_functions_box.wait_for_log("a secret of the script")


def test_the_script_answers_dispatch_requests_by_name_too(four_functions_box: RunningBox) -> None:
    response = four_functions_box.invoke("model", {"inputs": [1]})
    assert response.json() == {
        "modelname": "model",
        "result": {"predictions": [-3], "accept": "application/json"},
    }
    results = four_functions_box.invoke("model", [{"inputs": [1]}, {"inputs": "raise"}]).json()["result"]
    assert results[0]["predictions"] == [-3]
    assert results[1]["code"] == "client_failed"


MODEL_FN_ONLY = """
import numpy as np


class Model:
    def predict(self, data):
        if isinstance(data, dict):
            return sorted(data)
        return np.asarray(data, dtype=np.float64) * 2


def model_fn(model_dir, context):
    assert context.system_properties["model_dir"] == model_dir
    return Model()
"""


@pytest.fixture(scope="module")
def defaults_box(boxes: Boxes, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBox]:
    """A box with a script that has only ``model_fn``, beside a Triton model."""
    folder = tmp_path_factory.mktemp("defaults")
    repository = write_script(folder / "model", MODEL_FN_ONLY)
    MODELS["echo"].write(repository / "echo")
    with boxes.own(repository, SAGEMAKER_MODEL_SERVER_WORKERS="1") as box:
        yield box


def npy_bytes(value: object, pickled: bool = False) -> bytes:
    stream = io.BytesIO()
    np.save(stream, np.asarray(value), allow_pickle=pickled)
    return stream.getvalue()


@pytest.mark.parametrize("accept", ["application/json", "text/csv", "application/x-npy"])
@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        (b"[[1, 2], [3, 4]]", "application/json"),
        (b"1,2\n3,4\n", "text/csv"),
        (npy_bytes([[1, 2], [3, 4]]), "application/x-npy"),
    ],
)
def test_without_own_codecs_json_csv_and_npy_are_read_and_written(
    defaults_box: RunningBox, body: bytes, content_type: str, accept: str
) -> None:
    response = defaults_box.send(body, content_type, headers={"Accept": accept})
    assert response.headers["Content-Type"].partition(";")[0] == accept
    if accept == "application/json":
        result = np.array(response.json())
    elif accept == "text/csv":
        result = np.genfromtxt(io.StringIO(response.text), delimiter=",")
    else:
        result = np.load(io.BytesIO(response.content), allow_pickle=False)
    assert result.tolist() == [[2, 4], [6, 8]]


def test_the_script_gets_json_that_looks_like_v2_or_dispatch(defaults_box: RunningBox) -> None:
    assert defaults_box.send(b'{"inputs": [], "parameters": {}}').json() == ["inputs", "parameters"]
    assert defaults_box.send(b'{"payload": 1}').json() == ["payload"]


def test_a_triton_model_beside_the_script_is_served_by_name(defaults_box: RunningBox) -> None:
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}
    response = requests.post(
        f"{defaults_box.url}/invocations", json={"inputs": [tensor]}, params={"modelname": "echo"}, timeout=20
    )
    assert response.json()["outputs"][0]["data"] == [1, 2]


TRANSFORM_FN = """
import time

import trireme_tiny


def model_fn(model_dir):
    return trireme_tiny.WORD


def transform_fn(model, body, content_type, accept):
    if body == b"sleep":
        time.sleep(5)
    return f"{model} {content_type} {accept} {len(body)}", "text/plain"
"""


def test_transform_fn_alone_works_with_a_package_from_a_wheel(boxes: Boxes, tmp_path: Path) -> None:
    repository = write_script(
        tmp_path / "model", "raise AssertionError('another script is named')\n", serve=TRANSFORM_FN
    )
    write_wheel(repository / "code" / "wheels", "trireme_tiny")
    (repository / "code" / "requirements.txt").write_text("trireme-tiny\n")
    with boxes.own(
        repository,
        SAGEMAKER_PROGRAM="serve.py",
        SAGEMAKER_SUBMIT_DIRECTORY=str(repository / "code"),
        TRIREME_INSTALL_REQUIREMENTS="true",
        TRIREME_CACHE=str(tmp_path / "cache"),
        SAGEMAKER_DEFAULT_INVOCATIONS_ACCEPT="text/csv",
        SAGEMAKER_MODEL_SERVER_WORKERS="1",
        SAGEMAKER_MODEL_SERVER_TIMEOUT="2",
    ) as box:
        response = retry_until_ok(lambda: box.send(b"\x00\x01", "application/octet-stream"))
        assert response.text == "installed application/octet-stream text/csv 2"
        assert response.headers["Content-Type"].partition(";")[0] == "text/plain"
        # One request runs at a time: a request that waits too long behind a slow one gets a 504.
        slow_caller = threading.Thread(target=box.send, args=(b"sleep", "text/plain"))
        slow_caller.start()
        wait_until(lambda: box.metric("trireme_in_flight") >= 1, description="the slow request")
        late_response = box.send(b"late", "text/plain")
        assert (late_response.status_code, late_response.json()["code"]) == (504, "deadline_passed")
        slow_caller.join()
        assert retry_until_ok(lambda: box.send(b"", "text/plain")).text == "installed text/plain text/csv 0"


@pytest.mark.exhaustive
def test_a_script_that_never_returns_costs_its_worker_but_not_the_box(boxes: Boxes, tmp_path: Path) -> None:
    script = TRANSFORM_FN.replace("import trireme_tiny\n", "").replace("trireme_tiny.WORD", "'hung'")
    repository = write_script(tmp_path / "model", script.replace("time.sleep(5)", "time.sleep(1000)"))
    with boxes.own(repository, SAGEMAKER_MODEL_SERVER_WORKERS="1", SAGEMAKER_MODEL_SERVER_TIMEOUT="1") as box:
        (worker,) = box.workers()
        assert box.send(b"sleep", "text/plain").status_code == 504
        wait_until(
            lambda: box.send(b"", "text/plain").status_code == 200, description="the script to answer again"
        )
        assert box.workers() != [worker]
        assert box.ping()[0] == 200


@pytest.mark.parametrize(
    ("script", "variables", "named"),
    [
        ("def model_fn(folder):\n    open(folder + '/gone')\n", {}, "inference.py: line 2"),
        (MODEL_FN_ONLY, {"SAGEMAKER_PROGRAM": "gone.py"}, "SAGEMAKER_PROGRAM='gone.py'"),
        (MODEL_FN_ONLY, {"TRIREME_INSTALL_REQUIREMENTS": "true"}, "requirements.txt"),
    ],
    ids=["a fault in it", "a program that does not exist", "a package that does not exist"],
)
def test_a_script_that_cannot_be_served_stops_the_start_in_a_sentence(
    boxes: Boxes, tmp_path: Path, script: str, variables: dict[str, str], named: str
) -> None:
    repository = write_script(tmp_path / "model", script)
    (repository / "code" / "wheels").mkdir()
    (repository / "code" / "requirements.txt").write_text("trireme-nowhere\n")
    log = boxes.failed_start(repository, TRIREME_CACHE=str(tmp_path / "cache"), **variables)
    assert named in log
    assert "Traceback" not in log
