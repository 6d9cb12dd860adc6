"""A deployment's resources: found in the account by name and tag, and named by their content.

The same content has the same name, so no run creates it twice."""

from __future__ import annotations

import hashlib
import json
import re
from typing import TYPE_CHECKING, Any

from sm.errors import CommandError
from trireme_tools import aws
from trireme_tools.deploy import project_file

if TYPE_CHECKING:  # templates need no AWS, and so no boto3
    from trireme_tools.deploy.account import Account

#: The tag of a deployment's resources, and the tag with a configuration's predecessor.
TAG, PREVIOUS = "trireme:deployment", "trireme:previous"
#: The endpoint's tag with the autoscaling that an update took away and has not set again; else empty.
SCALING = "trireme:scaling"
#: SageMaker's names have up to 63 characters, of which a hyphen and the hash take some.
HASH_LENGTH, MAX_LENGTH = 12, 63 - 12 - 1
#: Archives are uploaded below this prefix.
KEY_PREFIX = "trireme"
VARIANT, SHADOW = "AllTraffic", "shadow"


def check(name: str | None) -> str:
    """Return the name if SageMaker accepts it. Raises :class:`CommandError`."""
    if name is None:
        raise CommandError(f"name the endpoint: NAME, or {project_file.ENDPOINT} in {project_file.FILE}.")
    if len(name) > MAX_LENGTH or not re.fullmatch(r"[a-zA-Z0-9](-*[a-zA-Z0-9])*", name):
        raise CommandError(
            f"{name!r} cannot be a deployment's name: letters, digits and single hyphens between them, "
            f"at most {MAX_LENGTH} characters."
        )
    return name


def add_hash(name: str, content: Any) -> str:
    """Return ``NAME-<12 digits of the content's SHA-256>``; ``content`` is any JSON value."""
    text = json.dumps(content, sort_keys=True)
    return f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:HASH_LENGTH]}"


def is_own(name: str, candidate: str) -> bool:
    """True if :func:`add_hash` created the name for this deployment."""
    return bool(re.fullmatch(rf"{re.escape(name)}-[0-9a-f]{{{HASH_LENGTH}}}", candidate))


SAGEMAKER = "sagemaker"


class Resources:
    """Reads a deployment's endpoint, configurations and models, and removes single ones."""

    def __init__(self, account: Account, name: str) -> None:
        self._account, self.name = account, name

    def endpoint(self) -> dict[str, Any] | None:
        """Describe the endpoint. Raises :class:`CommandError` if it belongs to another deployment."""
        description = self._account.describe(
            SAGEMAKER, "describe_endpoint", f"look at endpoint {self.name}", EndpointName=self.name
        )
        if description and self.tags(description["EndpointArn"]).get(TAG) != self.name:
            raise CommandError(
                f"endpoint {self.name!r} was not created by 'sm deploy' "
                f"(it has no tag {TAG}={self.name}): "
                "it is left unchanged. Choose another name."
            )
        return description

    def existing(self) -> dict[str, Any]:
        """Describe the endpoint. Raises :class:`CommandError` if there is none."""
        if endpoint := self.endpoint():
            return endpoint
        raise CommandError(
            f"there is no endpoint {self.name!r} in {self._account.region}; "
            "check the name and --region, or create it with 'sm deploy'."
        )

    def tags(self, arn: str) -> dict[str, str]:
        rows = self._account.paginate(SAGEMAKER, "list_tags", "Tags", "read the tags", ResourceArn=arn)
        return aws.tags_by_name(list(rows))

    def configuration(self, name: str) -> dict[str, Any] | None:
        return self._account.describe(
            SAGEMAKER, "describe_endpoint_config", f"look at configuration {name}", EndpointConfigName=name
        )

    def model(self, name: str) -> dict[str, Any] | None:
        return self._account.describe(SAGEMAKER, "describe_model", f"look at model {name}", ModelName=name)

    def serving(self) -> dict[str, Any] | None:
        """Return the model behind the endpoint."""
        endpoint = self.endpoint()
        if not endpoint or not (configuration := self.configuration(endpoint["EndpointConfigName"])):
            return None
        name = model_of(configuration)
        return self.model(name) if name else None

    def configurations(self) -> list[str]:
        return self._own("list_endpoint_configs", "EndpointConfig", "list the configurations")

    def models(self) -> list[str]:
        return self._own("list_models", "Model", "list the models")

    def _own(self, operation: str, kind: str, doing: str) -> list[str]:
        """Return the names of the deployment's resources of a kind. The name alone costs no further call."""
        beginning = f"{self.name}-"
        rows = self._account.paginate(SAGEMAKER, operation, f"{kind}s", doing, NameContains=beginning)
        candidates = [row for row in rows if is_own(self.name, row[f"{kind}Name"])]
        return [
            row[f"{kind}Name"] for row in candidates if self.tags(row[f"{kind}Arn"]).get(TAG) == self.name
        ]

    def previous(self, configuration: dict[str, Any]) -> str | None:
        """Return the configuration that served before this one."""
        return self.tags(configuration["EndpointConfigArn"]).get(PREVIOUS)

    def remove_configuration(self, name: str) -> None:
        self._account.remove(
            SAGEMAKER, "delete_endpoint_config", f"remove configuration {name}", EndpointConfigName=name
        )

    def remove_model(self, name: str) -> None:
        self._account.remove(SAGEMAKER, "delete_model", f"remove model {name}", ModelName=name)

    def remove_endpoint(self) -> None:
        self._account.remove(
            SAGEMAKER, "delete_endpoint", f"remove endpoint {self.name}", EndpointName=self.name
        )


def models_of(configuration: dict[str, Any]) -> set[str]:
    """Return the models of all variants, the shadow's too."""
    variants = [*configuration["ProductionVariants"], *configuration.get("ShadowProductionVariants", ())]
    return {str(variant["ModelName"]) for variant in variants if "ModelName" in variant}


def model_of(configuration: dict[str, Any]) -> str:
    """Return the first variant's model; empty for an endpoint of components."""
    return str(configuration["ProductionVariants"][0].get("ModelName", ""))
