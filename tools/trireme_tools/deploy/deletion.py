"""Remove everything that a deployment has: list it, ask, delete."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

from sm.errors import CommandError
from sm.http.s3 import S3Uri
from trireme_tools import aws
from trireme_tools.deploy import alarms, autoscaling, components, endpoint_logs, model_data, resources
from trireme_tools.deploy.account import Account
from trireme_tools.deploy.resources import Resources
from trireme_tools.deploy.upload import default_bucket
from trireme_tools.deploy.waiting import Waiter


@dataclass(frozen=True)
class Resource:
    """A resource with its description; ``remove`` is not an error if it is gone."""

    description: str
    remove: Callable[[], None]


def remove_all(account: Account, name: str, resources: Iterable[Resource], is_sure: bool) -> None:
    """List the resources of ``name``, ask unless ``is_sure``, and remove them."""
    found = list(resources)
    if not found:
        raise CommandError(f"found nothing of {name!r} in {account.region}; check the name and --region.")
    for resource in found:
        account.results.say(resource.description)
    if not is_sure:
        ask(account, f"Remove all this? Type {name} to confirm:", name, "nothing was removed")
    for resource in found:
        resource.remove()


def ask(account: Account, question: str, answer: str, otherwise: str) -> None:
    """Ask on standard error. Raises :class:`CommandError` with ``otherwise`` for any other answer."""
    if not sys.stdin.isatty():
        raise CommandError(f"{otherwise}: stdin is not a terminal; pass --yes")
    account.progress.say(question)
    if sys.stdin.readline().strip() != answer:
        raise CommandError(f"{otherwise}.")


class Deletion:
    """Finds a deployment's resources by name and tag, including those of an interrupted run."""

    def __init__(self, account: Account, name: str, waiter: Waiter) -> None:
        self._account, self._name, self._waiter = account, name, waiter
        self._deployed = Resources(account, name)

    def run(self, is_sure: bool) -> None:
        """List the resources, ask unless ``is_sure``, and remove them."""
        remove_all(self._account, self._name, self._resources(), is_sure)
        self._account.progress.say(
            f"removed. Its logs stay to be read; without them: "
            f"aws logs delete-log-group --log-group-name {endpoint_logs.group_name(self._name)}"
        )

    def _resources(self) -> Iterator[Resource]:
        """Yield the resources in the order of deletion: archives last, as they are found through the
        models.
        """
        account, name, deployed = self._account, self._name, self._deployed
        endpoint = deployed.endpoint()
        for row in components.of_endpoint(account, name) if endpoint else ():
            if (other := row["InferenceComponentName"]) != name:
                raise CommandError(f"component {other!r} is on this endpoint: 'sm delete {other}' first.")
        component = None
        with account.optional():
            component = components.describe(account, name)
        if component and deployed.tags(component["InferenceComponentArn"]).get(resources.TAG) == name:
            if autoscaling.current_limits(account, name, autoscaling.COMPONENT):
                removal = partial(autoscaling.remove, account, name, autoscaling.COMPONENT)
                yield Resource(f"autoscaling of component {name}", removal)
            yield Resource(f"component {name}", partial(components.remove, account, name))
        if autoscaling.current_limits(account, name):
            yield Resource(f"autoscaling of {name}", partial(autoscaling.remove, account, name))
        if endpoint:
            yield Resource(f"endpoint {name} ({endpoint['EndpointStatus']})", self._remove_endpoint)
        if own_alarms := [alarm["AlarmName"] for alarm in alarms.find_own(account, name)]:
            yield Resource(f"alarms {', '.join(own_alarms)}", partial(alarms.remove, account, own_alarms))
        for resource_name in deployed.configurations():
            yield Resource(
                f"configuration {resource_name}", partial(deployed.remove_configuration, resource_name)
            )
        models = deployed.models()
        for folder, places in self._model_data(models).items():
            yield Resource(
                f"model data {folder} ({len(places)} objects)", partial(self._remove_objects, places)
            )
        for resource_name in models:
            yield Resource(f"model {resource_name}", partial(deployed.remove_model, resource_name))

    def _remove_endpoint(self) -> None:
        """SageMaker refuses to delete an endpoint while it is being created or updated."""
        self._waiter.wait(self._name)
        self._deployed.remove_endpoint()
        self._waiter.wait(self._name)

    def _model_data(self, models: list[str]) -> dict[str, list[S3Uri]]:
        """Return the objects that 'sm deploy' uploaded, by their version; what was given by URL stays."""
        prefix = f"{resources.KEY_PREFIX}/{self._name}/"
        buckets = {default_bucket(self._account)}  # a run that was killed early has left no model
        for name in models:
            container = (self._deployed.model(name) or {}).get("PrimaryContainer", {})
            url = model_data.url_of(container)
            if url.startswith("s3://") and aws.s3_place(url).key.startswith(prefix):
                buckets.add(aws.s3_place(url).bucket)
        found: dict[str, list[S3Uri]] = {}
        for bucket in sorted(buckets):
            for entry in self._account.paginate(
                "s3", "list_objects_v2", "Contents", f"list bucket {bucket}", Bucket=bucket, Prefix=prefix
            ):
                version = entry["Key"].removeprefix(prefix).partition("/")[0]
                found.setdefault(f"s3://{bucket}/{prefix}{version}/", []).append(S3Uri(bucket, entry["Key"]))
        return found

    def _remove_objects(self, places: list[S3Uri]) -> None:
        for place in places:
            self._account.remove("s3", "delete_object", f"remove {place}", Bucket=place.bucket, Key=place.key)
