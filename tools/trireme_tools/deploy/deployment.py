"""Create model, configuration and endpoint, in this order, if they do not exist.

So the next run completes one that was killed: names identify resources
(:mod:`trireme_tools.deploy.resources`), and all state is in the account.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sm.errors import CommandError
from trireme_tools import aws
from trireme_tools.deploy import (
    alarms,
    api_fields,
    autoscaling,
    deployment_plan,
    endpoint_logs,
    exclusions,
    gpu_hosts,
    quotas,
    resources,
)
from trireme_tools.deploy.account import Account
from trireme_tools.deploy.api_fields import Assignment
from trireme_tools.deploy.deployment_plan import DeploymentPlan, Shadow
from trireme_tools.deploy.resources import SAGEMAKER, Resources, model_of, models_of
from trireme_tools.deploy.waiting import Waiter, make_failure

#: Seconds: SageMaker's limit for an update, and what new instances may need to start.
MAX_UPDATE_S, MAX_START_S = 28_800, 3600


ALL_AT_ONCE = "ALL_AT_ONCE"


@dataclass(frozen=True)
class Rollout:
    """``kind`` is SageMaker's. ``percent`` of the capacity moves first or in each step; ``bake`` is in
    seconds.

    If one of ``alarms`` goes off, SageMaker restores the old version.
    """

    kind: str = ALL_AT_ONCE
    percent: int = 0
    bake: int = 300
    alarms: tuple[str, ...] = ()
    #: Fields of UpdateEndpoint that have no option.
    fields: tuple[Assignment, ...] = ()

    def apply(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return UpdateEndpoint's arguments with this rollout."""
        if not self.is_default:
            arguments["DeploymentConfig"] = self.deployment()
        arguments = api_fields.apply(api_fields.UPDATE, arguments, self.fields)
        deployment = arguments.get("DeploymentConfig", {})
        if "RollingUpdatePolicy" in deployment and self.kind == ALL_AT_ONCE:
            deployment.pop("BlueGreenUpdatePolicy", None)  # the API takes one of them
        return arguments

    def deployment_configuration(self) -> dict[str, Any]:
        """Return the DeploymentConfig of UpdateEndpoint; empty for SageMaker's default."""
        return dict(self.apply({}).get("DeploymentConfig", {}))

    def deployment(self) -> dict[str, Any]:
        """Return the DeploymentConfig of UpdateEndpoint: blue/green, as the old version must stay until the
        end.
        """
        routing: dict[str, Any] = {"Type": self.kind, "WaitIntervalInSeconds": self.bake}
        size = {"Type": "CAPACITY_PERCENT", "Value": self.percent}
        if self.kind == "CANARY":
            routing["CanarySize"] = size
        if self.kind == "LINEAR":
            routing["LinearStepSize"] = size
        policy = {
            "TrafficRoutingConfiguration": routing,
            # The old instances stay as long as an alarm on the last step may take.
            "TerminationWaitInSeconds": self.bake,
            "MaximumExecutionTimeoutInSeconds": min(
                MAX_UPDATE_S, MAX_START_S + self.bake * (self._steps + 1)
            ),
        }
        configuration: dict[str, Any] = {"BlueGreenUpdatePolicy": policy}
        if self.alarms:
            alarms = [{"AlarmName": name} for name in self.alarms]
            configuration["AutoRollbackConfiguration"] = {"Alarms": alarms}
        return configuration

    @property
    def is_rolling(self) -> bool:
        """True if only a few new instances start beside the old ones."""
        return "RollingUpdatePolicy" in self.deployment_configuration()

    @property
    def _steps(self) -> int:
        return -(-100 // self.percent) if self.kind == "LINEAR" else 1

    @property
    def is_default(self) -> bool:
        """True if this is SageMaker's default."""
        return self.kind == ALL_AT_ONCE and not self.alarms


#: Lines of the containers' logs that are shown after a failure.
LOG_LINES = 20


class Deployment:
    """One deployment in an account."""

    def __init__(self, account: Account, name: str, waiter: Waiter) -> None:
        self._account, self._name, self._waiter = account, name, waiter
        self.resources = Resources(account, name)

    def apply(self, plan: DeploymentPlan, rollout: Rollout) -> None:
        """Make the endpoint serve ``plan``. After a failure, what this run created is removed.

        After :class:`trireme_tools.aws.ServiceUnavailable` nothing is removed: the next run continues.
        """
        endpoint = self._wait_until_steady()
        if endpoint and endpoint["EndpointConfigName"] != plan.configuration_name:
            self._check_quotas(plan.configuration(), rollout)
        with self._undone_after_failure(plan.configuration_name, plan.model_name):
            self._provide(plan.model(), plan.configuration())
            self._make_endpoint(plan, rollout, endpoint)

    def add_shadow(self, chosen: Shadow, fingerprint: str, rollout: Rollout) -> None:
        """Serve what is served, with a shadow. ``fingerprint`` identifies the content of its archive."""
        configuration = self._served()
        variant = configuration["ProductionVariants"][0]
        if chosen.image and (instance_type := variant.get("InstanceType")):
            gpu_hosts.check(chosen.image, instance_type, variant.get(gpu_hosts.AMI))
        content = chosen.model(self._model_behind(model_of(configuration)))
        model_name = resources.add_hash(self._name, [content, fingerprint])
        changed = deployment_plan.add(configuration, chosen, model_name)
        self._check_exclusions(changed, content, rollout)
        self._serve(changed, model_name, content, rollout)

    def check_shadow(self, rollout: Rollout) -> None:
        """Raise :class:`CommandError` if what is served can have no shadow, before anything is uploaded."""
        configuration = self._served()
        described = self._model_behind(model_of(configuration))
        changed = deployment_plan.add(configuration, Shadow(), model_of(configuration))
        self._check_exclusions(changed, described, rollout)

    def check(self, plan: DeploymentPlan, rollout: Rollout, scaled: bool) -> None:
        """Raise :class:`CommandError` if SageMaker would refuse the plan, before anything is uploaded."""
        served = self.served_configuration()
        if served and exclusions.changes_instances(served, plan.configuration()):
            scaled = bool(self._scaling(served)) or scaled
        elif served:
            scaled = bool(autoscaling.current_limits(self._account, self._name)) or scaled
        plan.check(rollout.deployment_configuration(), scaled, served)

    def served_configuration(self) -> dict[str, Any] | None:
        """Describe the configuration of the endpoint; None if there is none, or it will be made again."""
        endpoint = self.resources.endpoint()
        if not endpoint or endpoint["EndpointStatus"] == "Failed":
            return None
        return self.resources.configuration(endpoint["EndpointConfigName"])

    def _check_exclusions(
        self, configuration: dict[str, Any], model: dict[str, Any], rollout: Rollout
    ) -> None:
        scaled = bool(autoscaling.current_limits(self._account, self._name))
        deployment, served = rollout.deployment_configuration(), self.served_configuration()
        exclusions.check(exclusions.RequestedEndpoint(configuration, model, deployment, scaled, served))

    def promote_shadow(self, rollout: Rollout) -> None:
        """Serve the shadow's model instead of production's."""
        configuration = self._served()
        model_name = deployment_plan.find(configuration)["ModelName"]
        described = self._model_behind(model_name)
        content, container = deployment_plan.model(described), described["PrimaryContainer"]
        if content["PrimaryContainer"]["Environment"] != container.get("Environment", {}):
            model_name = resources.add_hash(self._name, [content, model_name])
        self._serve(deployment_plan.promote(configuration, model_name), model_name, content, rollout)

    def remove_shadow(self, rollout: Rollout) -> None:
        """Serve what is served, without the shadow."""
        configuration = self._served()
        deployment_plan.find(configuration)
        self._serve(deployment_plan.remove(configuration), model_of(configuration), {}, rollout)

    def _served(self) -> dict[str, Any]:
        """Describe the configuration of a steady endpoint."""
        endpoint = self.resources.existing()
        endpoint = self._waiter.wait(self._name) or endpoint
        configuration = self.resources.configuration(endpoint["EndpointConfigName"])
        if endpoint["EndpointStatus"] == "Failed" or configuration is None:
            raise CommandError(f"endpoint {self._name!r} serves nothing that could have a shadow.")
        return configuration

    def _model_behind(self, name: str) -> dict[str, Any]:
        if described := self.resources.model(name):
            return described
        raise CommandError(f"there is no model {name!r} any more: deploy the endpoint again.")

    def _serve(
        self, configuration: dict[str, Any], model_name: str, model: dict[str, Any], rollout: Rollout
    ) -> None:
        """Update the endpoint to a changed configuration, and create the model if it does not exist."""
        name = resources.add_hash(self._name, configuration)
        endpoint = self.resources.existing()
        if endpoint["EndpointConfigName"] == name:
            self._account.progress.say(f"endpoint {self._name} is up to date")
            return
        tags = self.resources.tags(endpoint["EndpointArn"])
        self._check_quotas(configuration, rollout)
        labels = {"Tags": aws.to_tags({key: tags[key] for key in tags if key != resources.PREVIOUS})}
        with self._undone_after_failure(name, model_name):
            self._provide(
                {"ModelName": model_name, **model, **labels},
                {"EndpointConfigName": name, **configuration, **labels},
            )
            self._update(name, configuration, rollout, endpoint)

    def roll_back(self, rollout: Rollout) -> str:
        """Serve the previous configuration; return its name."""
        endpoint = self.resources.existing()
        endpoint = self._waiter.wait(self._name) or endpoint
        current = self.resources.configuration(endpoint["EndpointConfigName"])
        before = self.resources.previous(current) if current else None
        wanted = self.resources.configuration(before) if before else None
        if not before or wanted is None:
            raise CommandError(
                f"endpoint {self._name!r} has had no other version: there is nothing to go back to."
            )
        self._check_exclusions(wanted, self.resources.model(model_of(wanted)) or {}, rollout)
        self._check_quotas(wanted, rollout)
        self._update(before, wanted, rollout, endpoint)
        return before

    def _check_quotas(self, configuration: dict[str, Any], rollout: Rollout) -> None:
        """Raise :class:`CommandError` if a quota has no room for an update to this configuration."""
        limits = autoscaling.current_limits(self._account, self._name)
        most = limits["MaxCapacity"] if limits else 0
        quotas.check(self._account, self._name, configuration, most, changes=not rollout.is_rolling)

    def _wait_until_steady(self) -> dict[str, Any] | None:
        """Return the endpoint after another run or AWS has finished with it. A failed endpoint can only be
        removed.
        """
        if self.resources.endpoint() is None:
            return None
        endpoint = self._waiter.wait(self._name)
        if endpoint and endpoint["EndpointStatus"] == "Failed":
            self._account.progress.say(f"endpoint {self._name} has failed earlier: creating it again")
            self.resources.remove_endpoint()
            endpoint = None if self._account.dry else self._waiter.wait(self._name)
        return endpoint

    def _provide(self, model: dict[str, Any], configuration: dict[str, Any]) -> None:
        """Create the model and the configuration that do not exist."""
        if self.resources.model(name := model["ModelName"]) is None:
            self._account.create(SAGEMAKER, "create_model", f"make model {name}", **model)
        if self.resources.configuration(name := configuration["EndpointConfigName"]) is None:
            self._account.create(
                SAGEMAKER, "create_endpoint_config", f"make configuration {name}", **configuration
            )

    def _make_endpoint(self, plan: DeploymentPlan, rollout: Rollout, endpoint: dict[str, Any] | None) -> None:
        if endpoint is None:
            self._account.create(
                SAGEMAKER, "create_endpoint", f"make endpoint {plan.name}", **plan.endpoint()
            )
            self._wait_serving(plan.configuration_name, "could not be created")
        elif endpoint["EndpointConfigName"] != plan.configuration_name:
            self._update(plan.configuration_name, plan.configuration(), rollout, endpoint)
        else:
            self._resume_scaling(endpoint, plan.configuration())
            self._account.progress.say(f"endpoint {plan.name} is up to date")
        if (
            endpoint
            and aws.tags_by_name(plan.all_tags()).items()
            - self.resources.tags(endpoint["EndpointArn"]).items()
        ):
            arn = endpoint["EndpointArn"]
            self._account.create(
                SAGEMAKER, "add_tags", "set the endpoint's tags", ResourceArn=arn, Tags=plan.all_tags()
            )

    def _update(
        self, name: str, configuration: dict[str, Any], rollout: Rollout, endpoint: dict[str, Any]
    ) -> None:
        """Update blue/green. The number of instances that autoscaling started is kept."""
        before = self.resources.configuration(endpoint["EndpointConfigName"]) or {}
        self._remember(name, endpoint["EndpointConfigName"])
        arguments: dict[str, Any] = {"EndpointName": self._name, "EndpointConfigName": name}
        if autoscaling.current_limits(self._account, self._name):
            arguments["RetainAllVariantProperties"] = True
        arguments = rollout.apply(arguments)
        suspended = None
        if exclusions.changes_instances(before, configuration):
            suspended = self._suspend_scaling(endpoint, before)
        try:
            self._account.create(SAGEMAKER, "update_endpoint", f"update endpoint {self._name}", **arguments)
            self._wait_serving(name, "could not be updated, and serves what it did")
        except aws.ServiceUnavailable:  # the next run sets the autoscaling again
            raise
        except CommandError:
            self._resume_scaling(endpoint, before, suspended)
            raise
        self._resume_scaling(endpoint, configuration, suspended)

    def _scaling(self, configuration: dict[str, Any]) -> autoscaling.Scaling | None:
        return autoscaling.current(self._account, self._name, autoscaling.kind_of(configuration))

    def _suspend_scaling(
        self, endpoint: dict[str, Any], configuration: dict[str, Any]
    ) -> autoscaling.Scaling | None:
        """Take the autoscaling away, which SageMaker wants before an instance type changes. A tag keeps it: a
        run that ends here is completed by the next one.

        docs.aws.amazon.com/sagemaker/latest/dg/endpoint-scaling-update.html
        """
        if scaling := self._scaling(configuration):
            self._tag_scaling(endpoint, scaling.to_text())
            autoscaling.remove(self._account, self._name, scaling.of)
        return scaling

    def _resume_scaling(
        self,
        endpoint: dict[str, Any],
        configuration: dict[str, Any],
        suspended: autoscaling.Scaling | None = None,
    ) -> None:
        """Set the autoscaling again that this run or an earlier one took away."""
        text = self.resources.tags(endpoint["EndpointArn"]).get(resources.SCALING)
        if text and not suspended:
            suspended = autoscaling.Scaling.of_text(text, autoscaling.kind_of(configuration))
        if suspended:
            autoscaling.apply(self._account, self._name, suspended)
            self._tag_scaling(endpoint, "")

    def _tag_scaling(self, endpoint: dict[str, Any], text: str) -> None:
        self._account.create(
            SAGEMAKER,
            "add_tags",
            f"tag endpoint {self._name}",
            ResourceArn=endpoint["EndpointArn"],
            Tags=aws.to_tags({resources.SCALING: text}),
        )

    def _remember(self, configuration: str, before: str) -> None:
        """Tag the new configuration with its predecessor before the update, so that --rollback works after a
        crash too.
        """
        existing = self.resources.configuration(configuration)
        arn = existing["EndpointConfigArn"] if existing else f"ARN-OF-{configuration}"  # in a dry run
        self._account.create(
            SAGEMAKER,
            "add_tags",
            f"tag configuration {configuration}",
            ResourceArn=arn,
            Tags=aws.to_tags({resources.PREVIOUS: before}),
        )

    def _wait_serving(self, configuration: str, otherwise: str) -> None:
        if self._account.dry:
            return
        since = time.time()
        endpoint = self._waiter.wait(self._name) or {"EndpointStatus": "gone"}
        if endpoint["EndpointStatus"] == "InService" and endpoint["EndpointConfigName"] == configuration:
            return
        reason = str(endpoint.get("FailureReason", ""))
        raise make_failure(self._name, otherwise, reason, self._last_lines(since))

    def _last_lines(self, since: float) -> list[str]:
        try:
            return endpoint_logs.last_lines(self._account, self._name, LOG_LINES, since)
        except CommandError as error:
            return [f"({error})"]

    @contextmanager
    def _undone_after_failure(self, configuration: str, model: str) -> Iterator[None]:
        """Add to an error what became of the unfinished resources."""
        try:
            yield
        except CommandError as error:
            if self._account.dry or isinstance(error, aws.ServiceUnavailable):
                raise
            try:
                removed = self.undo(configuration, model)
            except CommandError as another:
                raise CommandError(
                    f"{error}\nThe new resources could not be removed ({another}) "
                    f"These may be left: model {model}, configuration {configuration}, "
                    f"endpoint {self._name}. 'sm delete {self._name}' removes them."
                ) from None
            raise type(error)(f"{error}\n{removed}") from None

    def undo(self, configuration: str, model: str) -> str:
        """Remove what a run created and nothing serves; describe it in a sentence."""
        endpoint, removed = self.resources.endpoint(), []
        is_served = endpoint is not None and endpoint["EndpointConfigName"] == configuration
        if endpoint and is_served and endpoint["EndpointStatus"] == "Failed":
            self.resources.remove_endpoint()
            self._waiter.wait(self._name)
            removed, endpoint = ["endpoint"], None
        elif is_served:
            return "Nothing was removed."
        in_use = self._names_in_use(endpoint)
        own_alarms = [alarm["AlarmName"] for alarm in alarms.find_own(self._account, self._name)]
        if endpoint is None and own_alarms:
            alarms.remove(self._account, own_alarms)
            removed.append("alarms")
        if configuration not in in_use and self.resources.configuration(configuration):
            self.resources.remove_configuration(configuration)
            removed.append("configuration")
        if model not in in_use and self.resources.model(model):
            self.resources.remove_model(model)
            removed.append("model")
        return f"Removed again: {', '.join(removed)}." if removed else "Nothing is left of it."

    def _names_in_use(self, endpoint: dict[str, Any] | None) -> set[str]:
        """Return the configurations and models that serve, or that --rollback would use."""
        if not endpoint:
            return set()
        needed = set[str]()
        current = self.resources.configuration(endpoint["EndpointConfigName"])
        previous = self.resources.previous(current) if current else None
        for configuration in (current, self.resources.configuration(previous) if previous else None):
            if configuration:
                needed |= {configuration["EndpointConfigName"], *models_of(configuration)}
        return needed
