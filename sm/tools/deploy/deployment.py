"""Model, configuration, endpoint, in this order; each is looked for before it is made.

So a run that was killed is finished by the next: names say what things are
(:mod:`sm.tools.deploy.resource_names`), and
nothing that a step needs is remembered anywhere but in the account.
"""

from __future__ import annotations

import time
from typing import Any

from sm.errors import StartError
from sm.tools.deploy import alarms, autoscaling, aws, endpoint_logs, resource_names
from sm.tools.deploy.account import Account
from sm.tools.deploy.deployment_plan import Plan
from sm.tools.deploy.resources import SAGEMAKER, Resources, model_of
from sm.tools.deploy.rollout import Rollout
from sm.tools.deploy.start_failures import failed
from sm.tools.deploy.waiting import Waiter

#: Lines of the containers' logs that a failure shows.
LINES = 20


class Deployment:
    """One deployment in an account."""

    def __init__(self, account: Account, name: str, waiter: Waiter) -> None:
        self._account, self._name, self._waiter = account, name, waiter
        self.things = Resources(account, name)

    def apply(self, plan: Plan, rollout: Rollout) -> None:
        """Make the endpoint serve ``plan``, or raise; what this run made in vain is removed then.

        After :class:`sm.tools.deploy.aws.ServiceUnavailable` nothing is removed: the next run goes on.
        """
        endpoint = self._settled()
        try:
            self._make_model(plan)
            self._make_configuration(plan)
            self._make_endpoint(plan, rollout, endpoint)
        except aws.ServiceUnavailable:
            raise
        except StartError as error:
            raise self._undone(plan, error) from None

    def roll_back(self, rollout: Rollout) -> str:
        """Serve the configuration that served before; its name."""
        endpoint = self.things.existing()
        endpoint = self._waiter.wait(self._name) or endpoint
        now = self.things.configuration(endpoint["EndpointConfigName"])
        before = self.things.previous(now) if now else None
        if not before or self.things.configuration(before) is None:
            raise StartError(
                f"endpoint {self._name!r} has had no other version: there is nothing to go back to."
            )
        self._update(before, rollout, endpoint)
        return before

    def _settled(self) -> dict[str, Any] | None:
        """The endpoint, when another run or AWS is through with it. A failed one can only be removed."""
        if self.things.endpoint() is None:
            return None
        found = self._waiter.wait(self._name)
        if found and found["EndpointStatus"] == "Failed":
            self._account.progress.say(f"endpoint {self._name} has failed earlier: it is made anew")
            self.things.remove_endpoint()
            found = None if self._account.dry else self._waiter.wait(self._name)
        return found

    def _make_model(self, plan: Plan) -> None:
        if self.things.model(plan.model_name) is None:
            self._account.create(SAGEMAKER, "create_model", f"make model {plan.model_name}", **plan.model())

    def _make_configuration(self, plan: Plan) -> None:
        name = plan.configuration_name
        if self.things.configuration(name) is None:
            self._account.create(
                SAGEMAKER, "create_endpoint_config", f"make configuration {name}", **plan.configuration()
            )

    def _make_endpoint(self, plan: Plan, rollout: Rollout, found: dict[str, Any] | None) -> None:
        if found is None:
            self._account.create(
                SAGEMAKER, "create_endpoint", f"make endpoint {plan.name}", **plan.endpoint()
            )
            self._wait_serving(plan.configuration_name, "could not be created")
        elif found["EndpointConfigName"] != plan.configuration_name:
            self._update(plan.configuration_name, rollout, found)
        else:
            self._account.progress.say(f"endpoint {plan.name} is up to date")
        if found and aws.by_name(plan.all_tags()).items() - self.things.tags(found["EndpointArn"]).items():
            arn = found["EndpointArn"]
            self._account.create(
                SAGEMAKER, "add_tags", "set the endpoint's tags", ResourceArn=arn, Tags=plan.all_tags()
            )

    def _update(self, configuration: str, rollout: Rollout, found: dict[str, Any]) -> None:
        """Blue/green. The instances that autoscaling has started stay as many."""
        self._remember(configuration, found["EndpointConfigName"])
        arguments: dict[str, Any] = {"EndpointName": self._name, "EndpointConfigName": configuration}
        if autoscaling.target(self._account, self._name):
            arguments["RetainAllVariantProperties"] = True
        if not rollout.is_usual:
            arguments["DeploymentConfig"] = rollout.deployment()
        self._account.create(SAGEMAKER, "update_endpoint", f"update endpoint {self._name}", **arguments)
        self._wait_serving(configuration, "could not be updated, and serves what it did")

    def _remember(self, configuration: str, before: str) -> None:
        """On the new one, ahead of the update: --rollback must know after a crash, too."""
        found = self.things.configuration(configuration)
        arn = found["EndpointConfigArn"] if found else f"ARN-OF-{configuration}"  # in a dry run
        self._account.create(
            SAGEMAKER,
            "add_tags",
            f"tag configuration {configuration}",
            ResourceArn=arn,
            Tags=aws.named({resource_names.PREVIOUS: before}),
        )

    def _wait_serving(self, configuration: str, otherwise: str) -> None:
        if self._account.dry:
            return
        since = time.time()
        found = self._waiter.wait(self._name) or {"EndpointStatus": "gone"}
        if found["EndpointStatus"] == "InService" and found["EndpointConfigName"] == configuration:
            return
        reason = str(found.get("FailureReason", ""))
        raise failed(self._name, otherwise, reason, self._last_lines(since))

    def _last_lines(self, since: float) -> list[str]:
        try:
            return endpoint_logs.last(self._account, self._name, LINES, since)
        except StartError as error:
            return [f"({error})"]

    def _undone(self, plan: Plan, error: StartError) -> StartError:
        """The error, with what became of what was half made."""
        if self._account.dry:
            return error
        try:
            return type(error)(f"{error}\n{self.undo(plan)}")
        except StartError as another:
            return StartError(
                f"{error}\nWhat was made could not be removed ({another}) "
                f"There may be left: model {plan.model_name}, configuration {plan.configuration_name}, "
                f"endpoint {plan.name}. 'sm delete {plan.name}' removes them."
            )

    def undo(self, plan: Plan) -> str:
        """Remove what ``plan`` made and nothing serves; a sentence on what was."""
        found, gone = self.things.endpoint(), []
        ours = found is not None and found["EndpointConfigName"] == plan.configuration_name
        if found and ours and found["EndpointStatus"] == "Failed":
            self.things.remove_endpoint()
            self._waiter.wait(plan.name)
            gone, found = ["endpoint"], None
        elif ours:
            return "Nothing was removed."
        kept = self._needed(found)
        own = [alarm["AlarmName"] for alarm in alarms.own(self._account, plan.name)]
        if found is None and own:
            alarms.remove(self._account, own)
            gone.append("alarms")
        if plan.configuration_name not in kept and self.things.configuration(plan.configuration_name):
            self.things.remove_configuration(plan.configuration_name)
            gone.append("configuration")
        if plan.model_name not in kept and self.things.model(plan.model_name):
            self.things.remove_model(plan.model_name)
            gone.append("model")
        return f"Removed what was made in vain: {', '.join(gone)}." if gone else "Nothing is left of it."

    def _needed(self, endpoint: dict[str, Any] | None) -> set[str]:
        """Configurations and models that serve, or that --rollback would use."""
        if not endpoint:
            return set()
        needed = set[str]()
        now = self.things.configuration(endpoint["EndpointConfigName"])
        before = self.things.previous(now) if now else None
        for configuration in (now, self.things.configuration(before) if before else None):
            if configuration:
                needed |= {configuration["EndpointConfigName"], model_of(configuration)}
        return needed
