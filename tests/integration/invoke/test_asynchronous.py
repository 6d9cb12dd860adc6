"""``sm invoke --async`` against a fake AWS, which answers through S3 as an endpoint does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

import boto3
import pytest
import requests

from tests.support.aws import fake_aws
from tests.support.sm_command import RunSm


@dataclass(frozen=True)
class Account:
    """An account in a fake AWS, with an endpoint of each kind."""

    url: str

    @contextmanager
    def client(self, service: str) -> Iterator[Any]:
        with closing(
            boto3.client(
                service,
                endpoint_url=self.url,
                region_name="eu-west-1",
                aws_access_key_id="test",
                aws_secret_access_key="test",
            )
        ) as client:
            yield client

    def answers(self, data: str, is_failure: bool = False) -> None:
        """Set the result of the next asynchronous request."""
        results = {"region": "eu-west-1", "results": [{"data": data, "is_failure": is_failure}]}
        place = f"{self.url}/moto-api/static/sagemaker/async-endpoint-results"
        assert requests.post(place, json=results, timeout=10).status_code == 201

    def left(self) -> list[str]:
        """The keys that are left in the endpoint's bucket."""
        with self.client("s3") as s3:
            listing = s3.list_objects_v2(Bucket="answers")
        return [row["Key"] for row in listing.get("Contents", ())]


@pytest.fixture(scope="module")
def account() -> Iterator[Account]:
    with fake_aws() as address:
        made = Account(f"http://{address}")
        make(made)
        yield made


def make(account: Account) -> None:
    """Create a bucket, an asynchronous endpoint ``slow`` and a real-time endpoint ``quick``."""
    place = {"LocationConstraint": "eu-west-1"}
    variant = {
        "VariantName": "all",
        "ModelName": "m",
        "InstanceType": "ml.m5.large",
        "InitialInstanceCount": 1,
    }
    through = {"AsyncInferenceConfig": {"OutputConfig": {"S3OutputPath": "s3://answers/out/"}}}
    with account.client("sagemaker") as sagemaker, account.client("s3") as s3:
        s3.create_bucket(Bucket="answers", CreateBucketConfiguration=place)
        sagemaker.create_model(ModelName="m", ExecutionRoleArn="arn:aws:iam::123456789012:role/sagemaker")
        for name, more in (("slow", through), ("quick", {})):
            sagemaker.create_endpoint_config(EndpointConfigName=name, ProductionVariants=[variant], **more)
            sagemaker.create_endpoint(EndpointName=name, EndpointConfigName=name)


@pytest.fixture(autouse=True)
def there(account: Account, monkeypatch: pytest.MonkeyPatch, sm: RunSm) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", account.url)


def test_an_answer_is_fetched_from_s3_and_the_request_is_not_left_there(account: Account, sm: RunSm) -> None:
    account.answers('{"modelname": "resnet", "result": []}')
    result = sm("invoke", "slow", "--model", "resnet", "--text", "a", "--async")
    assert (result.status, result.out) == (0, '{"modelname": "resnet", "result": []}\n')
    assert account.left() == []


def test_a_failure_is_the_words_that_the_endpoint_left_in_s3(account: Account, sm: RunSm) -> None:
    account.answers("the container gave up", is_failure=True)
    result = sm("invoke", "slow", "--text", "a", "--async")
    assert result.status == 1
    assert result.err.endswith("sm: the answer is 424: the container gave up\n")
    assert account.left() == []


def test_an_endpoint_that_is_not_asynchronous_says_so(sm: RunSm) -> None:
    result = sm("invoke", "quick", "--text", "a", "--async")
    assert result.err.endswith("sm: the endpoint quick is not asynchronous: ask it without --async.\n")


def test_an_endpoint_that_is_not_there_is_a_sentence(sm: RunSm) -> None:
    result = sm("invoke", "nobody", "--text", "a", "--async")
    assert result.status == 1
    assert "sm: cannot ask the endpoint nobody: " in result.err
