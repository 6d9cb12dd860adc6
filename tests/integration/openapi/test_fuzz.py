"""Requests made from ``/openapi.json``, good and bad, to a real box: it fails at none, and answers as it says."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from openapi_schema_validator import OAS31Validator
from schemathesis import GenerationMode
from schemathesis.specs.openapi import checks

from sm.client.payloads import EXAMPLE_PICTURE
from sm.router.invocation import BINARY, JSON_LINES
from sm.router.openapi.document import document
from sm.settings import Settings
from sm.tools.build.prepare import prepare
from tests.support.boxes import RunningBox, running_box

#: Requests for each operation and kind. The same at every run.
EXAMPLES = 20
METHODS = ("get", "post", "delete")
OPERATIONS = [
    (method, path) for path, item in document([])["paths"].items() for method in METHODS if method in item
]
#: What is served, for half of the requests: of names made up nearly all are unknown.
SERVED = {"model": "resnet", "client": "resnet", "name": "bert_base", "version": "1"}
#: Header that is an error wherever sessions are off: the other half of the requests has it.
SESSION = "X-Amzn-SageMaker-Session-Id"
CONFORMS = [
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
]
#: The tensor of a model that is served, with anything in it.
TENSOR = st.fixed_dictionaries(
    {
        "name": st.just("input"),
        "datatype": st.sampled_from(["FP32", "INT64", "BYTES", "BOOL", "FP16", "", "?"]),
        "shape": st.lists(st.integers(-1, 2**63), max_size=5) | st.just([1, 3, 224, 224]),
    },
    optional={
        "data": st.lists(st.floats(allow_nan=False) | st.text() | st.none() | st.booleans(), max_size=5),
        "parameters": st.dictionaries(
            st.sampled_from(["binary_data_size", "classification", "shared_memory_region", "timeout"]),
            st.integers() | st.text() | st.none(),
        ),
    },
)
OUTPUT = st.fixed_dictionaries(
    {"name": st.sampled_from(["output", ""])}, optional={"parameters": st.integers()}
)
fuzzed = settings(
    derandomize=True,
    database=None,
    deadline=None,
    max_examples=EXAMPLES,
    phases=(Phase.generate,),
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBox]:
    """One with the demo's models and no client of other tests."""
    settings = Settings.read({})
    prepare(settings)
    repository = settings.cache / "repository" / "cpu"
    with running_box(tmp_path_factory.mktemp("box"), repository, clients=()) as started:
        yield started


@pytest.fixture(scope="module")
def api(box: RunningBox) -> Any:
    """The box's own document, and bodies for the types that are not JSON."""
    dot = base64.b64decode(EXAMPLE_PICTURE)
    picture = st.sampled_from([dot, dot[:40], b""]) | st.binary(max_size=100)
    for kind in ("image/jpeg", "image/png", "image/webp", "application/x-npy", BINARY):
        schemathesis.openapi.media_type(kind, picture)
    lines = st.lists(st.sampled_from(['"[MASK] it is."', "{}", "", "{"])).map("\n".join).map(str.encode)
    schemathesis.openapi.media_type(JSON_LINES, lines)
    return schemathesis.openapi.from_url(f"{box.url}/openapi.json")


def made(operation: Any) -> st.SearchStrategy[Any]:
    """Requests as the document wants them; where there is a body to get wrong, others too."""
    good = operation.as_strategy(generation_mode=GenerationMode.POSITIVE)
    bad = operation.as_strategy(generation_mode=GenerationMode.NEGATIVE) if operation.body else st.nothing()
    return st.one_of(good, bad)


@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_no_request_is_a_failure_and_every_answer_is_one_that_the_document_has(
    api: Any, box: RunningBox, method: str, path: str
) -> None:
    operation = api[path][method]

    @fuzzed
    @given(case=made(operation), known=st.booleans())
    def ask(case: Any, known: bool) -> None:
        if known:
            case.path_parameters = {name: SERVED[name] for name in case.path_parameters or {}}
            (case.headers or {}).pop(SESSION, None)
        answer = case.call()
        # One caller fills no queue, and none of these requests takes memory: 503 and 507 are failures as well.
        assert answer.status_code < 500, answer.text
        case.validate_response(answer, checks=CONFORMS)

    ask()
    assert box.ping()[0] == 200


@fuzzed
@given(tensor=TENSOR, outputs=st.lists(OUTPUT, max_size=2))
def test_no_tensor_is_a_failure(api: Any, box: RunningBox, tensor: Any, outputs: Any) -> None:
    for path in ("/v2/models/{model}/infer", "/models/{name}/invoke"):
        case = api[path]["post"].Case(
            path_parameters={"model": "resnet", "name": "resnet"},
            body={"inputs": [tensor], "outputs": outputs},
            media_type="application/json",
        )
        answer = case.call()
        assert answer.status_code < 500, answer.text
        case.validate_response(answer, checks=CONFORMS)
    assert box.ping()[0] == 200


def valid(api: Any, name: str, value: object) -> None:
    OAS31Validator({"$ref": f"#/components/schemas/{name}", **api.raw_schema}).validate(value)


def test_every_example_is_what_its_schema_says(api: Any) -> None:
    for name, schema in api.raw_schema["components"]["schemas"].items():
        for example in schema.get("examples", ()):
            valid(api, name, example)


@pytest.mark.parametrize("client", ["bert_base", "resnet", "yolov5"])
def test_each_client_s_examples_are_answered_as_the_document_says(
    api: Any, box: RunningBox, client: str
) -> None:
    schemas = api.raw_schema["components"]["schemas"]
    assert schemas[f"{client}.Answer"]["examples"]
    assert "parameters" in schemas[f"{client}.Request"]["properties"]
    for example in schemas[f"{client}.Request"]["examples"]:
        answer = box.invoke(client, example["payload"])
        assert answer.status_code == 200
        valid(api, f"{client}.Answer", answer.json())


def test_every_error_has_an_example_and_each_client_its_own(api: Any) -> None:
    responses = api.raw_schema["components"]["responses"]
    for name, response in responses.items():
        for example in response["content"]["application/json"].get("examples", {}).values():
            valid(api, "Error", example["value"])
            assert example["value"]["code"]
        assert response["description"], name
    assert {"bert_base", "resnet", "yolov5"} <= responses["Error422"]["content"]["application/json"][
        "examples"
    ].keys()
