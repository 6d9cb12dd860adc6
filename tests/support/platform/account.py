"""The calls of a SageMaker customer, made with boto3: upload an archive, create an endpoint and invoke it."""

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
from tests.support.platform.host import REGION, aws_client

BUCKET = "team"
IMAGE = "123456789012.dkr.ecr.eu-west-1.amazonaws.com/trireme:test"
ROLE = "arn:aws:iam::123456789012:role/serving"


@dataclass
class Account:
    """The clients and the bucket of one customer of the fake AWS at ``url``."""

    url: str
    sagemaker: Any = field(init=False)
    s3: Any = field(init=False)
    runtime: Any = field(init=False)

    def __post_init__(self) -> None:
        self.sagemaker, self.s3 = aws_client(self.url, "sagemaker"), aws_client(self.url, "s3")
        self.runtime = boto3.client(
            "sagemaker-runtime",
            endpoint_url=self.url,
            region_name=REGION,
            aws_access_key_id="test",
            aws_secret_access_key="test",
            # No retries: a test must see every lost request.
            config=Config(retries={"total_max_attempts": 1}, max_pool_connections=20),
        )
        self.s3.create_bucket(Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": REGION})

    def upload(self, key: str, folder: Path) -> str:
        """Upload a folder as ``model.tar.gz`` under ``key``, and return its S3 URL."""
        archive_bytes = io.BytesIO()
        with tarfile.open(fileobj=archive_bytes, mode="w:gz") as archive:
            archive.add(folder, ".")
        self.s3.put_object(Bucket=BUCKET, Key=key, Body=archive_bytes.getvalue())
        return f"s3://{BUCKET}/{key}"

    def configure(
        self,
        name: str,
        model_data_url: str,
        instance_count: int = 1,
        mode: str = "SingleModel",
        image: str = IMAGE,
        environment: Mapping[str, str] | None = None,
        **config_options: Any,
    ) -> None:
        """Create a model and an endpoint configuration, both named ``name``.

        Without ``model_data_url`` the models are those in the image.
        """
        container = {
            "Image": image,
            "Mode": mode,
            **({"ModelDataUrl": model_data_url} if model_data_url else {}),
            "Environment": {"SAGEMAKER_MODEL_SERVER_WORKERS": "1", **(environment or {})},
        }
        self.sagemaker.create_model(ModelName=name, PrimaryContainer=container, ExecutionRoleArn=ROLE)
        variant = {
            "VariantName": "AllTraffic",
            "ModelName": name,
            "InitialInstanceCount": instance_count,
            "InstanceType": "ml.c5.large",
            "InitialVariantWeight": 1.0,
        }
        self.sagemaker.create_endpoint_config(
            EndpointConfigName=name, ProductionVariants=[variant], **config_options
        )

    def create(self, name: str, model_data_url: str, **options: Any) -> None:
        """Create an endpoint with its model and configuration, without waiting for it."""
        self.configure(name, model_data_url, **options)
        self.sagemaker.create_endpoint(EndpointName=name, EndpointConfigName=name)

    def describe(self, name: str) -> Any:
        return self.sagemaker.describe_endpoint(EndpointName=name)

    def wait_until_steady(self, name: str) -> Any:
        """Wait until the endpoint is ``InService`` or ``Failed``, and return its description."""

        def finished_record() -> Any:
            record = self.describe(name)
            return record if record["EndpointStatus"] in ("InService", "Failed") else None

        return wait_until(finished_record, description=f"the endpoint {name} to be InService or Failed")

    def invoke_text(self, name: str, text: str, **options: Any) -> str:
        """Invoke the endpoint with a text, and return the body of the response."""
        response = self.runtime.invoke_endpoint(
            EndpointName=name, ContentType="text/plain", Body=text.encode(), **options
        )
        content: bytes = response["Body"].read()
        return content.decode()
