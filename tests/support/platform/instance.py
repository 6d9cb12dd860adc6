"""One instance of an endpoint: a machine, its log stream, and how many requests it is working on."""

from __future__ import annotations

import shutil
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import requests

from tests.support.platform.archives import Archives, NoArchive
from tests.support.platform.failures import of_model
from tests.support.platform.logs import LogStream
from tests.support.platform.machines import Machine, Machines, passes_ping
from tests.support.platform.models import Models
from tests.support.platform.plan import Plan

#: Seconds that an invocation may take, and that a connection may.
INVOCATION_TIMEOUT_S, CONNECT_TIMEOUT_S = 60.0, 0.25
#: Pings in a row that may fail before the instance is given up.
MAX_FAILED_PINGS = 3


class NeverSent(Exception):
    """No connection came about: another instance may have the request."""


class NotStarted(Exception):
    """The instance does not come up; says so as the platform does."""


class Instance:
    """Started at once; :meth:`wait` for it. ``home`` is removed with it."""

    def __init__(self, plan: Plan, machines: Machines, archives: Archives, logs: Any, home: Path) -> None:
        self.id = f"i-{uuid.uuid4().hex[:17]}"
        self.plan, self.home = plan, home / self.id
        self.busy, self._failed, self._lock = 0, 0, threading.Lock()
        self.home.mkdir(parents=True)
        try:
            single = plan.data and not plan.multi_model
            model = archives.current(plan.data) if single else None
        except NoArchive as error:
            shutil.rmtree(self.home)
            raise NotStarted(str(error)) from None
        self.machine: Machine = machines.start(plan, model, self.home)
        self.stream = LogStream(logs, plan.endpoint, f"{plan.variant}/{self.id}")
        self.models = Models(self.machine, archives, plan.data)

    def wait(self, given_up: Callable[[], bool]) -> None:
        """Until the first ping is passed; :class:`NotStarted` when its time is over, or the container's life."""
        end = time.monotonic() + self.plan.startup
        while not passes_ping(self.machine):
            if time.monotonic() > end or given_up() or not self.machine.alive():
                raise NotStarted(
                    f"The primary container for production variant {self.plan.variant} did not pass the ping "
                    "health check. Please check CloudWatch logs for this endpoint."
                )
            time.sleep(0.1)

    def healthy(self) -> bool:
        """Ask for its health once; too many failures in a row, or the container's end, and it is not."""
        self.stream.ship(self.machine.log())
        self._failed = 0 if passes_ping(self.machine) else self._failed + 1
        return self.machine.alive() and self._failed < MAX_FAILED_PINGS

    @contextmanager
    def working(self) -> Iterator[None]:
        """Count a request as long as it is worked on."""
        with self._lock:
            self.busy += 1
        try:
            yield
        finally:
            with self._lock:
                self.busy -= 1

    def post(
        self, body: bytes, headers: Mapping[str, str], target: str, seconds: float = INVOCATION_TIMEOUT_S
    ) -> requests.Response:
        """The container's answer, its body yet unread. ``target``: of multi-model mode.

        :class:`NeverSent`; or a ``ModelError`` where the answer broke off or took too long.
        """
        try:
            return self._post(body, headers, target, (CONNECT_TIMEOUT_S, seconds))
        except requests.ConnectTimeout:
            raise NeverSent from None
        except requests.ReadTimeout:
            raise of_model(
                0,
                "Your invocation timed out while waiting for a response from container primary.",
                self.stream.arn,
            ) from None
        except requests.ConnectionError as error:
            if "refused" in str(error):
                raise NeverSent from None
            raise of_model(0, "The connection to container primary broke.", self.stream.arn) from None

    def _post(
        self, body: bytes, headers: Mapping[str, str], target: str, times: tuple[float, float]
    ) -> requests.Response:
        def send(path: str) -> requests.Response:
            url = f"{self.machine.url}{path}"
            return requests.post(url, data=body, headers=dict(headers), timeout=times, stream=True)

        return self.models.invoke(target, send) if target else send("/invocations")

    def stop(self) -> None:
        """Once its requests are answered, or their time is over."""
        end = time.monotonic() + INVOCATION_TIMEOUT_S
        while self.busy and self.machine.alive() and time.monotonic() < end:
            time.sleep(0.05)
        self.machine.stop()
        self.stream.ship(self.machine_log())
        shutil.rmtree(self.home, ignore_errors=True)

    def machine_log(self) -> str:
        try:
            return self.machine.log()
        except (OSError, AssertionError):
            return ""
