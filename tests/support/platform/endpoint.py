"""An endpoint: instances that come to be what its plan says, and that requests are shared out to."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress

import requests
from botocore.exceptions import BotoCoreError, ClientError

from tests.support.platform.failures import Refused
from tests.support.platform.instance import INVOCATION_TIMEOUT_S, Instance, NeverSent, NotStarted
from tests.support.platform.plan import Plan

#: Seconds between two looks at the instances.
CHECK_INTERVAL_S = 0.3
#: What may keep an instance from coming up; Podman's complaints are AssertionErrors.
FAILURES = (NotStarted, ClientError, BotoCoreError, AssertionError)


class Endpoint:
    """``start`` makes an instance of a plan, not ready yet; ``refused`` is called with what it went back to."""

    def __init__(
        self, plan: Plan, start: Callable[[Plan], Instance], refused: Callable[[Plan], object]
    ) -> None:
        self.wanted, self.plan = plan, plan
        self.status, self.reason = "Creating", ""
        self.instances: list[Instance] = []
        self._start, self._refused = start, refused
        self._gone, self._news = threading.Event(), threading.Event()
        self._going: list[threading.Thread] = []
        self._keeper = threading.Thread(target=self._keep, name=f"endpoint {plan.endpoint}")
        self._keeper.start()

    def become(self, plan: Plan) -> None:
        """Take a plan in hand; one of another configuration is an update, the instances stay until it is ready."""
        if plan == self.wanted:
            return
        if self.status == "InService":
            self.status = "Updating"
        self.wanted = plan
        self._news.set()

    def close(self) -> None:
        """Stop every instance."""
        self._gone.set()
        self._news.set()
        self._keeper.join()
        for thread in self._going:
            thread.join()

    def post(
        self, body: bytes, headers: Mapping[str, str], target: str, seconds: float = INVOCATION_TIMEOUT_S
    ) -> tuple[Instance, requests.Response]:
        """The answer of the instance with least to do; of the next one if that cannot be reached."""
        for instance in sorted(self.instances, key=lambda one: one.busy):
            with instance.working():
                try:
                    return instance, instance.post(body, headers, target, seconds)
                except NeverSent:
                    continue
        raise Refused(503, "ServiceUnavailable", f"Endpoint {self.plan.endpoint} has no healthy instance.")

    def _keep(self) -> None:
        self._change(self.plan, self._replace)
        while not self._gone.is_set():
            if self.wanted != self.plan:
                same = self.wanted.config == self.plan.config and self.instances
                self._change(self.wanted, self._scale if same else self._replace)
            elif self.status == "InService":
                self._heal()
            self._news.wait(CHECK_INTERVAL_S)
            self._news.clear()
        self._stop(self.instances)

    def _change(self, plan: Plan, how: Callable[[Plan], None]) -> None:
        before = self.plan
        try:
            how(plan)
            self.plan, self.status, self.reason = plan, "InService", ""
        except FAILURES as error:
            if self.instances:
                # Rolled back: what was there is what is wanted again.
                self._refused(before)
                self.wanted = before
            else:
                self.plan = plan
            self.reason = str(error)
            self.status = "InService" if self.instances else "Failed"

    def _replace(self, plan: Plan) -> None:
        """All new instances beside the old ones, then the old ones go."""
        made = self._started(plan, plan.count)
        old, self.instances = self.instances, made
        self._stop(old)

    def _scale(self, plan: Plan) -> None:
        if plan.count > len(self.instances):
            self.instances = [*self.instances, *self._started(plan, plan.count - len(self.instances))]
        else:
            old, self.instances = self.instances[plan.count :], self.instances[: plan.count]
            self._stop(old)

    def _heal(self) -> None:
        """Let nobody ask an instance that is ill any more, and put another in its place."""
        ill = [instance for instance in self.instances if not instance.healthy()]
        self.instances = [instance for instance in self.instances if instance not in ill]
        self._stop(ill)
        if ill:
            with suppress(*FAILURES):
                self.instances = [*self.instances, *self._started(self.plan, len(ill))]

    def _started(self, plan: Plan, count: int) -> list[Instance]:
        """So many that have passed their first ping, or none."""
        made: list[Instance] = []
        try:
            for _ in range(count):
                made.append(self._start(plan))
            for instance in made:
                instance.wait(self._gone.is_set)
        except BaseException:
            self._stop(made)
            raise
        return made

    def _stop(self, instances: list[Instance]) -> None:
        """Beside whatever comes next: each finishes its requests first."""
        for instance in instances:
            self._going.append(threading.Thread(target=instance.stop))
            self._going[-1].start()
