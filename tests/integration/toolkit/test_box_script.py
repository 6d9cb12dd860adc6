"""A folder written for SageMaker's inference toolkit works on a real box, unchanged."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import requests

from tests.support.box_fixture import Boxes
from tests.support.boxes import retry_until_ok, wait_until
from tests.support.model_archives import multiplying_model, write_script
from tests.support.multi_model_endpoint import MultiModelEndpoint, infer, shared_endpoint
from tests.support.tritons import MODELS
from tests.support.wheels import write_wheel

JSON = "application/json"
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
TRANSFORM_FN = """
import time

import trireme_tiny


def model_fn(model_dir):
    return trireme_tiny.WORD


def transform_fn(model, body, content_type, accept):
    if body == b"hang":
        print("it hangs")
        time.sleep(SECONDS)
    return f"{model} {content_type} {accept} {len(body)}", "text/plain"
"""


@pytest.fixture
def endpoint(boxes: Boxes) -> MultiModelEndpoint:
    """A box in multi-model mode with two scripts: ``four`` has all four functions, ``defaults`` only ``model_fn``."""
    endpoint = shared_endpoint(boxes, SAGEMAKER_MODEL_SERVER_WORKERS="2")
    if endpoint.names() == []:
        four, defaults = (endpoint.platform.home / name / "model" for name in ("four", "defaults"))
        write_script(four, FOUR_FUNCTIONS, helpers=HELPERS_MODULE, lazy="SIGN = -1")
        (four / "model.pkl").write_bytes(PICKLED_SCALER)
        (four / "assets").mkdir()
        write_script(defaults, MODEL_FN_ONLY)
        endpoint.load_successfully("four", str(four))
        endpoint.load_successfully("defaults", str(defaults))
    return endpoint


def send(
    endpoint: MultiModelEndpoint, name: str, body: bytes, content_type: str, **headers: str
) -> requests.Response:
    sent = {"Content-Type": content_type, **headers}
    return requests.post(f"{endpoint.url}/models/{name}/invoke", data=body, headers=sent, timeout=30)


def test_the_scripts_four_functions_make_the_response(endpoint: MultiModelEndpoint) -> None:
    response = send(endpoint, "four", b'{"inputs": [1, 2]}', JSON)
    assert (response.status_code, response.headers["Content-Type"]) == (200, JSON)
    assert response.json() == {"predictions": [-3, -6], "accept": JSON}
    response = send(endpoint, "four", b"1,2.5", "text/csv; charset=utf-8", Accept="text/csv")
    assert (response.text, response.headers["Content-Type"].partition(";")[0]) == ("-3.0,-7.5", "text/csv")
    assert send(endpoint, "four", b"\x89PNG", "image/png").json()["predictions"] == [-12]


def test_an_exception_of_the_script_is_a_500_with_the_traceback_only_in_the_log(
    endpoint: MultiModelEndpoint,
) -> None:
    response = send(
        endpoint, "four", b'{"inputs": "raise"}', JSON, **{"X-Amzn-SageMaker-Inference-Id": "here"}
    )
    error = response.json()
    assert (response.status_code, error["code"], error["request_id"]) == (500, "client_failed", "here")
    assert "secret" not in response.text
    endpoint.box.wait_for_log("a secret of the script")


def test_the_script_answers_dispatch_requests_by_name_too(endpoint: MultiModelEndpoint) -> None:
    response = endpoint.box.invoke("four", {"inputs": [1]})
    assert response.json() == {"modelname": "four", "result": {"predictions": [-3], "accept": JSON}}
    results = endpoint.box.invoke("four", [{"inputs": [1]}, {"inputs": "raise"}]).json()["result"]
    assert (results[0]["predictions"], results[1]["code"]) == ([-3], "client_failed")


def test_the_script_gets_json_that_looks_like_v2_or_dispatch(endpoint: MultiModelEndpoint) -> None:
    bodies: tuple[dict[str, object], ...] = ({"inputs": [], "parameters": {}}, {"payload": 1})
    for body in bodies:
        assert send(endpoint, "defaults", json.dumps(body).encode(), JSON).json() == sorted(body)


@pytest.mark.parametrize("seconds", [4, pytest.param(1000, marks=pytest.mark.exhaustive)])
def test_transform_fn_alone_works_with_a_package_from_a_wheel(
    boxes: Boxes, tmp_path: Path, seconds: int
) -> None:
    """Beside a Triton model; and a script that never returns costs its worker, but not the box."""
    repository = write_script(
        tmp_path / "model",
        "raise AssertionError('another script is named')\n",
        serve=TRANSFORM_FN.replace("SECONDS", str(seconds)),
    )
    write_wheel(repository / "code" / "wheels", "trireme_tiny")
    (repository / "code" / "requirements.txt").write_text("trireme-tiny\n")
    MODELS["echo"].write(repository / "echo")
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
        assert infer(box.url, "echo").json()["outputs"][0]["data"] == [1, 2]
        response = retry_until_ok(lambda: box.send(b"\x00\x01", "application/octet-stream"))
        assert response.text == "installed application/octet-stream text/csv 2"
        assert response.headers["Content-Type"].partition(";")[0] == "text/plain"
        # One request runs at a time: a request that waits too long behind one that hangs gets a 504 too.
        (worker,) = box.workers()
        with ThreadPoolExecutor(1) as caller:
            hanging = caller.submit(box.send, b"hang", "text/plain")
            box.wait_for_log("it hangs")
            for response in (box.send(b"late", "text/plain"), hanging.result()):
                assert (response.status_code, response.json()["code"]) == (504, "deadline_passed")
        wait_until(lambda: box.send(b"", "text/plain").status_code == 200, description="the script again")
        assert seconds == 4 or box.workers() != [worker]


def write_failing_script(folder: Path) -> None:
    write_script(folder, "def model_fn(folder):\n    open(folder + '/gone')\n")


def write_model_that_ends_at_import(folder: Path) -> None:
    """Triton 2.51 waits for ever for a model whose process ends during an import."""
    for name in ("resnet", "good"):
        multiplying_model().write(folder / name)
    script = folder / "resnet" / "1" / "model.py"
    script.write_text(f"import os\nos._exit(3)\n{script.read_text()}")


@pytest.mark.parametrize(
    ("write", "named"),
    [
        (write_failing_script, "inference.py: line 2"),
        (write_model_that_ends_at_import, "ended with exit code 3 while it was imported"),
    ],
)
def test_a_script_or_model_that_cannot_be_served_stops_the_start_in_a_sentence(
    boxes: Boxes, tmp_path: Path, write: Callable[[Path], None], named: str
) -> None:
    write(tmp_path / "model")
    log = boxes.failed_start(tmp_path / "model")
    assert (named in log, "Traceback" in log) == (True, False)
