"""SageMaker's exclusions: one table of what it refuses or ignores, each row with AWS's page.

The limits of single values (lengths, patterns, counts) are botocore's: :func:`api_fields.check_values`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from sm.errors import CommandError

GUIDE = "docs.aws.amazon.com/sagemaker/latest/dg/"
API = "docs.aws.amazon.com/sagemaker/latest/APIReference/"
#: Bytes of all names and values of a container's variables.
MAX_ENVIRONMENT = 32 * 1024

Call = Mapping[str, Any]


@dataclass(frozen=True)
class RequestedEndpoint:
    """The wishes of a command, as the arguments of SageMaker's calls.

    Attributes:
        configuration: CreateEndpointConfig's.
        model: CreateModel's; empty if the model exists already and nobody read it.
        deployment: UpdateEndpoint's DeploymentConfig; empty for its default.
        scaled: Autoscaling is asked for, or the endpoint has it.
        served: The configuration that serves now; None if there is no endpoint.
    """

    configuration: Call
    model: Call = field(default_factory=dict)
    deployment: Call = field(default_factory=dict)
    scaled: bool = False
    served: Call | None = None

    @property
    def serverless(self) -> bool:
        return is_serverless(self.configuration)

    @property
    def shadow(self) -> bool:
        return bool(self.configuration.get("ShadowProductionVariants"))

    @property
    def asynchronous(self) -> bool:
        return bool(self.configuration.get("AsyncInferenceConfig"))

    @property
    def container(self) -> Call:
        return dict(self.model.get("PrimaryContainer", {}))

    @property
    def multi_model(self) -> bool:
        return self.container.get("Mode") == "MultiModel"

    def has_type(self, pattern: str) -> bool:
        """True if a variant has instances of a family, such as ``inf1``."""
        return any(re.fullmatch(rf"ml\.{pattern}\..+", name) for name in instance_types(self.configuration))

    def environment_bytes(self) -> int:
        variables = self.container.get("Environment", {})
        return sum(len(f"{name}{value}".encode()) for name, value in variables.items())


@dataclass(frozen=True)
class Exclusion:
    """A row: what it applies to, and what to tell the user. ``page`` is AWS's."""

    name: str
    applies: Callable[[RequestedEndpoint], Any]
    sentence: str
    page: str


SERVERLESS = f"{GUIDE}serverless-endpoints.html"
SHADOW = f"{GUIDE}shadow-tests-exclusions.html"
GUARDRAILS = f"{GUIDE}deployment-guardrails-exclusions.html"

EXCLUSIONS = (
    Exclusion(
        "instances to serverless",
        lambda wanted: wanted.serverless and wanted.served and not is_serverless(wanted.served),
        "an endpoint with instances cannot become serverless, not by a rollback either: delete it first "
        "('sm delete NAME'), or choose another name.",
        SERVERLESS,
    ),
    Exclusion(
        "serverless multi-model",
        lambda wanted: wanted.serverless and wanted.multi_model,
        "--serverless cannot be combined with --mme: a serverless endpoint has one model.",
        SERVERLESS,
    ),
    Exclusion(
        "serverless pipeline",
        lambda wanted: wanted.serverless and wanted.model.get("Containers"),
        "--serverless takes one container, and no pipeline of several.",
        SERVERLESS,
    ),
    Exclusion(
        "serverless in a VPC",
        lambda wanted: (
            wanted.serverless
            and (
                wanted.model.get("VpcConfig")
                or wanted.configuration.get("VpcConfig")
                or wanted.container.get("ImageConfig", {}).get("RepositoryAccessMode") == "Vpc"
            )
        ),
        "--serverless cannot be combined with VpcConfig, nor with an image from a registry in a VPC.",
        SERVERLESS,
    ),
    Exclusion(
        "serverless without network",
        lambda wanted: (
            wanted.serverless
            and (
                wanted.model.get("EnableNetworkIsolation")
                or wanted.configuration.get("EnableNetworkIsolation")
            )
        ),
        "--serverless cannot be combined with EnableNetworkIsolation.",
        SERVERLESS,
    ),
    Exclusion(
        "serverless data capture",
        lambda wanted: wanted.serverless and wanted.configuration.get("DataCaptureConfig"),
        "--serverless cannot be combined with DataCaptureConfig; the box's own capture writes without it.",
        SERVERLESS,
    ),
    Exclusion(
        "serverless variants",
        lambda wanted: wanted.serverless and len(variants(wanted.configuration)) > 1,
        "a serverless endpoint has one variant.",
        SERVERLESS,
    ),
    Exclusion(
        "serverless files",
        lambda wanted: wanted.serverless and wanted.container.get("ModelDataSource"),
        "--serverless takes an archive and no prefix.",
        f"{API}API_ContainerDefinition.html",
    ),
    Exclusion(
        "multi-model files",
        lambda wanted: wanted.multi_model and wanted.container.get("ModelDataSource"),
        "--mme takes a prefix of archives as ModelDataUrl, and no ModelDataSource.",
        f"{API}API_ContainerDefinition.html",
    ),
    Exclusion(
        "serverless autoscaling",
        lambda wanted: wanted.serverless and wanted.scaled,
        "--serverless cannot be combined with --autoscale: it has no instances.",
        SERVERLESS,
    ),
    Exclusion(
        "serverless guardrails",
        lambda wanted: wanted.serverless and wanted.deployment,
        "--canary, --linear, --alarm and DeploymentConfig are for endpoints with instances: a serverless one "
        "changes all at once.",
        f"{GUIDE}deployment-guardrails.html",
    ),
    Exclusion(
        "shadow",
        lambda wanted: wanted.shadow and (wanted.serverless or wanted.asynchronous or wanted.multi_model),
        "a multi-model, an asynchronous or a serverless endpoint has no shadow.",
        SHADOW,
    ),
    Exclusion(
        "shadow of several",
        lambda wanted: (
            wanted.shadow
            and (
                len(wanted.configuration["ProductionVariants"]) > 1
                or len(wanted.model.get("Containers", ())) > 1
            )
        ),
        "an endpoint with several variants or containers has no shadow.",
        SHADOW,
    ),
    Exclusion(
        "shadow on Inferentia",
        lambda wanted: wanted.shadow and wanted.has_type("inf1"),
        "an endpoint on ml.inf1 has no shadow.",
        SHADOW,
    ),
    Exclusion(
        "guardrails on Inferentia",
        lambda wanted: wanted.deployment and wanted.has_type("inf1"),
        "on ml.inf1 SageMaker ignores --canary, --linear, --alarm and DeploymentConfig.",
        GUARDRAILS,
    ),
    Exclusion(
        "rolling update of several variants",
        lambda wanted: "RollingUpdatePolicy" in wanted.deployment and len(variants(wanted.configuration)) > 1,
        "a RollingUpdatePolicy is for an endpoint with one variant.",
        GUARDRAILS,
    ),
    Exclusion(
        "autoscaling of burstable instances",
        lambda wanted: wanted.scaled and wanted.has_type(r"t\d\w*"),
        "SageMaker does not scale burstable instances (ml.t2 and the like): take another --instance-type for "
        "--autoscale.",
        f"{GUIDE}endpoint-auto-scaling-add-console.html",
    ),
    Exclusion(
        "environment",
        lambda wanted: wanted.environment_bytes() > MAX_ENVIRONMENT,
        "the variables of a container may have 32 KB in all, names and values together.",
        f"{API}API_ContainerDefinition.html",
    ),
)


def check(wanted: RequestedEndpoint) -> None:
    """Raise :class:`CommandError` with the first row that excludes what is wanted."""
    for row in EXCLUSIONS:
        if row.applies(wanted):
            raise CommandError(f"{row.sentence} That is SageMaker's limit: https://{row.page}.")


def is_serverless(configuration: Call) -> bool:
    return any("ServerlessConfig" in variant for variant in variants(configuration))


def variants(configuration: Call) -> list[Call]:
    return list(configuration.get("ProductionVariants", ()))


def instance_types(configuration: Call) -> list[str]:
    """Return the instance types of all variants, the shadow's and a pool's too."""
    return [*_types([*variants(configuration), *configuration.get("ShadowProductionVariants", ())])]


def changes_instances(before: Call, after: Call) -> bool:
    """True if a variant of both gets another instance type: SageMaker refuses that while it is scaled.

    docs.aws.amazon.com/sagemaker/latest/dg/endpoint-scaling-update.html
    """
    old = {variant["VariantName"]: [*_types([variant])] for variant in variants(before)}
    return any(
        old.get(variant["VariantName"], [*_types([variant])]) != [*_types([variant])]
        for variant in variants(after)
    )


def _types(rows: list[Call]) -> Iterator[str]:
    for variant in rows:
        yield from (pool["InstanceType"] for pool in variant.get("InstancePools", ()))
        if name := variant.get("InstanceType"):
            yield str(name)
