"""The planned deployment as SageMaker's three resources: model, configuration, endpoint."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trireme_tools.deploy import aws, resource_names, shadow
from trireme_tools.deploy.alarms import BoxAlarms
from trireme_tools.deploy.shadow import Shadow


@dataclass(frozen=True)
class Serverless:
    """``memory`` in MB, ``concurrency`` requests at once."""

    memory: int
    concurrency: int


@dataclass(frozen=True)
class Plan:
    """``data`` is an archive on S3 or, with ``mme``, the prefix of many; ``fingerprint`` identifies its
    content.

    An image with its models inside has no ``data``. ``output`` is where an asynchronous endpoint writes its
    answers; ``startup_timeout`` is in seconds.
    """

    name: str
    image: str
    data: str
    role: str
    fingerprint: str = ""
    mme: bool = False
    env: Mapping[str, str] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    instance_type: str = "ml.g5.xlarge"
    count: int = 1
    serverless: Serverless | None = None
    output: str | None = None
    startup_timeout: int | None = None
    #: The limits of the alarms on the box's own metrics; None for no alarms.
    box_alarms: BoxAlarms | None = None
    #: None for no shadow variant.
    shadow: Shadow | None = None

    @classmethod
    def of(cls, options: argparse.Namespace, data: str, role: str, fingerprint: str = "") -> Plan:
        """Read the plan from a command line, see :func:`deploy_arguments.add_description_arguments`."""
        return cls(
            name=options.name,
            image=options.image,
            data=data,
            role=role,
            fingerprint=fingerprint,
            mme=options.mme,
            env={
                **(options.alarms.environment(options.name) if options.alarms else {}),
                **dict(options.env),
            },
            tags=dict(options.tags),
            instance_type=options.instance_type,
            count=options.count,
            serverless=Serverless(*options.serverless) if options.serverless else None,
            output=options.output,
            startup_timeout=options.startup_timeout,
            box_alarms=options.alarms,
        )

    @property
    def model_name(self) -> str:
        return resource_names.add_hash(self.name, [self._model(), self.fingerprint])

    @property
    def configuration_name(self) -> str:
        return resource_names.add_hash(self.name, self._configuration())

    def model(self) -> dict[str, Any]:
        """Return the arguments of CreateModel."""
        return {"ModelName": self.model_name, **self._model(), "Tags": self.all_tags()}

    def shadow_model(self) -> dict[str, Any]:
        """Return the arguments of CreateModel for the shadow variant; empty without one."""
        if self.shadow is None:
            return {}
        content = self.shadow.model(self._model())
        name = resource_names.add_hash(self.name, [content, self.fingerprint])
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
        return aws.to_tags({**self.tags, resource_names.TAG: self.name})

    def _model(self) -> dict[str, Any]:
        container: dict[str, Any] = {
            "Image": self.image,
            "Mode": "MultiModel" if self.mme else "SingleModel",
            **({"ModelDataUrl": self.data} if self.data else {}),
            "Environment": dict(self.env),
        }
        return {"ExecutionRoleArn": self.role, "PrimaryContainer": container}

    def _configuration(self) -> dict[str, Any]:
        configuration: dict[str, Any] = {"ProductionVariants": [self._variant()]}
        if self.output:
            output = {"S3OutputPath": self.output, "S3FailurePath": f"{self.output.rstrip('/')}/failures/"}
            configuration["AsyncInferenceConfig"] = {"OutputConfig": output}
        if self.shadow:
            configuration = shadow.add(configuration, self.shadow, self.shadow_model()["ModelName"])
        return configuration

    def _variant(self) -> dict[str, Any]:
        variant: dict[str, Any] = {"VariantName": resource_names.VARIANT, "ModelName": self.model_name}
        if self.serverless:
            size = {"MemorySizeInMB": self.serverless.memory, "MaxConcurrency": self.serverless.concurrency}
            return {**variant, "ServerlessConfig": size}
        variant |= {"InstanceType": self.instance_type, "InitialInstanceCount": self.count}
        variant["InitialVariantWeight"] = 1.0
        if self.startup_timeout:
            variant["ContainerStartupHealthCheckTimeoutInSeconds"] = self.startup_timeout
            # A large archive also takes time.
            variant["ModelDataDownloadTimeoutInSeconds"] = self.startup_timeout
        return variant
