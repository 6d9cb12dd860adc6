"""``sm invoke --async`` against a fake AWS, which answers through S3 as an endpoint does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import requests

from tests.support.aws import aws_client, fake_aws
from tests.support.sm_command import RunSm
from trireme_tools.invoke.endpoint import MAX_INLINE_BYTES

#: More than a call itself takes.
LARGE = "a" * (MAX_INLINE_BYTES + 1)


@dataclass(frozen=True)
class Account:
    """An account in a fake AWS, with an endpoint of each kind."""

    url: str

    @contextmanager
    def client(self, service: str) -> Iterator[Any]:
        with closing(aws_client(service, self.url)) as client:
            yield client

    def set_next_result(self, data: str, is_failure: bool = False) -> None:
        """Set the result of the next asynchronous request."""
        results = {"region": "eu-west-1", "results": [{"data": data, "is_failure": is_failure}]}
        url = f"{self.url}/moto-api/static/sagemaker/async-endpoint-results"
        assert requests.post(url, json=results, timeout=10).status_code == 201

    def remaining_keys(self) -> list[str]:
        """The keys that are left in the endpoint's bucket."""
        with self.client("s3") as s3:
            listing = s3.list_objects_v2(Bucket="answers")
        return [row["Key"] for row in listing.get("Contents", ())]


@pytest.fixture(scope="module")
def account() -> Iterator[Account]:
    with fake_aws() as address:
        fake_account = Account(f"http://{address}")
        create_endpoints(fake_account)
        yield fake_account


def create_endpoints(account: Account) -> None:
    """Create a bucket, an asynchronous endpoint ``slow`` and a real-time endpoint ``quick``."""
    location = {"LocationConstraint": "eu-west-1"}
    variant = {
        "VariantName": "all",
        "ModelName": "m",
        "InstanceType": "ml.m5.large",
        "InitialInstanceCount": 1,
    }
    async_config = {"AsyncInferenceConfig": {"OutputConfig": {"S3OutputPath": "s3://answers/out/"}}}
    with account.client("sagemaker") as sagemaker, account.client("s3") as s3:
        s3.create_bucket(Bucket="answers", CreateBucketConfiguration=location)
        sagemaker.create_model(ModelName="m", ExecutionRoleArn="arn:aws:iam::123456789012:role/sagemaker")
        for name, options in (("slow", async_config), ("quick", {})):
            sagemaker.create_endpoint_config(EndpointConfigName=name, ProductionVariants=[variant], **options)
            sagemaker.create_endpoint(EndpointName=name, EndpointConfigName=name)


@pytest.fixture(autouse=True)
def use_fake_aws(account: Account, monkeypatch: pytest.MonkeyPatch, sm: RunSm) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", account.url)


def test_a_small_request_is_in_the_call_and_needs_nothing_in_s3(account: Account, sm: RunSm) -> None:
    account.set_next_result('{"result": 1}')
    # This endpoint has no path on S3, and the fake AWS answers nevertheless.
    result = sm("invoke", "quick", "--text", "a" * MAX_INLINE_BYTES, "--async", "--raw")
    assert (result.status, result.out) == (0, '{"result": 1}')


def test_an_answer_is_fetched_from_s3_and_the_request_is_removed(account: Account, sm: RunSm) -> None:
    account.set_next_result('{"modelname": "resnet", "result": []}')
    result = sm("invoke", "slow", "--model", "resnet", "--text", LARGE, "--async")
    assert (result.status, result.out) == (0, '{"modelname": "resnet", "result": []}\n')
    assert account.remaining_keys() == []


def test_a_failure_is_printed_with_the_reason_from_s3(account: Account, sm: RunSm) -> None:
    account.set_next_result("the container gave up", is_failure=True)
    result = sm("invoke", "slow", "--text", LARGE, "--async")
    assert (result.status, "the container gave up" in result.err) == (1, True)
    assert account.remaining_keys() == []


@pytest.mark.parametrize(("endpoint", "named"), [("quick", "--async"), ("nobody", "nobody")])
def test_async_for_a_real_time_or_an_unknown_endpoint_is_an_error(
    sm: RunSm, endpoint: str, named: str
) -> None:
    result = sm("invoke", endpoint, "--text", LARGE, "--async")
    assert (result.status, named in result.err) == (1, True)
