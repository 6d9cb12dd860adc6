"""Everything that a deployment has, removed: listed first, and asked for."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from sm.errors import StartError
from sm.tools.deploy import alarms, autoscaling, endpoint_logs
from sm.tools.deploy.account import Account
from sm.tools.deploy.resources import Resources
from sm.tools.deploy.upload import FOLDER, Place, default_bucket
from sm.tools.deploy.waiting import Waiter


@dataclass(frozen=True)
class Resource:
    """``what`` it is, for the list; ``remove`` it, which is no error if it is gone."""

    what: str
    remove: Callable[[], None]


class Deletion:
    """Finds a deployment's things by name and tag, so that what a killed run has left is found, too."""

    def __init__(self, account: Account, name: str, waiter: Waiter) -> None:
        self._account, self._name, self._waiter = account, name, waiter
        self._things = Resources(account, name)

    def run(self, is_sure: bool) -> None:
        """List, ask, remove."""
        things = list(self._found())
        if not things:
            raise StartError(
                f"there is nothing of {self._name!r} in {self._account.region}; look at name and --region."
            )
        for thing in things:
            self._account.results.say(thing.what)
        if not is_sure:
            self._ask()
        for thing in things:
            thing.remove()
        self._account.progress.say(
            f"removed. Its logs stay to be read; without them: "
            f"aws logs delete-log-group --log-group-name {endpoint_logs.group(self._name)}"
        )

    def _ask(self) -> None:
        if not sys.stdin.isatty():
            raise StartError("nothing was removed: nobody can be asked here. Give --yes.")
        self._account.progress.say(f"Remove all this? Write {self._name} to do so:")
        if sys.stdin.readline().strip() != self._name:
            raise StartError("nothing was removed.")

    def _found(self) -> Iterator[Resource]:
        """In the order in which they can go: archives are found by the models, so these go last."""
        account, name, things = self._account, self._name, self._things
        endpoint = things.endpoint()
        if autoscaling.target(account, name):
            yield Resource(f"autoscaling of {name}", partial(autoscaling.remove, account, name))
        if endpoint:
            yield Resource(f"endpoint {name} ({endpoint['EndpointStatus']})", self._remove_endpoint)
        if own := [alarm["AlarmName"] for alarm in alarms.own(account, name)]:
            yield Resource(f"alarms {', '.join(own)}", partial(alarms.remove, account, own))
        for each in things.configurations():
            yield Resource(f"configuration {each}", partial(things.remove_configuration, each))
        models = things.models()
        for place in self._archives(models):
            yield Resource(f"archive {place}", partial(self._remove_archive, place))
        for each in models:
            yield Resource(f"model {each}", partial(things.remove_model, each))

    def _remove_endpoint(self) -> None:
        """An endpoint that is being made or updated cannot be deleted; SageMaker says so itself otherwise."""
        self._waiter.wait(self._name)
        self._things.remove_endpoint()
        self._waiter.wait(self._name)

    def _archives(self, models: list[str]) -> Iterator[Place]:
        """Those that 'sm deploy' has sent: an archive that was named by its URL is not ours to remove."""
        ours = f"{FOLDER}/{self._name}/"
        buckets = {default_bucket(self._account)}  # a run that was killed early has left no model
        for name in models:
            model = self._things.model(name) or {}
            url = str(model.get("PrimaryContainer", {}).get("ModelDataUrl", ""))
            if url.startswith("s3://") and Place.read(url).key.startswith(ours):
                buckets.add(Place.read(url).bucket)
        for bucket in sorted(buckets):
            found = self._account.paginate(
                "s3", "list_objects_v2", "Contents", f"list bucket {bucket}", Bucket=bucket, Prefix=ours
            )
            yield from (Place(bucket, each["Key"]) for each in found)

    def _remove_archive(self, place: Place) -> None:
        self._account.remove("s3", "delete_object", f"remove {place}", Bucket=place.bucket, Key=place.key)
