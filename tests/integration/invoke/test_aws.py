"""``sm invoke`` against AWS itself: asynchronous answers through S3, and the errors of AWS, network and disk."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import requests

from sm.errors import CommandError
from tests.support.aws import aws_client, fake_aws
from tests.support.http_server import server_with_fixed_response
from tests.support.sm_command import RunSm
from trireme_tools.invoke.endpoint import MAX_INLINE_BYTES
from trireme_tools.invoke.messages import InvokeReply
from trireme_tools.invoke.showing import save_body

#: More than a call itself takes.
LARGE = "a" * (MAX_INLINE_BYTES + 1)
VARIANT = {"VariantName": "all", "ModelName": "m", "InstanceType": "ml.m5.large", "InitialInstanceCount": 1}


@pytest.fixture(scope="module")
def aws() -> Iterator[str]:
    """The URL of a fake AWS with a bucket, an asynchronous endpoint ``slow`` and a real-time endpoint ``quick``."""
    async_config = {"AsyncInferenceConfig": {"OutputConfig": {"S3OutputPath": "s3://answers/out/"}}}
    with fake_aws() as address:
        url = f"http://{address}"
        with closing(aws_client("sagemaker", url)) as sagemaker, closing(aws_client("s3", url)) as s3:
            location = {"LocationConstraint": "eu-west-1"}
            s3.create_bucket(Bucket="answers", CreateBucketConfiguration=location)
            sagemaker.create_model(ModelName="m", ExecutionRoleArn="arn:aws:iam::123456789012:role/sagemaker")
            for name, options in (("slow", async_config), ("quick", {})):
                sagemaker.create_endpoint_config(
                    EndpointConfigName=name, ProductionVariants=[VARIANT], **options
                )
                sagemaker.create_endpoint(EndpointName=name, EndpointConfigName=name)
        yield url


@pytest.fixture
def account(aws: str, monkeypatch: pytest.MonkeyPatch, sm: RunSm) -> str:
    """The fake AWS, which ``sm`` calls."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", aws)
    return aws


def set_next_result(account: str, data: str, is_failure: bool = False) -> None:
    """Set the result of the next asynchronous request."""
    results = {"region": "eu-west-1", "results": [{"data": data, "is_failure": is_failure}]}
    url = f"{account}/moto-api/static/sagemaker/async-endpoint-results"
    assert requests.post(url, json=results, timeout=10).status_code == 201


def remaining_objects(account: str) -> list[Any]:
    with closing(aws_client("s3", account)) as s3:
        return list(s3.list_objects_v2(Bucket="answers").get("Contents", ()))


def test_a_small_request_is_in_the_call_and_needs_nothing_in_s3(account: str, sm: RunSm) -> None:
    set_next_result(account, '{"result": 1}')
    # This endpoint has no path on S3, and the fake AWS answers nevertheless.
    result = sm("invoke", "quick", "--text", "a" * MAX_INLINE_BYTES, "--async", "--raw")
    assert (result.status, result.out) == (0, '{"result": 1}')


def test_an_answer_or_a_failure_is_fetched_from_s3_and_the_request_is_removed(
    account: str, sm: RunSm
) -> None:
    set_next_result(account, '{"modelname": "resnet", "result": []}')
    result = sm("invoke", "slow", "--model", "resnet", "--text", LARGE, "--async")
    assert (result.status, result.out) == (0, '{"modelname": "resnet", "result": []}\n')
    set_next_result(account, "the container gave up", is_failure=True)
    result = sm("invoke", "slow", "--text", LARGE, "--async")
    assert (result.status, "the container gave up" in result.err) == (1, True)
    assert remaining_objects(account) == []


@pytest.mark.usefixtures("account")
@pytest.mark.parametrize(("endpoint", "named"), [("quick", "--async"), ("nobody", "nobody")])
def test_async_for_a_real_time_or_an_unknown_endpoint_is_an_error(
    sm: RunSm, endpoint: str, named: str
) -> None:
    result = sm("invoke", endpoint, "--text", LARGE, "--async")
    assert (result.status, named in result.err) == (1, True)


@pytest.mark.parametrize(
    ("status", "code"),
    [(429, "ThrottlingException"), (403, "ExpiredTokenException"), (400, "ValidationError")],
)
def test_an_error_of_aws_names_the_endpoint_and_many_are_counted_and_not_repeated(
    sm: RunSm, monkeypatch: pytest.MonkeyPatch, status: int, code: str
) -> None:
    with server_with_fixed_response(status, {"message": "of AWS"}, code) as aws:
        monkeypatch.setenv("AWS_ENDPOINT_URL", aws.url)
        result = sm("invoke", "my-endpoint", "--text", "a")
        assert (result.status, result.out, "my-endpoint" in result.err) == (1, "", True)
        result = sm("invoke", "my-endpoint", "--text", "a", "-n", 6, "-c", 2)
    assert (result.status, f"6 × {code}" in result.out) == (1, True)
    assert len(aws.request_bodies) == 7


@pytest.mark.parametrize("addressed_by", ["url", "name"])
def test_a_truncated_response_is_an_error(
    sm: RunSm, monkeypatch: pytest.MonkeyPatch, addressed_by: str
) -> None:
    with server_with_fixed_response(200, {"result": "half"}, missing_bytes=10) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
        result = sm("invoke", server.url if addressed_by == "url" else "my-endpoint", "--text", "a")
    assert (result.status, result.out, "Traceback" in result.err) == (1, "", False)


def test_a_picture_that_cannot_be_written_completely_leaves_no_file(tmp_path: Path) -> None:
    limit_before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limit_before[1]))  # as a full disk would
    try:
        with pytest.raises(CommandError, match=r"cat\.png"):
            save_body(InvokeReply(200, "image/png", bytes(100_000)), "cat", tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit_before)
    assert list(tmp_path.iterdir()) == []
