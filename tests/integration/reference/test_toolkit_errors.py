"""A script can import the toolkit's errors, decoders and encoders under their public names."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator

import pytest
import requests

from sm.plugins.toolkit.code_imports import STAND_IN
from tests.support.model_archives import write_script
from tests.support.multi_model_endpoint import MultiModelEndpoint

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
    "utils": "CONTENT_TYPE_REGEX read_file write_file retrieve_content_type_header parse_accept remove_crlf",
}
#: Catches the codecs' errors unless it is ``STRICT``, and raises its own for the bodies that ask for it.
SCRIPT = """
import json, os
from sagemaker_inference import content_types, decoder, encoder, errors


def model_fn(model_dir):
    return model_dir


def transform_fn(model, body, content_type, accept):
    if body == "422":
        raise errors.GenericInferenceToolkitError(422, "no such colour")
    try:
        decoded = decoder.decode(body, content_type).tolist()
        return encoder.encode(decoded, accept), accept
    except (errors.UnsupportedFormatError, ValueError) as error:
        if STRICT:
            raise
        return json.dumps(type(error).__name__), content_types.JSON
"""


@pytest.fixture
def importable_stand_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Makes the stand-in for the toolkit importable during a test."""
    monkeypatch.syspath_prepend(STAND_IN)
    yield
    for name in [name for name in sys.modules if name.startswith(("sagemaker_inference", "sagemaker_cont"))]:
        monkeypatch.delitem(sys.modules, name)


@pytest.mark.usefixtures("importable_stand_in")
@pytest.mark.parametrize("module", PUBLIC_NAMES)
def test_every_public_name_of_the_toolkit_can_be_imported(module: str) -> None:
    imported = importlib.import_module(f"sagemaker_inference.{module}")
    assert set(PUBLIC_NAMES[module].split()) <= set(vars(imported))


@pytest.mark.parametrize(
    ("body", "content_type", "accept", "status"),
    [
        (b"<x/>", "text/xml", "*/*", 415),
        (b"[1,", "application/json", "*/*", 400),
        (b"[1]", "application/json", "image/png", 406),
    ],
)
def test_a_script_can_catch_the_codecs_errors_which_have_a_status_else(
    open_box: MultiModelEndpoint, body: bytes, content_type: str, accept: str, status: int
) -> None:
    answers = [send(open_box, name, body, content_type, accept) for name in ("strict", "lenient")]
    assert [answer.status_code for answer in answers] == [status, 200]
    assert list(answers[0].json()) == ["error", "code", "request_id"]


def test_a_toolkit_error_keeps_its_status_and_message(open_box: MultiModelEndpoint) -> None:
    response = send(open_box, "strict", b"422")
    assert (response.status_code, response.json()["error"]) == (422, "no such colour")
    assert send(open_box, "strict", b"[1]", accept="text/csv").text == "1\n"


def send(
    endpoint: MultiModelEndpoint, name: str, body: bytes, kind: str = "application/json", accept: str = "*/*"
) -> requests.Response:
    """Send a body to an archive of the script, which is loaded for the first one."""
    if name not in endpoint.names():
        archive = write_script(
            endpoint.platform.home / name / "model", f"STRICT = {name == 'strict'}\n{SCRIPT}"
        )
        endpoint.load_successfully(name, str(archive))
    headers = {"Content-Type": kind, "Accept": accept}
    return requests.post(f"{endpoint.url}/models/{name}/invoke", data=body, headers=headers, timeout=30)
