"""A team's account: an archive in a bucket, and the three records that make an endpoint, by the real boto3."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config

from tests.support.boxes import wait_until
from tests.support.platform.host import REGION, client

BUCKET = "team"
IMAGE = "123456789012.dkr.ecr.eu-west-1.amazonaws.com/trireme:test"
ROLE = "arn:aws:iam::123456789012:role/serving"


@dataclass
class Account:
    """``url`` is the one address of the fake AWS."""

    url: str
    sagemaker: Any = field(init=False)
    s3: Any = field(init=False)
    runtime: Any = field(init=False)

    def __post_init__(self) -> None:
        self.sagemaker, self.s3 = client(self.url, "sagemaker"), client(self.url, "s3")
        self.runtime = boto3.client(
            "sagemaker-runtime",
            endpoint_url=self.url,
            region_name=REGION,
            aws_access_key_id="test",
            aws_secret_access_key="test",
            # What is lost is to be seen.
            config=Config(retries={"total_max_attempts": 1}, max_pool_connections=20),
        )
        self.s3.create_bucket(Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": REGION})

    def upload(self, key: str, folder: Path) -> str:
        """A folder as ``model.tar.gz``: its URL."""
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w:gz") as archive:
            archive.add(folder, ".")
        self.s3.put_object(Bucket=BUCKET, Key=key, Body=packed.getvalue())
        return f"s3://{BUCKET}/{key}"

    def configure(
        self,
        name: str,
        data: str,
        count: int = 1,
        mode: str = "SingleModel",
        image: str = IMAGE,
        environment: Mapping[str, str] | None = None,
        **more: Any,
    ) -> None:
        """A model and an endpoint configuration, both of this name. No ``data``: the image has the models."""
        container = {
            "Image": image,
            "Mode": mode,
            **({"ModelDataUrl": data} if data else {}),
            "Environment": {"SAGEMAKER_MODEL_SERVER_WORKERS": "1", **(environment or {})},
        }
        self.sagemaker.create_model(ModelName=name, PrimaryContainer=container, ExecutionRoleArn=ROLE)
        variant = {
            "VariantName": "AllTraffic",
            "ModelName": name,
            "InitialInstanceCount": count,
            "InstanceType": "ml.c5.large",
            "InitialVariantWeight": 1.0,
        }
        self.sagemaker.create_endpoint_config(EndpointConfigName=name, ProductionVariants=[variant], **more)

    def create(self, name: str, data: str, **options: Any) -> None:
        """An endpoint, not waited for."""
        self.configure(name, data, **options)
        self.sagemaker.create_endpoint(EndpointName=name, EndpointConfigName=name)

    def describe(self, name: str) -> Any:
        return self.sagemaker.describe_endpoint(EndpointName=name)

    def settled(self, name: str) -> Any:
        """The endpoint's record, once nothing is under way."""

        def done() -> Any:
            record = self.describe(name)
            return record if record["EndpointStatus"] in ("InService", "Failed") else None

        return wait_until(done, description=f"the end of what happens to {name}")

    def ask(self, name: str, text: str, **options: Any) -> str:
        """The answer to a text."""
        answer = self.runtime.invoke_endpoint(
            EndpointName=name, ContentType="text/plain", Body=text.encode(), **options
        )
        content: bytes = answer["Body"].read()
        return content.decode()
