"""The v2 protocol's binary form in ``/invocations``, under SageMaker's name for it."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest

from .container import JSON, Container, Question, json_of, refused

pytestmark = pytest.mark.modes("single")
TYPE = "application/vnd.sagemaker-triton.binary+json"
#: How ``struct`` writes a number of each datatype.
LETTERS = {
    "BOOL": "?",
    "INT8": "b",
    "INT16": "h",
    "INT32": "i",
    "INT64": "q",
    "UINT8": "B",
    "UINT16": "H",
    "UINT32": "I",
    "UINT64": "Q",
    "FP16": "e",
    "FP32": "f",
    "FP64": "d",
}
#: What stands where the content type has ``;json-header-size=N``.
MALFORMED = {
    "no number": f"{TYPE};json-header-size=abc",
    "negative": f"{TYPE};json-header-size=-1",
    "larger than the body": f"{TYPE};json-header-size=99999999",
    "out of range": f"{TYPE};json-header-size=99999999999999999999999999",
    "a bad prefix": f"application/octet-stream;{TYPE};json-header-size=5",
}


def parts(container: Container, binary_output: bool) -> tuple[dict[str, Any], bytes]:
    """JSON and tensors of the request of ones."""
    container.expects(container.v2, "there is no /v2 to learn a model's tensors from")
    rows = (container.tensors or {"inputs": []})["inputs"]
    if not rows or any(row["datatype"] not in LETTERS for row in rows):
        container.unasked("no model with tensors of numbers is known: name one with --model")
    inputs, tail = [], b""
    for row in rows:
        data = struct.pack(f"<{len(row['data'])}{LETTERS[row['datatype']]}", *row["data"])
        sized = {name: value for name, value in row.items() if name != "data"}
        inputs.append({**sized, "parameters": {"binary_data_size": len(data)}})
        tail += data
    return {"inputs": inputs, "parameters": {"binary_data_output": binary_output}}, tail


def question(container: Container, binary_output: bool = True) -> Question:
    head, tail = parts(container, binary_output)
    text = json.dumps(head).encode()
    return container.addressed(Question(text + tail, f"{TYPE};json-header-size={len(text)}"))


def test_tensors_come_back_with_their_own_header_size(container: Container) -> None:
    answer = container.invoke(question(container))
    assert answer.status_code == 200, answer.text[:500]
    kind, equals, size = answer.headers["Content-Type"].partition(";json-header-size=")
    assert (kind, equals) == (TYPE, ";json-header-size=")
    outputs = json.loads(answer.content[: int(size)])["outputs"]
    sizes = [output["parameters"]["binary_data_size"] for output in outputs]
    assert int(size) + sum(sizes) == len(answer.content) == int(answer.headers["Content-Length"])


def test_without_binary_outputs_the_answer_is_json(container: Container) -> None:
    answer = container.invoke(question(container, binary_output=False))
    assert answer.status_code == 200
    assert all("data" in output for output in json_of(answer)["outputs"])


def test_with_no_json_the_whole_body_is_the_one_tensor(container: Container) -> None:
    head, tail = parts(container, binary_output=True)
    if len(head["inputs"]) != 1 or head["inputs"][0]["datatype"] == "BYTES":
        container.unasked("the model has several inputs: name one with a single input with --model")
    answer = container.invoke(container.addressed(Question(tail, f"{TYPE};json-header-size=0")))
    assert answer.status_code == 200, answer.text[:500]
    assert TYPE in answer.headers["Content-Type"]


@pytest.mark.parametrize("case", MALFORMED)
def test_a_malformed_header_is_a_400_and_the_server_lives_on(container: Container, case: str) -> None:
    good = question(container)
    answer = container.invoke(Question(good.body, MALFORMED[case], good.headers))
    refused(answer)
    container.expects(answer.status_code == 400, f"{case}: it is a {answer.status_code}")
    assert JSON in answer.headers["Content-Type"]
    assert container.invoke(good).status_code == 200


def test_a_header_size_that_cuts_the_json_is_refused(container: Container) -> None:
    good = question(container)
    refused(container.invoke(Question(good.body, f"{TYPE};json-header-size=5", good.headers)))
    assert container.ask("GET", "/ping").status_code == 200
