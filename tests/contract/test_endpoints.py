"""A real boto3 client with ``endpoint_url`` gets the SageMaker runtime's responses and errors."""

from __future__ import annotations

import json
from typing import Any

import pytest

from .container import Container, ModelRequest

pytestmark = pytest.mark.modes("single")


@pytest.fixture
def runtime(container: Container) -> Any:
    """boto3's ``sagemaker-runtime``, pointed at the container."""
    boto3 = pytest.importorskip("boto3", reason="could not be asked: boto3 is not here")
    config = pytest.importorskip("botocore.config").Config(retries={"max_attempts": 0})
    probe = container.request("POST", "/endpoints/mine/invocations", data=b"{")
    container.expect(probe.status_code == 424, "/endpoints/<name>/invocations is not there")
    keys = {"aws_access_key_id": "local", "aws_secret_access_key": "local", "region_name": "eu-west-1"}
    return boto3.client("sagemaker-runtime", endpoint_url=container.url, config=config, **keys)


@pytest.fixture
def streaming_runtime(runtime: Any, container: Container) -> Any:
    """The same client, if the container has the streaming route."""
    probe = container.request("POST", "/endpoints/mine/invocations-response-stream", data=b"{")
    container.expect(probe.status_code == 424, "/endpoints/<name>/invocations-response-stream is not there")
    return runtime


def boto3_arguments(request: ModelRequest) -> dict[str, Any]:
    """The request as arguments of boto3's calls."""
    arguments = {"EndpointName": "mine", "Body": request.body, "ContentType": request.content_type}
    target = request.headers.get("X-Amzn-SageMaker-Target-Model")
    return {**arguments, "TargetModel": target} if target else arguments


def test_invoke_endpoint_gets_the_same_body_as_invocations(runtime: Any, container: Container) -> None:
    request = container.accepted_request()
    response = runtime.invoke_endpoint(**boto3_arguments(request))
    direct = container.invoke(request)
    assert response["Body"].read() == direct.content
    assert response["ContentType"] == direct.headers["Content-Type"]
    assert response["InvokedProductionVariant"]


def test_an_error_of_the_container_is_a_model_error(runtime: Any, container: Container) -> None:
    with pytest.raises(runtime.exceptions.ModelError) as excinfo:
        runtime.invoke_endpoint(EndpointName="any-other", Body=b"{", ContentType="application/json")
    error = excinfo.value.response
    assert error["ResponseMetadata"]["HTTPStatusCode"] == 424
    assert 400 <= error["OriginalStatusCode"] < 500
    assert json.loads(error["OriginalMessage"])["error"]
    assert error["OriginalMessage"] in error["Error"]["Message"]
    assert error["LogStreamArn"]


def test_a_stream_is_read_in_parts(streaming_runtime: Any, container: Container) -> None:
    request = container.accepted_request()
    arguments = boto3_arguments(request)
    # This call cannot name a target model.
    if target := arguments.pop("TargetModel", ""):
        arguments["CustomAttributes"] = f"modelname={target}"
    response = streaming_runtime.invoke_endpoint_with_response_stream(**arguments)
    body = b"".join(event["PayloadPart"]["Bytes"] for event in response["Body"])
    assert body == container.invoke(request).content
    assert response["ContentType"]


def test_an_error_before_a_stream_is_a_model_error(streaming_runtime: Any, container: Container) -> None:
    with pytest.raises(streaming_runtime.exceptions.ModelError) as excinfo:
        streaming_runtime.invoke_endpoint_with_response_stream(
            EndpointName="mine", Body=b"{", ContentType="application/json"
        )
    assert 400 <= excinfo.value.response["OriginalStatusCode"] < 500
