"""An AWS account in a Region: reads are always made, changes are made or, in a dry run, printed."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import boto3
from botocore.exceptions import BotoCoreError, ClientError

from sm.errors import CommandError
from trireme_tools import aws
from trireme_tools.progress import Progress

#: Error codes for something that does not exist, beside SageMaker's "Could not find".
ABSENT = {
    "404",
    "ImageNotFoundException",
    "NoSuchBucket",
    "NoSuchEntity",
    "NoSuchKey",
    "ObjectNotFoundException",
    "RepositoryNotFoundException",
    "ResourceNotFound",
    "ResourceNotFoundException",
}
#: True for an error that is not a failure.
Ignored = Callable[[ClientError], bool]


class Account:
    """Calls AWS; each error becomes a :class:`CommandError` that says which action failed.

    ``dry``: changes are not made but printed as ``aws`` commands on ``results``.
    """

    def __init__(
        self, session: boto3.Session, progress: Progress, results: Progress, dry: bool = False
    ) -> None:
        self.region: str = session.region_name
        self.domain = "amazonaws.com.cn" if self.region.startswith("cn-") else "amazonaws.com"
        self.progress, self.results, self.dry = progress, results, dry
        self.session = session
        self._clients: dict[str, Any] = {}

    @cached_property
    def number(self) -> str:
        """The account's twelve digits."""
        return str(self.call("sts", "get_caller_identity", "ask whose credentials these are")["Account"])

    def client(self, service: str) -> Any:
        if service not in self._clients:
            self._clients[service] = self.session.client(service)
        return self._clients[service]

    @contextmanager
    def optional(self, also_unavailable: bool = False) -> Iterator[None]:
        """Say what the credentials may not do, and go on: it is not needed.

        ``also_unavailable``: go on without an answer too, of a service that nothing else here asks.
        """
        try:
            yield
        except CommandError as error:
            if isinstance(error, aws.ServiceUnavailable) and not also_unavailable:
                raise
            self.progress.say(f"not checked: {error}")

    def describe(self, service: str, operation: str, doing: str, **arguments: Any) -> dict[str, Any] | None:
        """Describe a resource; None if it does not exist."""
        return self._call(service, operation, doing, _is_absent, arguments)

    def paginate(self, service: str, operation: str, key: str, doing: str, **arguments: Any) -> Iterator[Any]:
        """Yield the members of ``key`` on all pages."""
        try:
            for page in self.client(service).get_paginator(operation).paginate(**arguments):
                yield from page.get(key, ())
        except (ClientError, BotoCoreError) as error:
            if not isinstance(error, ClientError) or not _is_absent(error):
                raise aws.explain(error, doing) from None

    def create(self, service: str, operation: str, doing: str, **arguments: Any) -> dict[str, Any]:
        """Create a resource. It is not an error if another run has created it meanwhile."""
        return self._change(service, operation, doing, _is_there_already, arguments)

    def remove(self, service: str, operation: str, doing: str, **arguments: Any) -> None:
        """Delete a resource that may be gone already."""
        self._change(service, operation, doing, _is_absent, arguments)

    def call(self, service: str, operation: str, doing: str, **arguments: Any) -> dict[str, Any]:
        """Make one call."""
        return self._call(service, operation, doing, lambda _error: False, arguments) or {}

    def show(self, *words: str) -> None:
        """Print a command that a dry run does not execute."""
        self.results.say(f"aws {shlex.join(words)} --region {self.region}")

    def _change(
        self, service: str, operation: str, doing: str, is_done: Ignored, arguments: dict[str, Any]
    ) -> dict[str, Any]:
        if self.dry:
            command = "s3api" if service == "s3" else service
            self.show(command, operation.replace("_", "-"), "--cli-input-json", json.dumps(arguments))
            return {}
        return self._call(service, operation, doing, is_done, arguments) or {}

    def _call(
        self, service: str, operation: str, doing: str, ignored: Ignored, arguments: dict[str, Any]
    ) -> dict[str, Any] | None:
        """Make one call; None for an error that is ``ignored``."""
        try:
            return dict(getattr(self.client(service), operation)(**arguments) or {})
        except (ClientError, BotoCoreError) as error:
            if isinstance(error, ClientError) and ignored(error):
                return None
            raise aws.explain(error, doing) from None


def _is_absent(error: ClientError) -> bool:
    return aws.code(error) in ABSENT or "could not find" in aws.message(error).lower()


def _is_there_already(error: ClientError) -> bool:
    return aws.code(error) == "BucketAlreadyOwnedByYou" or "already exist" in aws.message(error).lower()
