"""The v2 protocol's binary form in ``/invocations``, with SageMaker's content type."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest

from .container import JSON, Container, ModelRequest, read_json

pytestmark = pytest.mark.modes("single")
TYPE = "application/vnd.sagemaker-triton.binary+json"
#: The ``struct`` format of each datatype.
STRUCT_FORMATS = {
    "BOOL": "?", "INT8": "b", "INT16": "h", "INT32": "i", "INT64": "q", "UINT8": "B", "UINT16": "H",
    "UINT32": "I", "UINT64": "Q", "FP16": "e", "FP32": "f", "FP64": "d",
}  # fmt: skip
#: Content types with a wrong ``;json-header-size=N``.
MALFORMED = {
    "no number": f"{TYPE};json-header-size=abc",
    "negative": f"{TYPE};json-header-size=-1",
    "larger than the body": f"{TYPE};json-header-size=99999999",
    "out of range": f"{TYPE};json-header-size=99999999999999999999999999",
    "a bad prefix": f"application/octet-stream;{TYPE};json-header-size=5",
    "it cuts the JSON": f"{TYPE};json-header-size=5",
}


def json_and_tensors(container: Container, binary_output: bool) -> tuple[dict[str, Any], bytes]:
    """The JSON header and the tensor bytes of the request of ones."""
    container.expect(container.has_v2, "there is no /v2 to learn a model's tensors from")
    rows = (container.tensors_of_ones or {"inputs": []})["inputs"]
    if not rows or any(row["datatype"] not in STRUCT_FORMATS for row in rows):
        container.cannot_tell("no model with numeric tensors is known: name one with --model")
    inputs, tensor_bytes = [], b""
    for row in rows:
        data = struct.pack(f"<{len(row['data'])}{STRUCT_FORMATS[row['datatype']]}", *row["data"])
        described = {name: value for name, value in row.items() if name != "data"}
        inputs.append({**described, "parameters": {"binary_data_size": len(data)}})
        tensor_bytes += data
    return {"inputs": inputs, "parameters": {"binary_data_output": binary_output}}, tensor_bytes


def binary_request(container: Container, binary_output: bool = True) -> ModelRequest:
    header, tensor_bytes = json_and_tensors(container, binary_output)
    header_bytes = json.dumps(header).encode()
    return container.with_target_model(
        ModelRequest(header_bytes + tensor_bytes, f"{TYPE};json-header-size={len(header_bytes)}")
    )


def test_tensors_come_back_with_their_own_header_size(container: Container) -> None:
    response = container.invoke(binary_request(container))
    assert response.status_code == 200, response.text[:500]
    content_type, separator, size = response.headers["Content-Type"].partition(";json-header-size=")
    assert (content_type, separator) == (TYPE, ";json-header-size=")
    outputs = json.loads(response.content[: int(size)])["outputs"]
    sizes = [output["parameters"]["binary_data_size"] for output in outputs]
    assert int(size) + sum(sizes) == len(response.content) == int(response.headers["Content-Length"])


def test_without_binary_outputs_the_answer_is_json(container: Container) -> None:
    response = container.invoke(binary_request(container, binary_output=False))
    assert response.status_code == 200
    assert all("data" in output for output in read_json(response)["outputs"])


def test_with_a_header_size_of_0_the_whole_body_is_the_one_tensor(container: Container) -> None:
    header, tensor_bytes = json_and_tensors(container, binary_output=True)
    if len(header["inputs"]) != 1 or header["inputs"][0]["datatype"] == "BYTES":
        container.cannot_tell("the model has several inputs: name one with a single input with --model")
    response = container.invoke(
        container.with_target_model(ModelRequest(tensor_bytes, f"{TYPE};json-header-size=0"))
    )
    assert response.status_code == 200, response.text[:500]
    assert TYPE in response.headers["Content-Type"]


@pytest.mark.parametrize("case", MALFORMED)
def test_a_malformed_header_is_a_400_and_the_server_lives_on(container: Container, case: str) -> None:
    good_request = binary_request(container)
    response = container.invoke(ModelRequest(good_request.body, MALFORMED[case], good_request.headers))
    container.expect_refusal(response, 400)
    assert JSON in response.headers["Content-Type"]
    assert container.invoke(good_request).status_code == 200
