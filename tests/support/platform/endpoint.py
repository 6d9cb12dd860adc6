"""A running endpoint: starts, replaces and scales instances as its plan says, and balances requests over them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress

import requests
from botocore.exceptions import BotoCoreError, ClientError

from tests.support.platform.failures import InvocationFailed
from tests.support.platform.instance import INVOCATION_TIMEOUT_S, Instance, NotConnected, StartFailed
from tests.support.platform.plan import EndpointPlan

CHECK_INTERVAL_S = 0.3  # between two health checks
#: Errors when an instance starts. Podman's errors are AssertionErrors.
START_FAILURES = (StartFailed, ClientError, BotoCoreError, AssertionError)


class Endpoint:
    """The instances of one endpoint, managed by a thread of its own.

    Args:
        plan: What is to run at first; :meth:`apply` changes it.
        start_instance: Starts an instance of a plan without waiting for it.
        on_rollback: Called with the plan that stays in force after an update has failed.
    """

    def __init__(
        self,
        plan: EndpointPlan,
        start_instance: Callable[[EndpointPlan], Instance],
        on_rollback: Callable[[EndpointPlan], object],
    ) -> None:
        self.target_plan, self.plan = plan, plan
        self.status, self.reason = "Creating", ""
        self.instances: list[Instance] = []
        self._start_instance, self._on_rollback = start_instance, on_rollback
        self._closing, self._wake_event = threading.Event(), threading.Event()
        self._stopping_threads: list[threading.Thread] = []
        self._thread = threading.Thread(target=self._run, name=f"endpoint {plan.endpoint_name}")
        self._thread.start()

    def apply(self, plan: EndpointPlan) -> None:
        """Change to another plan. The old instances serve until the new ones are healthy."""
        if plan == self.target_plan:
            return
        if self.status == "InService":
            self.status = "Updating"
        self.target_plan = plan
        self._wake_event.set()

    def close(self) -> None:
        """Stop all instances, and wait for their end."""
        self._closing.set()
        self._wake_event.set()
        self._thread.join()
        for thread in self._stopping_threads:
            thread.join()

    def invoke(
        self, body: bytes, headers: Mapping[str, str], target: str, timeout_s: float = INVOCATION_TIMEOUT_S
    ) -> tuple[Instance, requests.Response]:
        """Send a request to the least busy instance, or to the next one if that cannot be reached."""
        for instance in sorted(self.instances, key=lambda candidate: candidate.active_requests):
            with instance.counted_request():
                try:
                    return instance, instance.invoke(body, headers, target, timeout_s)
                except NotConnected:
                    continue
        raise InvocationFailed(
            503, "ServiceUnavailable", f"Endpoint {self.plan.endpoint_name} has no healthy instance."
        )

    def _run(self) -> None:
        self._carry_out(self.plan, self._replace)
        while not self._closing.is_set():
            if self.target_plan != self.plan:
                only_count_differs = self.target_plan.config_name == self.plan.config_name and self.instances
                self._carry_out(self.target_plan, self._scale if only_count_differs else self._replace)
            elif self.status == "InService":
                self._replace_unhealthy()
            self._wake_event.wait(CHECK_INTERVAL_S)
            self._wake_event.clear()
        self._stop_in_background(self.instances)

    def _carry_out(self, plan: EndpointPlan, change: Callable[[EndpointPlan], None]) -> None:
        before = self.plan
        try:
            change(plan)
            self.plan, self.status, self.reason = plan, "InService", ""
        except START_FAILURES as error:
            if self.instances:
                # Roll back: the old instances still run, and their plan is in force again.
                self._on_rollback(before)
                self.target_plan = before
            else:
                self.plan = plan
            self.reason = str(error)
            self.status = "InService" if self.instances else "Failed"

    def _replace(self, plan: EndpointPlan) -> None:
        """Start all new instances beside the old ones, then stop the old ones."""
        new = self._start_healthy(plan, plan.instance_count)
        old, self.instances = self.instances, new
        self._stop_in_background(old)

    def _scale(self, plan: EndpointPlan) -> None:
        if plan.instance_count > len(self.instances):
            self.instances = [
                *self.instances,
                *self._start_healthy(plan, plan.instance_count - len(self.instances)),
            ]
        else:
            old, self.instances = self.instances[plan.instance_count :], self.instances[: plan.instance_count]
            self._stop_in_background(old)

    def _replace_unhealthy(self) -> None:
        """Take unhealthy instances out of service, and start as many new ones."""
        unhealthy = [instance for instance in self.instances if not instance.check_health()]
        self.instances = [instance for instance in self.instances if instance not in unhealthy]
        self._stop_in_background(unhealthy)
        if unhealthy:
            with suppress(*START_FAILURES):
                self.instances = [*self.instances, *self._start_healthy(self.plan, len(unhealthy))]

    def _start_healthy(self, plan: EndpointPlan, count: int) -> list[Instance]:
        """Start ``count`` instances and wait until all are healthy. If one fails, stop them all."""
        started: list[Instance] = []
        try:
            for _ in range(count):
                started.append(self._start_instance(plan))
            for instance in started:
                instance.wait_until_healthy(self._closing.is_set)
        except BaseException:
            self._stop_in_background(started)
            raise
        return started

    def _stop_in_background(self, instances: list[Instance]) -> None:
        """Stop instances without waiting. Each finishes its requests first."""
        for instance in instances:
            self._stopping_threads.append(threading.Thread(target=instance.stop))
            self._stopping_threads[-1].start()
