"""boto3 connections that a :class:`~sm.router.s3.transfers.Transfer` can shut down.

Import it only where S3 is on: it loads botocore.
"""

from __future__ import annotations

import socket
from typing import Any

from botocore.awsrequest import (
    AWSHTTPConnection,
    AWSHTTPConnectionPool,
    AWSHTTPSConnection,
    AWSHTTPSConnectionPool,
)

from sm.router.s3 import transfers


class WatchedConnection:
    """Reports each socket that it opens, and each request on an open one, to the running transfer."""

    sock: socket.socket | None
    transfer: object = None

    def _new_conn(self) -> socket.socket:
        new: socket.socket = super()._new_conn()  # type: ignore[misc]
        try:
            self._report(new)
        except BaseException:
            new.close()
            raise
        return new

    def request(self, *args: Any, **options: Any) -> Any:
        if self.sock is not None:
            self._report(self.sock)
        return super().request(*args, **options)  # type: ignore[misc]

    def _report(self, connected: socket.socket) -> None:
        transfer = transfers.current()
        if transfer is not None:
            transfer.watch(self, connected)


class WatchedHTTPConnection(WatchedConnection, AWSHTTPConnection):  # type: ignore[misc]
    pass


class WatchedHTTPSConnection(WatchedConnection, AWSHTTPSConnection):  # type: ignore[misc]
    pass


class WatchedHTTPConnectionPool(AWSHTTPConnectionPool):  # type: ignore[misc]
    ConnectionCls = WatchedHTTPConnection


class WatchedHTTPSConnectionPool(AWSHTTPSConnectionPool):  # type: ignore[misc]
    ConnectionCls = WatchedHTTPSConnection


def watch_connections(client: Any) -> None:
    """Make the boto3 ``client`` use these connections. Botocore has no public way to do so."""
    pools = client._endpoint.http_session._pool_classes_by_scheme
    pools.update(http=WatchedHTTPConnectionPool, https=WatchedHTTPSConnectionPool)
