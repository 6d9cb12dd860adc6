"""A script can import the toolkit's errors, decoders and encoders under their public names."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator

import pytest
import requests

from sm.plugins.toolkit.code_imports import STAND_IN
from tests.support.multi_model_endpoint import MultiModelEndpoint
from tests.support.script_archives import write_script

#: Every public name of the toolkit that an inference script can use.
PUBLIC_NAMES = {
    "content_types": "JSON CSV OCTET_STREAM ANY NPY NPZ UTF8_TYPES",
    "decoder": "decode",
    "default_inference_handler": "DefaultInferenceHandler",
    "encoder": "encode SUPPORTED_CONTENT_TYPES",
    "environment": "Environment base_dir code_dir model_dir DEFAULT_MODULE_NAME",
    "errors": "UnsupportedFormatError BaseInferenceToolkitError GenericInferenceToolkitError",
    "logging": "configure_logger get_logger",
    "parameters": (
        "BASE_PATH_ENV USER_PROGRAM_ENV LOG_LEVEL_ENV DEFAULT_INVOCATIONS_ACCEPT_ENV"
        " MODEL_SERVER_WORKERS_ENV MODEL_SERVER_TIMEOUT_ENV BIND_TO_PORT_ENV SAFE_PORT_RANGE_ENV MULTI_MODEL_ENV"
    ),
    "utils": (
        "CONTENT_TYPE_REGEX read_file write_file retrieve_content_type_header parse_accept remove_crlf"
    ),
}
CATCHING_SCRIPT = """
import json
from sagemaker_inference import content_types, decoder, encoder, errors


def model_fn(model_dir):
    return "model"


def input_fn(body, content_type):
    try:
        return decoder.decode(body, content_type).tolist()
    except errors.UnsupportedFormatError:
        return "caught: no decoder"
    except ValueError:
        return "caught: no such body"


def predict_fn(data, model):
    if data == ["chosen"]:
        raise errors.GenericInferenceToolkitError(422, "no such colour")
    return data


def output_fn(prediction, accept):
    try:
        return encoder.encode(prediction, accept), accept
    except errors.UnsupportedFormatError:
        return json.dumps([prediction, "caught: no encoder"]), content_types.JSON
"""
NOT_CATCHING_SCRIPT = """
from sagemaker_inference import decoder, encoder, errors


def model_fn(model_dir):
    return "model"


def transform_fn(model, body, content_type, accept):
    if body == b"own":
        raise errors.UnsupportedFormatError("application/x-unknown")
    return encoder.encode(decoder.decode(body, content_type), accept), accept
"""


@pytest.fixture
def importable_stand_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Makes the stand-in for the toolkit importable during a test."""
    monkeypatch.syspath_prepend(STAND_IN)
    yield
    for name in [name for name in sys.modules if name.startswith(("sagemaker_inference", "sagemaker_cont"))]:
        monkeypatch.delitem(sys.modules, name)


@pytest.fixture
def endpoint(open_box: MultiModelEndpoint) -> MultiModelEndpoint:
    """A box with an archive of each script."""
    for name, script in (("catching", CATCHING_SCRIPT), ("not-catching", NOT_CATCHING_SCRIPT)):
        if name not in open_box.names():
            archive = write_script(open_box.platform.home / name / "model", script)
            open_box.load_successfully(name, str(archive))
    return open_box


def send(
    endpoint: MultiModelEndpoint, name: str, body: bytes, kind: str = "application/json", accept: str = "*/*"
) -> requests.Response:
    headers = {"Content-Type": kind, "Accept": accept}
    return requests.post(f"{endpoint.url}/models/{name}/invoke", data=body, headers=headers, timeout=30)


def test_a_script_can_catch_the_codecs_errors(endpoint: MultiModelEndpoint) -> None:
    assert send(endpoint, "catching", b"<x/>", "text/xml").json() == "caught: no decoder"
    assert send(endpoint, "catching", b"[1,").json() == "caught: no such body"
    assert send(endpoint, "catching", b"[1]", accept="image/png").json() == [[1], "caught: no encoder"]
    assert send(endpoint, "catching", b"[1]", accept="text/csv").text == "1\n"


def test_a_toolkit_error_keeps_its_status_and_message(endpoint: MultiModelEndpoint) -> None:
    response = send(endpoint, "catching", b'["chosen"]')
    assert (response.status_code, response.json()["error"]) == (422, "no such colour")


def test_an_uncaught_toolkit_error_has_its_http_status(endpoint: MultiModelEndpoint) -> None:
    responses = {
        415: send(endpoint, "not-catching", b"<x/>", "text/xml"),
        400: send(endpoint, "not-catching", b"[1,"),
        406: send(endpoint, "not-catching", b"[1]", accept="image/png"),
    }
    for status, response in responses.items():
        assert response.status_code == status, response.text
        assert list(response.json()) == ["error", "code", "request_id"]
    assert send(endpoint, "not-catching", b"own", "application/octet-stream").status_code == 415


@pytest.mark.usefixtures("importable_stand_in")
def test_every_public_name_of_the_toolkit_can_be_imported() -> None:
    for module, names in PUBLIC_NAMES.items():
        assert set(names.split()) <= set(vars(importlib.import_module(f"sagemaker_inference.{module}"))), (
            module
        )
