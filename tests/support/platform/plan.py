"""Read from SageMaker's API what an endpoint is to run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

DEFAULT_STARTUP_TIMEOUT_S = 480.0  # until the first successful ping


@dataclass(frozen=True)
class AsyncConfig:
    """The S3 prefixes of an asynchronous endpoint's responses and failures, and its concurrency per instance."""

    output_url: str
    failure_url: str
    max_concurrent: int


@dataclass(frozen=True)
class EndpointPlan:
    """What one endpoint with a single variant is to run."""

    endpoint_name: str
    config_name: str
    variant: str
    image: str
    #: The S3 URL of a ``model.tar.gz``, or of a multi-model endpoint's archives; empty if the image has the models.
    model_data_url: str
    environment: Mapping[str, str]
    multi_model: bool
    instance_count: int
    startup_timeout_s: float
    async_config: AsyncConfig | None


def read_plan(sagemaker: Any, name: str) -> EndpointPlan:
    """Read an endpoint's description, configuration and models.

    Raises:
        botocore.exceptions.ClientError: One of them does not exist.
    """
    endpoint = sagemaker.describe_endpoint(EndpointName=name)
    config = sagemaker.describe_endpoint_config(EndpointConfigName=endpoint["EndpointConfigName"])
    variant = config["ProductionVariants"][0]
    count = endpoint["ProductionVariants"][0].get("DesiredInstanceCount", 1)  # a serverless variant has none
    model = sagemaker.describe_model(ModelName=variant["ModelName"])
    container = model.get("PrimaryContainer") or model["Containers"][0]
    source = container.get("ModelDataSource", {}).get("S3DataSource", {})
    return EndpointPlan(
        endpoint_name=name,
        config_name=config["EndpointConfigName"],
        variant=variant["VariantName"],
        image=container.get("Image", ""),
        model_data_url=container.get("ModelDataUrl") or source.get("S3Uri", ""),
        environment=container.get("Environment", {}),
        multi_model=container.get("Mode") == "MultiModel",
        instance_count=count,
        startup_timeout_s=variant.get(
            "ContainerStartupHealthCheckTimeoutInSeconds", DEFAULT_STARTUP_TIMEOUT_S
        ),
        async_config=_read_async_config(config.get("AsyncInferenceConfig")),
    )


def _read_async_config(config: Mapping[str, Any] | None) -> AsyncConfig | None:
    if not config:
        return None
    output_url = config["OutputConfig"]["S3OutputPath"]
    max_concurrent = config.get("ClientConfig", {}).get("MaxConcurrentInvocationsPerInstance", 4)
    return AsyncConfig(output_url, config["OutputConfig"].get("S3FailurePath", output_url), max_concurrent)
