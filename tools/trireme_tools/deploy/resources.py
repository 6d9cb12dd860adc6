"""Find a deployment's resources in the account, by name and tag."""

from __future__ import annotations

from typing import Any

from sm.errors import CommandError
from trireme_tools.deploy import aws, resource_names
from trireme_tools.deploy.account import Account

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
        if description and self.tags(description["EndpointArn"]).get(resource_names.TAG) != self.name:
            raise CommandError(
                f"endpoint {self.name!r} was not created by 'sm deploy' "
                f"(it has no tag {resource_names.TAG}={self.name}): "
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
        return self.model(model_of(configuration))

    def configurations(self) -> list[str]:
        rows = self._account.paginate(
            SAGEMAKER,
            "list_endpoint_configs",
            "EndpointConfigs",
            "list the configurations",
            NameContains=f"{self.name}-",
        )
        return [
            row["EndpointConfigName"]
            for row in rows
            if self._is_own(row["EndpointConfigName"], row["EndpointConfigArn"])
        ]

    def models(self) -> list[str]:
        rows = self._account.paginate(
            SAGEMAKER, "list_models", "Models", "list the models", NameContains=f"{self.name}-"
        )
        return [row["ModelName"] for row in rows if self._is_own(row["ModelName"], row["ModelArn"])]

    def previous(self, configuration: dict[str, Any]) -> str | None:
        """Return the configuration that served before this one."""
        return self.tags(configuration["EndpointConfigArn"]).get(resource_names.PREVIOUS)

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

    def _is_own(self, candidate: str, arn: str) -> bool:
        # Compare the name first: that costs no call.
        return (
            resource_names.is_own(self.name, candidate)
            and self.tags(arn).get(resource_names.TAG) == self.name
        )


def models_of(configuration: dict[str, Any]) -> set[str]:
    """Return the models of all variants, the shadow's too."""
    variants = [*configuration["ProductionVariants"], *configuration.get("ShadowProductionVariants", ())]
    return {str(variant["ModelName"]) for variant in variants}


def model_of(configuration: dict[str, Any]) -> str:
    return str(configuration["ProductionVariants"][0]["ModelName"])
