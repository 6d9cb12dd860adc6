"""One instance of an endpoint: its machine, its log stream and its active requests."""

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
from botocore.exceptions import BotoCoreError, ClientError

from tests.support.platform.archives import ArchiveStore, ArchiveUnavailable
from tests.support.platform.failures import model_error
from tests.support.platform.machines import Launcher, Machine, passes_ping
from tests.support.platform.models import LoadedModels
from tests.support.platform.plan import EndpointPlan


class LogStream:
    """One instance's log stream in the endpoint's log group. ``logs`` is boto3's client."""

    def __init__(self, logs: Any, endpoint: str, name: str) -> None:
        self._logs, self._name = logs, name
        self._group = f"/aws/sagemaker/Endpoints/{endpoint}"
        self._sent_lines = 0
        self._created = False
        region = logs.meta.region_name
        self.arn = f"arn:aws:logs:{region}:123456789012:log-group:{self._group}:log-stream:{name}"

    def send_new_lines(self, log: str) -> None:
        """Send the complete lines of ``log`` that were not sent before.

        If CloudWatch refuses them, for example because somebody has deleted the log group, the next call tries
        again: that is not a fault of the instance.
        """
        lines = log.split("\n")[self._sent_lines : -1]
        if not lines:
            return
        try:
            self._create()
            self._put([line for line in lines if line.strip()])
        except (ClientError, BotoCoreError):
            return
        self._sent_lines += len(lines)

    def _put(self, lines: list[str]) -> None:
        now = int(time.time() * 1000)
        events = [{"timestamp": now, "message": line} for line in lines]
        if events:
            self._logs.put_log_events(logGroupName=self._group, logStreamName=self._name, logEvents=events)

    def _create(self) -> None:
        if self._created:
            return
        # Another instance may have created the group.
        for create, arguments in (
            (self._logs.create_log_group, {"logGroupName": self._group}),
            (self._logs.create_log_stream, {"logGroupName": self._group, "logStreamName": self._name}),
        ):
            try:
                create(**arguments)
            except self._logs.exceptions.ResourceAlreadyExistsException:
                continue
        self._created = True


INVOCATION_TIMEOUT_S, CONNECT_TIMEOUT_S = 60.0, 0.25
MAX_FAILED_PINGS = 3  # in a row; then the instance is replaced


class NotConnected(Exception):
    """No connection was made, so another instance may get the request."""


class StartFailed(Exception):
    """The instance did not start. The message is SageMaker's own."""


class Instance:
    """Starts a machine at once; :meth:`wait_until_healthy` waits for it. Its folder is removed with it."""

    def __init__(
        self, plan: EndpointPlan, launcher: Launcher, archives: ArchiveStore, logs: Any, parent: Path
    ) -> None:
        self.id = f"i-{uuid.uuid4().hex[:17]}"
        self.plan, self.folder = plan, parent / self.id
        self.active_requests, self._failed_pings, self._lock = 0, 0, threading.Lock()
        self.folder.mkdir(parents=True)
        try:
            has_one_model = plan.model_data_url and not plan.multi_model
            model = archives.unpack_current(plan.model_data_url) if has_one_model else None
        except ArchiveUnavailable as error:
            shutil.rmtree(self.folder)
            raise StartFailed(str(error)) from None
        self.machine: Machine = launcher.launch(plan, model, self.folder)
        self.log_stream = LogStream(logs, plan.endpoint_name, f"{plan.variant}/{self.id}")
        self.models = LoadedModels(self.machine, archives, plan.model_data_url)

    def wait_until_healthy(self, is_cancelled: Callable[[], bool]) -> None:
        """Wait for the first successful ping.

        Raises:
            StartFailed: The startup timeout is over, the container has ended, or ``is_cancelled`` returns true.
        """
        deadline = time.monotonic() + self.plan.startup_timeout_s
        while not passes_ping(self.machine):
            if time.monotonic() > deadline or is_cancelled() or not self.machine.alive():
                raise StartFailed(
                    f"The primary container for production variant {self.plan.variant} did not pass the ping "
                    "health check. Please check CloudWatch logs for this endpoint."
                )
            time.sleep(0.1)

    def check_health(self) -> bool:
        """Ping once. Return false if the container has ended or too many pings in a row have failed."""
        self.log_stream.send_new_lines(self.machine.log())
        self._failed_pings = 0 if passes_ping(self.machine) else self._failed_pings + 1
        return self.machine.alive() and self._failed_pings < MAX_FAILED_PINGS

    @contextmanager
    def counted_request(self) -> Iterator[None]:
        """Count a request as active until the block ends."""
        with self._lock:
            self.active_requests += 1
        try:
            yield
        finally:
            with self._lock:
                self.active_requests -= 1

    def invoke(
        self, body: bytes, headers: Mapping[str, str], target: str, timeout_s: float = INVOCATION_TIMEOUT_S
    ) -> requests.Response:
        """Send a request to the container, and return its response with the body unread.

        Args:
            body: The body.
            headers: The headers for the container.
            target: The model of a multi-model endpoint; else empty.
            timeout_s: The longest silence before and within the response.

        Raises:
            NotConnected: The request was not sent.
            InvocationFailed: The response broke off or took too long.
        """
        try:
            return self._send(body, headers, target, (CONNECT_TIMEOUT_S, timeout_s))
        except requests.ConnectTimeout:
            raise NotConnected from None
        except requests.ReadTimeout:
            raise model_error(
                0,
                "Your invocation timed out while waiting for a response from container primary.",
                self.log_stream.arn,
            ) from None
        except requests.ConnectionError as error:
            if "refused" in str(error):
                raise NotConnected from None
            raise model_error(0, "The connection to container primary broke.", self.log_stream.arn) from None

    def _send(
        self, body: bytes, headers: Mapping[str, str], target: str, timeouts: tuple[float, float]
    ) -> requests.Response:
        def send(path: str) -> requests.Response:
            url = f"{self.machine.url}{path}"
            return requests.post(url, data=body, headers=dict(headers), timeout=timeouts, stream=True)

        return self.models.invoke(target, send) if target else send("/invocations")

    def stop(self) -> None:
        """Stop the machine once its requests are answered or have timed out."""
        deadline = time.monotonic() + INVOCATION_TIMEOUT_S
        while self.active_requests and self.machine.alive() and time.monotonic() < deadline:
            time.sleep(0.05)
        self.machine.stop()
        self.log_stream.send_new_lines(self.read_log())
        shutil.rmtree(self.folder, ignore_errors=True)

    def read_log(self) -> str:
        try:
            return self.machine.log()
        except (OSError, AssertionError):
            return ""
