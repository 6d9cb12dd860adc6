"""A toolkit user's folder, unchanged, on the real box."""

from __future__ import annotations

import io
import json
import pickle
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import requests

from tests.support.boxes import RunningBox, log_of_failed_start, running_box, wait_until
from tests.support.tritons import MODELS
from tests.support.wheels import wheel

#: Every function of its own; a module beside it; a pickle that names a class of that module.
FOUR = """
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
HELPERS = """
class Scaler:
    def __init__(self, factor):
        self.factor = factor

    def scale(self, values):
        return [self.factor * value for value in values]
"""
#: The class as its pickle names it, made without importing a module of that name here.
SCALER = b"chelpers\nScaler\n)\x81}(X\x06\x00\x00\x00factorK\x03ub."


def repository(folder: Path, script: str, **modules: str) -> Path:
    code = folder / "model" / "code"
    code.mkdir(parents=True)
    (code / "inference.py").write_text(script)
    for name, text in modules.items():
        (code / f"{name}.py").write_text(text)
    return folder / "model"


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBox]:
    """A box with a script that has all four functions, and no model of Triton's."""
    folder = tmp_path_factory.mktemp("four")
    home = repository(folder, FOUR, helpers=HELPERS, lazy="SIGN = -1")
    (home / "model.pkl").write_bytes(SCALER)
    (home / "assets").mkdir()
    with running_box(folder, home, clients=(), SAGEMAKER_MODEL_SERVER_WORKERS="2") as box:
        yield box


def test_its_four_functions_answer_in_their_own_words(four: RunningBox) -> None:
    response = four.send(b'{"inputs": [1, 2]}')
    assert response.status_code == 200
    assert response.headers["Content-Type"] == "application/json"
    assert response.json() == {"predictions": [-3, -6], "accept": "application/json"}


def test_any_content_type_reaches_it(four: RunningBox) -> None:
    response = four.send(b"1,2.5", "text/csv; charset=utf-8", headers={"Accept": "text/csv"})
    assert (response.text, response.headers["Content-Type"].partition(";")[0]) == ("-3.0,-7.5", "text/csv")
    assert four.send(b"\x89PNG", "image/png").json()["predictions"] == [-12]


def test_a_type_that_it_refuses_is_a_415(four: RunningBox) -> None:
    response = four.send(b"<x/>", "text/xml")
    assert (response.status_code, response.json()["code"]) == (415, "unsupported_content_type")


def test_what_it_raises_is_a_500_with_the_traceback_in_the_log_alone(four: RunningBox) -> None:
    response = four.send(b'{"inputs": "raise"}', headers={"X-Amzn-SageMaker-Inference-Id": "raised-here"})
    assert response.status_code == 500
    assert response.json() == {
        "error": "the client of 'model' failed (KeyError)",
        "code": "client_failed",
        "request_id": "raised-here",
    }
    assert "in predict_fn" in four.wait_for_log("a secret of the script")


def test_the_toolkits_own_errors_choose_their_status(four: RunningBox) -> None:
    response = four.send(b'{"inputs": "teapot"}')
    assert (response.status_code, response.json()["error"]) == (418, "short and stout")


def test_it_can_be_asked_by_name_in_the_dispatch_form_too(four: RunningBox) -> None:
    response = four.invoke("model", {"inputs": [1]})
    assert response.json() == {
        "modelname": "model",
        "result": {"predictions": [-3], "accept": "application/json"},
    }
    many = four.invoke("model", [{"inputs": [1]}, {"inputs": "raise"}]).json()["result"]
    assert many[0]["predictions"] == [-3]
    assert many[1]["code"] == "client_failed"


def test_the_box_says_what_it_serves(four: RunningBox) -> None:
    (row,) = requests.get(f"{four.url}/models", timeout=5).json()["models"]
    assert (row["modelName"], row["client"]) == ("model", "ToolkitClient")


def test_both_workers_and_many_callers_get_their_own_answers(four: RunningBox) -> None:
    answers: dict[int, object] = {}

    def ask(number: int) -> None:
        answers[number] = four.send(json.dumps({"inputs": [number]}).encode()).json()["predictions"]

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == {number: [-3 * number] for number in range(32)}


DEFAULTS = """
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
def defaults(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBox]:
    """A box with a script of one function, beside a model of Triton's."""
    folder = tmp_path_factory.mktemp("defaults")
    home = repository(folder, DEFAULTS)
    MODELS["echo"].write(home / "echo")
    with running_box(folder, home, clients=(), SAGEMAKER_MODEL_SERVER_WORKERS="1") as box:
        yield box


def npy(value: object, pickled: bool = False) -> bytes:
    stream = io.BytesIO()
    np.save(stream, np.asarray(value), allow_pickle=pickled)
    return stream.getvalue()


@pytest.mark.parametrize("accept", ["application/json", "text/csv", "application/x-npy"])
@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        (b"[[1, 2], [3, 4]]", "application/json"),
        (b"1,2\n3,4\n", "text/csv"),
        (npy([[1, 2], [3, 4]]), "application/x-npy"),
    ],
)
def test_without_codecs_of_its_own_json_csv_and_npy_go_in_and_out(
    defaults: RunningBox, body: bytes, content_type: str, accept: str
) -> None:
    response = defaults.send(body, content_type, headers={"Accept": accept})
    assert response.headers["Content-Type"].partition(";")[0] == accept
    if accept == "application/json":
        read = np.array(response.json())
    elif accept == "text/csv":
        read = np.genfromtxt(io.StringIO(response.text), delimiter=",")
    else:
        read = np.load(io.BytesIO(response.content), allow_pickle=False)
    assert read.tolist() == [[2, 4], [6, 8]]


def test_a_pickled_npy_is_a_400(defaults: RunningBox) -> None:
    for body in (npy([{}], pickled=True), pickle.dumps([1])):
        response = defaults.send(body, "application/x-npy")
        assert (response.status_code, response.json()["code"]) == (400, "bad_input")


@pytest.mark.parametrize(
    ("body", "content_type", "accept", "status"),
    [
        (b"[1,", "application/json", "*/*", 400),
        (b"\xff", "application/json", "*/*", 400),
        (b"", "text/csv", "*/*", 400),
        (b"x", "text/xml", "*/*", 415),
        (b"[1]", "application/json", "image/png", 406),
    ],
)
def test_what_the_default_codecs_cannot_do_has_its_status(
    defaults: RunningBox, body: bytes, content_type: str, accept: str, status: int
) -> None:
    response = defaults.send(body, content_type, headers={"Accept": accept})
    assert response.status_code == status, response.text
    assert set(response.json()) == {"error", "code", "request_id"}


def test_json_that_looks_like_another_form_is_still_the_scripts(defaults: RunningBox) -> None:
    assert defaults.send(b'{"inputs": [], "parameters": {}}').json() == ["inputs", "parameters"]
    assert defaults.send(b'{"payload": 1}').json() == ["payload"]


def test_a_model_of_tritons_beside_it_is_served_by_name(defaults: RunningBox) -> None:
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}
    response = requests.post(
        f"{defaults.url}/invocations", json={"inputs": [tensor]}, params={"modelname": "echo"}, timeout=20
    )
    assert response.json()["outputs"][0]["data"] == [1, 2]


TRANSFORM = """
import time

import trireme_tiny


def model_fn(model_dir):
    return trireme_tiny.WORD


def transform_fn(model, body, content_type, accept):
    if body == b"sleep":
        time.sleep(3)
    return f"{model} {content_type} {accept} {len(body)}", "text/plain"
"""


def test_transform_fn_alone_and_a_package_out_of_a_wheel_beside_it(tmp_path: Path) -> None:
    home = repository(tmp_path, "raise AssertionError('another script is named')\n", serve=TRANSFORM)
    wheel(home / "code" / "wheels", "trireme_tiny")
    (home / "code" / "requirements.txt").write_text("trireme-tiny\n")
    variables = {
        "SAGEMAKER_PROGRAM": "serve.py",
        "SAGEMAKER_SUBMIT_DIRECTORY": str(home / "code"),
        "TRIREME_INSTALL_REQUIREMENTS": "true",
        "TRIREME_CACHE": str(tmp_path / "cache"),
        "SAGEMAKER_DEFAULT_INVOCATIONS_ACCEPT": "text/csv",
        "SAGEMAKER_MODEL_SERVER_WORKERS": "1",
        "SAGEMAKER_MODEL_SERVER_TIMEOUT": "2",
    }
    with running_box(tmp_path, home, True, (), **variables) as box:
        response = box.send(b"\x00\x01", "application/octet-stream")
        assert response.text == "installed application/octet-stream text/csv 2"
        assert response.headers["Content-Type"].partition(";")[0] == "text/plain"
        # One request at a time: what waits behind a slow one in vain is told so.
        slow = threading.Thread(target=box.send, args=(b"sleep", "text/plain"))
        slow.start()
        wait_until(lambda: box.metric("trireme_in_flight") >= 1, description="the slow request to be there")
        late = box.send(b"late", "text/plain")
        assert (late.status_code, late.json()["code"]) == (504, "deadline_passed")
        slow.join()
        assert box.send(b"", "text/plain").text == "installed text/plain text/csv 0"


def test_a_script_that_never_comes_back_costs_its_worker_and_not_the_box(tmp_path: Path) -> None:
    script = TRANSFORM.replace("import trireme_tiny\n", "").replace("trireme_tiny.WORD", "'hung'")
    home = repository(tmp_path, script.replace("time.sleep(3)", "time.sleep(1000)"))
    variables = {"SAGEMAKER_MODEL_SERVER_WORKERS": "1", "SAGEMAKER_MODEL_SERVER_TIMEOUT": "1"}
    with running_box(tmp_path, home, True, (), **variables) as box:
        assert box.send(b"sleep", "text/plain").status_code == 504
        wait_until(
            lambda: box.send(b"", "text/plain").status_code == 200, description="the script to answer again"
        )
        assert box.wait_for_log("is still busy with a request after its deadline")
        assert box.ping()[0] == 200


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (
            "import nothing_of_this_name\n\ndef model_fn(folder): pass\n",
            "inference.py: line 1: ModuleNotFoundError",
        ),
        ("def model_fn(folder):\n    open(folder + '/gone')\n", "inference.py: line 2: FileNotFoundError"),
        ("def predict_fn(data, model): pass\n", "inference.py: it has no model_fn"),
        ("def model_fn(folder:\n", "inference.py: line 1: SyntaxError"),
    ],
)
def test_a_script_that_cannot_work_stops_the_start_with_its_line(
    tmp_path: Path, script: str, said: str
) -> None:
    assert said in refused(tmp_path, repository(tmp_path, script))


def test_requirements_that_cannot_be_had_stop_the_start(tmp_path: Path) -> None:
    home = repository(tmp_path, DEFAULTS)
    (home / "code" / "wheels").mkdir()
    (home / "code" / "requirements.txt").write_text("trireme-nowhere\n")
    variables = {"TRIREME_INSTALL_REQUIREMENTS": "true", "TRIREME_CACHE": str(tmp_path / "cache")}
    assert "requirements.txt: pip cannot install it: " in refused(tmp_path, home, **variables)


def test_a_program_that_is_not_there_stops_the_start_naming_it(tmp_path: Path) -> None:
    home = repository(tmp_path, DEFAULTS)
    assert "SAGEMAKER_PROGRAM='gone.py'" in refused(tmp_path, home, SAGEMAKER_PROGRAM="gone.py")


def refused(folder: Path, home: Path, **variables: str) -> str:
    """The log of a start that must fail."""
    log = log_of_failed_start(folder, home, (), **variables)
    assert "Traceback" not in log
    return log
