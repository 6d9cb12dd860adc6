"""Send a container's log lines to CloudWatch, as SageMaker does."""

from __future__ import annotations

import time
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError


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
