"""A shadow variant: it gets a copy of a share of the requests, and its answers are thrown away."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sm.errors import CommandError
from trireme_tools.deploy import resource_names
from trireme_tools.deploy.alarms import ENDPOINT_NAME

#: Members of a container that CreateModel takes; DescribeModel adds others.
CONTAINER = ("Image", "Mode", "ModelDataUrl", "Environment")
#: Members of a variant that CreateEndpointConfig takes and a shadow has from its production variant.
VARIANT = (
    "InstanceType",
    "InitialInstanceCount",
    "ContainerStartupHealthCheckTimeoutInSeconds",
    "ModelDataDownloadTimeoutInSeconds",
)
NONE = "the endpoint has no shadow; 'sm deploy NAME --shadow IMAGE' adds one."


@dataclass(frozen=True)
class Shadow:
    """What differs from production: ``image`` or ``data`` (an archive on S3). ``percent`` of the requests."""

    image: str = ""
    data: str = ""
    percent: int = 10

    def model(self, production: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of CreateModel, without a name, from those of the model in production."""
        container = {key: value for key, value in production["PrimaryContainer"].items() if key in CONTAINER}
        container |= {"Image": self.image} if self.image else {"ModelDataUrl": self.data}
        # Its own metrics must not set off the alarms on production's.
        return model(production, container, resource_names.SHADOW)

    def variant(self, production: Mapping[str, Any], model_name: str) -> dict[str, Any]:
        """Return the shadow of a production variant.

        SageMaker copies as many of the requests as the shadow's weight is of production's:
        docs.aws.amazon.com/sagemaker/latest/dg/model-shadow-deployment.html.
        """
        weight = production.get("InitialVariantWeight", 1.0) * self.percent / 100
        names = {"VariantName": resource_names.SHADOW, "ModelName": model_name}
        copied = {key: production[key] for key in VARIANT if key in production}
        return {**names, **copied, "InitialVariantWeight": weight}


def model(described: Mapping[str, Any], container: dict[str, Any], suffix: str = "") -> dict[str, Any]:
    """Return the arguments of CreateModel; the box's metrics get the endpoint's name with the suffix."""
    environment = dict(container.get("Environment", {}))
    if name := environment.get(ENDPOINT_NAME):
        production = name.removesuffix(f"-{resource_names.SHADOW}")
        environment[ENDPOINT_NAME] = f"{production}-{suffix}" if suffix else production
    return {
        "ExecutionRoleArn": described["ExecutionRoleArn"],
        "PrimaryContainer": {**container, "Environment": environment},
    }


def add(configuration: Mapping[str, Any], shadow: Shadow, model_name: str) -> dict[str, Any]:
    """Return the arguments of CreateEndpointConfig for a served configuration with this shadow.

    Raises:
        CommandError: SageMaker gives a shadow to endpoints with instances only, and not to asynchronous ones.
    """
    variant, *others = configuration["ProductionVariants"]
    if others or "ServerlessConfig" in variant or configuration.get("AsyncInferenceConfig"):
        raise CommandError(
            "SageMaker gives a shadow only to an endpoint with instances and one variant, not to an "
            "asynchronous or a serverless one."
        )
    shadows = [shadow.variant(variant, model_name)]
    return {"ProductionVariants": [variant], "ShadowProductionVariants": shadows}


def find(configuration: Mapping[str, Any]) -> dict[str, Any]:
    """Return the shadow variant of a described configuration. Raises :class:`CommandError` if it has none."""
    if not configuration.get("ShadowProductionVariants"):
        raise CommandError(NONE)
    return dict(configuration["ShadowProductionVariants"][0])


def remove(configuration: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of CreateEndpointConfig for the same endpoint without its shadow."""
    find(configuration)
    return {"ProductionVariants": configuration["ProductionVariants"]}


def promote(configuration: Mapping[str, Any], model_name: str) -> dict[str, Any]:
    """Return the arguments of CreateEndpointConfig that serve the shadow's model instead of production's."""
    find(configuration)
    variant = configuration["ProductionVariants"][0]
    return {"ProductionVariants": [{**variant, "ModelName": model_name}]}
