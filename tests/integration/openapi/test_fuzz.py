"""Good and bad requests generated from ``/openapi.json``: a real box fails at none and answers as described."""

from __future__ import annotations

import base64
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from openapi_schema_validator import OAS31Validator

from sm.client.payloads import EXAMPLE_PICTURE
from sm.http.messages import BINARY, JSON_LINES
from sm.http.openapi import document
from sm.router.forms.table import Forms
from tests.support.box_fixture import Boxes
from tests.support.boxes import RunningBox
from tests.support.demo_box import demo

__all__ = ["demo"]

#: Requests for each operation. They are the same in every run.
EXAMPLES_PER_OPERATION = 6
METHODS = ("get", "post", "delete")
OPERATIONS = [
    (method, path)
    for path, item in document(forms=Forms.load().schemas())["paths"].items()
    for method in METHODS
    if method in item
]
#: Names that the box serves, for half of the requests: nearly all generated names are unknown.
SERVED_NAMES = {"model": "resnet", "client": "resnet", "name": "bert_base", "version": "1"}
#: A header that is an error while sessions are off. The other half of the requests may have it.
SESSION_HEADER = "X-Amzn-SageMaker-Session-Id"
fuzz = settings(
    derandomize=True,
    database=None,
    deadline=None,
    max_examples=EXAMPLES_PER_OPERATION,
    phases=(Phase.generate,),
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture
def box(boxes: Boxes, demo: Path) -> RunningBox:
    """A box with the demo's models and the built-in clients only."""
    return boxes(demo)


@pytest.fixture
def api(box: RunningBox) -> Any:
    return schema(box.url)


@cache
def schema(url: str) -> Any:
    """The box's OpenAPI document for schemathesis, with strategies for bodies that are not JSON."""
    import schemathesis  # here, as every process that collects the tests would pay for it

    example = base64.b64decode(EXAMPLE_PICTURE)
    pictures = st.sampled_from([example, example[:40], b""]) | st.binary(max_size=100)
    for media_type in ("image/jpeg", "image/png", "image/webp", "application/x-npy", BINARY):
        schemathesis.openapi.media_type(media_type, pictures)
    lines = st.lists(st.sampled_from(['"[MASK] it is."', "{}", "", "{"])).map("\n".join).map(str.encode)
    schemathesis.openapi.media_type(JSON_LINES, lines)
    return schemathesis.openapi.from_url(f"{url}/openapi.json")


def validate(case: Any, response: Any) -> None:
    from schemathesis.specs.openapi import checks

    names = ("status_code", "content_type", "response_headers", "response_schema")
    case.validate_response(response, checks=[getattr(checks, f"{name}_conformance") for name in names])


def requests_of(operation: Any) -> st.SearchStrategy[Any]:
    """Requests that fit the document and, for an operation with a body, requests that break it."""
    from schemathesis import GenerationMode

    valid_requests = operation.as_strategy(generation_mode=GenerationMode.POSITIVE)
    invalid_requests = (
        operation.as_strategy(generation_mode=GenerationMode.NEGATIVE) if operation.body else st.nothing()
    )
    return st.one_of(valid_requests, invalid_requests)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        # Most faults are found in bodies.
        pytest.param(method, path, marks=[pytest.mark.exhaustive] if method == "get" else [])
        for method, path in OPERATIONS
    ],
)
def test_no_request_is_a_5xx_and_every_response_fits_the_document(
    api: Any, box: RunningBox, method: str, path: str
) -> None:
    operation = api[path][method]

    @fuzz
    @given(case=requests_of(operation), use_served_names=st.booleans())
    def send(case: Any, use_served_names: bool) -> None:
        if use_served_names:
            case.path_parameters = {name: SERVED_NAMES[name] for name in case.path_parameters or {}}
            (case.headers or {}).pop(SESSION_HEADER, None)
        response = case.call()
        # One caller cannot fill the queue, and these requests need little memory: 503 and 507 are failures too.
        assert response.status_code < 500, response.text
        validate(case, response)

    send()
    assert box.ping()[0] == 200


def assert_valid(api: Any, name: str, value: object) -> None:
    OAS31Validator({"$ref": f"#/components/schemas/{name}", **api.raw_schema}).validate(value)


def test_every_example_fits_its_schema_and_each_client_has_its_own_422(api: Any) -> None:
    for name, schema in api.raw_schema["components"]["schemas"].items():
        for example in schema.get("examples", ()):
            assert_valid(api, name, example)
    responses = api.raw_schema["components"]["responses"]
    for response in responses.values():
        assert response["description"]
        for example in response["content"]["application/json"].get("examples", {}).values():
            assert_valid(api, "Error", example["value"])
    examples = responses["Error422"]["content"]["application/json"]["examples"]
    assert {"bert_base", "resnet", "yolov5"} <= examples.keys()


@pytest.mark.parametrize("client", ["bert_base", "resnet", "yolov5"])
def test_each_client_s_examples_get_a_response_that_fits_the_document(
    api: Any, box: RunningBox, client: str
) -> None:
    schema = api.raw_schema["components"]["schemas"][f"{client}.Request"]
    assert "parameters" in schema["properties"]
    for example in schema["examples"]:
        response = box.invoke(client, example["payload"])
        assert response.status_code == 200
        assert_valid(api, f"{client}.Answer", response.json())
