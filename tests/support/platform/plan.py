"""What an endpoint's records in the SageMaker API say that is to run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

#: Seconds that a container may take to pass its first ping, unless the configuration says otherwise.
STARTUP = 480.0


@dataclass(frozen=True)
class Asynchronous:
    """Where the answers of an asynchronous endpoint go, and how many are worked on at once."""

    output: str
    failure: str
    at_once: int


@dataclass(frozen=True)
class Plan:
    """One endpoint: its one variant, the container, and how many of it there are to be."""

    endpoint: str
    config: str
    variant: str
    image: str
    #: ``model.tar.gz``, or in multi-model mode the prefix below which the archives lie; may be empty.
    data: str
    environment: Mapping[str, str]
    multi_model: bool
    count: int
    startup: float
    asynchronous: Asynchronous | None


def plan_of(sagemaker: Any, name: str) -> Plan:
    """Read endpoint, configuration and model; botocore's ``ClientError`` where one of them is not there."""
    endpoint = sagemaker.describe_endpoint(EndpointName=name)
    config = sagemaker.describe_endpoint_config(EndpointConfigName=endpoint["EndpointConfigName"])
    variant = config["ProductionVariants"][0]
    model = sagemaker.describe_model(ModelName=variant["ModelName"])
    container = model.get("PrimaryContainer") or model["Containers"][0]
    source = container.get("ModelDataSource", {}).get("S3DataSource", {})
    return Plan(
        endpoint=name,
        config=endpoint["EndpointConfigName"],
        variant=variant["VariantName"],
        image=container.get("Image", ""),
        data=container.get("ModelDataUrl") or source.get("S3Uri", ""),
        environment=container.get("Environment", {}),
        multi_model=container.get("Mode") == "MultiModel",
        # A serverless variant has no count.
        count=endpoint["ProductionVariants"][0].get("DesiredInstanceCount", 1),
        startup=variant.get("ContainerStartupHealthCheckTimeoutInSeconds", STARTUP),
        asynchronous=_asynchronous(config.get("AsyncInferenceConfig")),
    )


def _asynchronous(config: Mapping[str, Any] | None) -> Asynchronous | None:
    if not config:
        return None
    output = config["OutputConfig"]["S3OutputPath"]
    at_once = config.get("ClientConfig", {}).get("MaxConcurrentInvocationsPerInstance", 4)
    return Asynchronous(output, config["OutputConfig"].get("S3FailurePath", output), at_once)
