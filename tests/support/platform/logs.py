"""The container's lines in CloudWatch, where the platform puts them."""

from __future__ import annotations

import time
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError


class LogStream:
    """One instance's stream in the endpoint's group; ``logs`` is boto3's client."""

    def __init__(self, logs: Any, endpoint: str, name: str) -> None:
        self._logs, self._name = logs, name
        self._group = f"/aws/sagemaker/Endpoints/{endpoint}"
        self._sent = 0
        self._made = False
        region = logs.meta.region_name
        self.arn = f"arn:aws:logs:{region}:123456789012:log-group:{self._group}:log-stream:{name}"

    def ship(self, log: str) -> None:
        """Send the whole lines of ``log`` that were not sent yet.

        Lines that CloudWatch does not take are kept for the next call: a group that was deleted, or an account
        that is gone, is no fault of the instance.
        """
        lines = log.split("\n")[self._sent : -1]
        if not lines:
            return
        try:
            self._make()
            self._put([line for line in lines if line.strip()])
        except (ClientError, BotoCoreError):
            return
        self._sent += len(lines)

    def _put(self, lines: list[str]) -> None:
        now = int(time.time() * 1000)
        events = [{"timestamp": now, "message": line} for line in lines]
        if events:
            self._logs.put_log_events(logGroupName=self._group, logStreamName=self._name, logEvents=events)

    def _make(self) -> None:
        if self._made:
            return
        # Another instance's stream may have made the group.
        for make, names in (
            (self._logs.create_log_group, {"logGroupName": self._group}),
            (self._logs.create_log_stream, {"logGroupName": self._group, "logStreamName": self._name}),
        ):
            try:
                make(**names)
            except self._logs.exceptions.ResourceAlreadyExistsException:
                continue
        self._made = True
