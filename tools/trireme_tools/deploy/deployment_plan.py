"""The planned deployment as SageMaker's resources: model, configuration, endpoint, and a shadow variant.

A shadow variant gets a copy of a share of the requests, and its answers are thrown away."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sm.errors import CommandError
from trireme_tools import aws
from trireme_tools.deploy import api_fields, exclusions, gpu_hosts, model_data, resources
from trireme_tools.deploy.alarms import ENDPOINT_NAME, BoxAlarms
from trireme_tools.deploy.api_fields import Assignment
from trireme_tools.deploy.gpu_hosts import AMI
from trireme_tools.deploy.model_data import ModelData

#: SageMaker's default, RANDOM, lets a request wait behind a slow one while another instance is idle.
ROUTING = {"RoutingStrategy": "LEAST_OUTSTANDING_REQUESTS"}
NONE = "the endpoint has no shadow; 'sm deploy NAME --shadow IMAGE' adds one."


@dataclass(frozen=True)
class Shadow:
    """A shadow: its own ``image`` or ``data`` (models on S3), for ``percent`` of the requests."""

    image: str = ""
    data: str = ""
    percent: int = 10

    def model(self, production: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of CreateModel, without a name, from those of the model in production."""
        # Its own metrics must not set off the alarms on production's.
        changed = model(production, resources.SHADOW)
        container = {**changed["PrimaryContainer"], **({"Image": self.image} if self.image else {})}
        if self.data:
            container = model_data.replace(container, self.data)
        return {**changed, "PrimaryContainer": container}

    def variant(self, production: Mapping[str, Any], model_name: str) -> dict[str, Any]:
        """Return the shadow of a production variant.

        SageMaker copies as many of the requests as the shadow's weight is of production's:
        docs.aws.amazon.com/sagemaker/latest/dg/model-shadow-deployment.html.
        """
        weight = production.get("InitialVariantWeight", 1.0) * self.percent / 100
        names = {"VariantName": resources.SHADOW, "ModelName": model_name}
        return {**production, **names, "InitialVariantWeight": weight}


def model(described: Mapping[str, Any], suffix: str = "") -> dict[str, Any]:
    """Return the arguments of CreateModel, without a name, that made the described model; the box's metrics
    get the endpoint's name with the suffix.
    """
    container = api_fields.given(api_fields.MODEL, described["PrimaryContainer"], "PrimaryContainer")
    # DescribeModel has both members of an archive.
    container = model_data.replace(container, model_data.url_of(container))
    environment = dict(container.get("Environment", {}))
    if name := environment.get(ENDPOINT_NAME):
        production = name.removesuffix(f"-{resources.SHADOW}")
        environment[ENDPOINT_NAME] = f"{production}-{suffix}" if suffix else production
    return {
        **api_fields.given(api_fields.MODEL, described),
        "PrimaryContainer": {**container, "Environment": environment},
    }


def add(configuration: Mapping[str, Any], shadow: Shadow, model_name: str) -> dict[str, Any]:
    """Return the arguments of CreateEndpointConfig for a served configuration with this shadow."""
    shadows = [shadow.variant(configuration["ProductionVariants"][0], model_name)]
    return {**remove(configuration), "ShadowProductionVariants": shadows}


def find(configuration: Mapping[str, Any]) -> dict[str, Any]:
    """Return the shadow variant of a described configuration. Raises :class:`CommandError` if it has none."""
    if not configuration.get("ShadowProductionVariants"):
        raise CommandError(NONE)
    return dict(configuration["ShadowProductionVariants"][0])


def remove(configuration: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of CreateEndpointConfig for the same endpoint without a shadow."""
    given = api_fields.given(api_fields.CONFIGURATION, configuration)
    return {name: value for name, value in given.items() if name != "ShadowProductionVariants"}


def promote(configuration: Mapping[str, Any], model_name: str) -> dict[str, Any]:
    """Return the arguments of CreateEndpointConfig that serve the shadow's model instead of production's."""
    variant = configuration["ProductionVariants"][0]
    return {**remove(configuration), "ProductionVariants": [{**variant, "ModelName": model_name}]}


@dataclass(frozen=True)
class Serverless:
    """``memory`` in MB, ``concurrency`` requests at once."""

    memory: int
    concurrency: int


@dataclass(frozen=True)
class DeploymentPlan:
    """An image with its models inside has no ``data``. ``output`` is where an asynchronous endpoint writes
    its answers; ``startup_timeout`` is in seconds.
    """

    name: str
    image: str
    data: ModelData
    role: str
    mme: bool = False
    env: Mapping[str, str] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    instance_type: str = "ml.g5.xlarge"
    #: InferenceAmiVersion, which decides on the GPU's driver; None for SageMaker's own choice.
    ami: str | None = None
    count: int = 1
    serverless: Serverless | None = None
    output: str | None = None
    #: An SNS topic that an asynchronous endpoint tells of each answer.
    topic: str | None = None
    startup_timeout: int | None = None
    #: The limits of the alarms on the box's own metrics; None for no alarms.
    box_alarms: BoxAlarms | None = None
    #: None for no shadow variant.
    shadow: Shadow | None = None
    #: Fields of the API that have no option.
    fields: tuple[Assignment, ...] = ()

    @classmethod
    def of(cls, options: argparse.Namespace, data: ModelData, role: str) -> DeploymentPlan:
        """Read the plan from a command line, see :func:`deploy_arguments.add_description_arguments`."""
        return cls(
            name=options.name,
            image=options.image,
            data=data,
            role=role,
            mme=options.mme,
            env={
                **(options.alarms.environment(options.name) if options.alarms else {}),
                **dict(options.env),
            },
            tags=dict(options.tags),
            instance_type=options.instance_type,
            ami=None if options.serverless else gpu_hosts.choose_ami(options.instance_type, options.ami),
            count=options.count,
            serverless=Serverless(*options.serverless) if options.serverless else None,
            output=options.output,
            topic=options.notify,
            startup_timeout=options.startup_timeout or model_data.start_timeout(data.size),
            box_alarms=options.alarms,
            fields=api_fields.read(options),
        )

    def check(self, deployment: Mapping[str, Any], scaled: bool, served: Mapping[str, Any] | None) -> None:
        """Raise :class:`CommandError` if botocore or SageMaker would refuse a call.

        Args:
            deployment: UpdateEndpoint's DeploymentConfig; empty for the default.
            scaled: Autoscaling is asked for, or the endpoint has it.
            served: The configuration that serves now; None without one.
        """
        model, configuration = self.model(), self.configuration()
        if not self.role:  # a template creates it
            del model["ExecutionRoleArn"]
        if api_fields.can_check():
            (api_fields.check if self.role else api_fields.check_values)(api_fields.MODEL, model)
            api_fields.check(api_fields.CONFIGURATION, configuration)
        exclusions.check(exclusions.RequestedEndpoint(configuration, model, deployment, scaled, served))

    @property
    def model_name(self) -> str:
        return resources.add_hash(self.name, [self._model(), self.data.fingerprint])

    @property
    def configuration_name(self) -> str:
        return resources.add_hash(self.name, self._configuration())

    def model(self) -> dict[str, Any]:
        """Return the arguments of CreateModel."""
        return {"ModelName": self.model_name, **self._model(), "Tags": self.all_tags()}

    def shadow_model(self) -> dict[str, Any]:
        """Return the arguments of CreateModel for the shadow variant; empty without one."""
        if self.shadow is None:
            return {}
        content = self.shadow.model(self._model())
        name = resources.add_hash(self.name, [content, self.data.fingerprint])
        return {"ModelName": name, **content, "Tags": self.all_tags()}

    def configuration(self) -> dict[str, Any]:
        """Return the arguments of CreateEndpointConfig."""
        name = self.configuration_name
        return {"EndpointConfigName": name, **self._configuration(), "Tags": self.all_tags()}

    def endpoint(self) -> dict[str, Any]:
        """Return the arguments of CreateEndpoint."""
        return {
            "EndpointName": self.name,
            "EndpointConfigName": self.configuration_name,
            "Tags": self.all_tags(),
        }

    def alarms(self) -> list[dict[str, Any]]:
        """Return the arguments of each PutMetricAlarm."""
        return self.box_alarms.alarms(self.name, self.env) if self.box_alarms else []

    def all_tags(self) -> list[dict[str, str]]:
        return aws.to_tags({**self.tags, resources.TAG: self.name})

    def _model(self) -> dict[str, Any]:
        container: dict[str, Any] = {
            "Image": self.image,
            "Mode": "MultiModel" if self.mme else "SingleModel",
            **model_data.members(self.data.url, self.mme),
            "Environment": dict(self.env),
        }
        content = {"ExecutionRoleArn": self.role, "PrimaryContainer": container}
        return api_fields.apply(api_fields.MODEL, content, self.fields)

    def _configuration(self) -> dict[str, Any]:
        configuration: dict[str, Any] = {"ProductionVariants": [self._variant()]}
        if self.output:
            output: dict[str, Any] = {
                "S3OutputPath": self.output,
                "S3FailurePath": f"{self.output.rstrip('/')}/failures/",
            }
            if self.topic:
                output["NotificationConfig"] = {"SuccessTopic": self.topic, "ErrorTopic": self.topic}
            configuration["AsyncInferenceConfig"] = {"OutputConfig": output}
        configuration = api_fields.apply(api_fields.CONFIGURATION, configuration, self.fields)
        if self.shadow:
            configuration = add(configuration, self.shadow, self.shadow_model()["ModelName"])
        return configuration

    def _variant(self) -> dict[str, Any]:
        variant: dict[str, Any] = {"VariantName": resources.VARIANT, "ModelName": self.model_name}
        if self.serverless:
            size = {"MemorySizeInMB": self.serverless.memory, "MaxConcurrency": self.serverless.concurrency}
            return {**variant, "ServerlessConfig": size}
        variant |= {"InstanceType": self.instance_type, "InitialInstanceCount": self.count}
        variant["InitialVariantWeight"] = 1.0
        if self.ami:
            variant[AMI] = self.ami
        if not (self.output or self.mme):  # a queue and the place of a model decide there
            variant["RoutingConfig"] = ROUTING
        if self.startup_timeout:
            variant["ContainerStartupHealthCheckTimeoutInSeconds"] = self.startup_timeout
            # A large archive also takes time.
            variant["ModelDataDownloadTimeoutInSeconds"] = self.startup_timeout
        return variant
