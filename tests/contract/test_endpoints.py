"""What a real boto3 client gets with ``endpoint_url``: the runtime's own answers and errors."""

from __future__ import annotations

import json
from typing import Any

import pytest

from .container import Container, Question, refused

pytestmark = pytest.mark.modes("single")
NOBODY = "there-is-no-such-model"


@pytest.fixture
def runtime(container: Container) -> Any:
    """boto3's ``sagemaker-runtime``, pointed at the container."""
    boto3 = pytest.importorskip("boto3", reason="could not be asked: boto3 is not here")
    config = pytest.importorskip("botocore.config").Config(retries={"max_attempts": 0})
    probe = container.ask("POST", "/endpoints/mine/invocations", data=b"{")
    container.expects(probe.status_code == 424, "/endpoints/<name>/invocations is not there")
    return boto3.client(
        "sagemaker-runtime",
        endpoint_url=container.url,
        region_name="eu-west-1",
        aws_access_key_id="local",
        aws_secret_access_key="local",
        config=config,
    )


@pytest.fixture
def streaming(runtime: Any, container: Container) -> Any:
    """The same, where it has streams."""
    probe = container.ask("POST", "/endpoints/mine/invocations-response-stream", data=b"{")
    container.expects(probe.status_code == 424, "/endpoints/<name>/invocations-response-stream is not there")
    return runtime


def asked(question: Question) -> dict[str, Any]:
    """A question as boto3's arguments."""
    words = {"EndpointName": "mine", "Body": question.body, "ContentType": question.content_type}
    target = question.headers.get("X-Amzn-SageMaker-Target-Model")
    return {**words, "TargetModel": target} if target else words


def test_invoke_endpoint_gets_the_container_s_answer(runtime: Any, container: Container) -> None:
    question = container.good()
    answer = runtime.invoke_endpoint(**asked(question))
    plain = container.invoke(question)
    assert answer["Body"].read() == plain.content
    assert answer["ContentType"] == plain.headers["Content-Type"]
    assert answer["InvokedProductionVariant"]


def test_an_error_of_the_container_is_a_model_error(runtime: Any, container: Container) -> None:
    with pytest.raises(runtime.exceptions.ModelError) as caught:
        runtime.invoke_endpoint(EndpointName="mine", Body=b"{", ContentType="application/json")
    found = caught.value.response
    assert found["ResponseMetadata"]["HTTPStatusCode"] == 424
    assert 400 <= found["OriginalStatusCode"] < 500
    assert json.loads(found["OriginalMessage"])["error"]
    assert found["OriginalMessage"] in found["Error"]["Message"]
    assert found["LogStreamArn"]


def test_a_stream_is_read_in_parts(streaming: Any, container: Container) -> None:
    question = container.good()
    words = asked(question)
    # This call cannot name a target model.
    if target := words.pop("TargetModel", ""):
        words["CustomAttributes"] = f"modelname={target}"
    answer = streaming.invoke_endpoint_with_response_stream(**words)
    received = b"".join(event["PayloadPart"]["Bytes"] for event in answer["Body"])
    assert received == container.invoke(question).content
    assert answer["ContentType"]


def test_an_error_before_a_stream_is_a_model_error(streaming: Any, container: Container) -> None:
    with pytest.raises(streaming.exceptions.ModelError) as caught:
        streaming.invoke_endpoint_with_response_stream(
            EndpointName="mine", Body=b"{", ContentType="application/json"
        )
    assert 400 <= caught.value.response["OriginalStatusCode"] < 500


def test_another_method_is_refused(runtime: Any, container: Container) -> None:
    refused(container.ask("GET", "/endpoints/mine/invocations"))
