"""Payloads and results in S3, in the buckets that a setting names, within an invocation's time.

Calls run in threads of their own. boto3 limits the time between two bytes, not the time of a whole answer: an
S3 that sends a byte every few seconds would hold a thread for hours. So the waiting thread shuts the
connection down.
"""

from __future__ import annotations

import contextvars
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Executor, ThreadPoolExecutor, wait
from contextlib import closing, suppress
from contextvars import ContextVar
from functools import cache
from typing import Any, TypeVar

from sm import deadline
from sm.client.payloads import Payload
from sm.errors import Forbidden, NotReady, StorageFailed, TooLarge, TriremeError, WrongPayload
from sm.http.s3 import S3Uri, open_client, to_trireme_error
from sm.settings import Settings

#: The name of members that hold an address, or the end of their name.
URI = "s3_uri"
MAX_KEY_BYTES = 1024  # S3 has no longer keys


def is_within(uri: S3Uri, location: str) -> bool:
    """True if an address is in the location: ``bucket``, or ``bucket/prefix``, which is taken as a folder."""
    bucket, _, prefix = location.partition("/")
    folder = f"{prefix.rstrip('/')}/" if prefix else ""
    return uri.bucket == bucket and uri.key.startswith(folder)


def may_have_member(body: bytes, name: str) -> bool:
    """True if a JSON body may have a member whose name contains ``name``, without parsing the body.

    It is not part of the classification, because it decides whose threads the request uses before its body is
    parsed.
    """
    return name.encode() in body or (b"\\u00" in body and _escape_pattern(name).search(body) is not None)


@cache
def _escape_pattern(name: str) -> re.Pattern[bytes]:
    """Match a character of ``name`` as a JSON escape. Nobody escapes ASCII letters but to hide a name."""
    codes = "|".join(f"{ord(character):02x}" for character in name)
    return re.compile(rf"(?i)\\u00(?:{codes})".encode())


def parse_uri(value: object, allowed: Sequence[str], path: str) -> S3Uri:
    """Parse an address.

    Args:
        value: From the caller.
        allowed: Buckets, or ``bucket/prefix``.
        path: The address's place in the request, for errors.

    Raises:
        WrongPayload: It is not an address.
        Forbidden: It is in none of the allowed locations.
    """
    try:
        uri = S3Uri.parse(value if isinstance(value, str) else "")
    except ValueError:
        uri = S3Uri("", "")
    if not uri.key or len(uri.key.encode()) > MAX_KEY_BYTES:
        raise WrongPayload(f"{path}: is not an address such as s3://bucket/key", field=path)
    # S3 takes ".." as an ordinary name, but software on the way may resolve it as a folder.
    has_dots = any(part in (".", "..") for part in uri.key.split("/"))
    if has_dots or not any(is_within(uri, location) for location in allowed):
        raise Forbidden(f"{path}: {uri} is in none of the places that TRIREME_S3_BUCKETS names")
    return uri


#: Seconds between two checks whether the caller still waits.
POLL_INTERVAL_S = 0.2
T = TypeVar("T")
#: Protects the transfer of each connection.
_lock = threading.Lock()


class Transfer:
    """One call to S3 and the connections that it uses."""

    def __init__(self) -> None:
        self._is_aborted = False
        self._connections: list[tuple[Any, socket.socket]] = []

    def run(self, call: Callable[[], T]) -> T:
        """Run ``call``. The connections that it uses report to this transfer."""
        token = _current.set(self)
        try:
            return call()
        finally:
            _current.reset(token)
            self._forget_connections()

    def watch(self, connection: Any, connected: socket.socket) -> None:
        """Add a connection that the transfer uses. Raises :class:`CancelledError` if it was aborted."""
        with _lock:
            if self._is_aborted:
                raise CancelledError
            connection.transfer = self
            # Duplicate the descriptor: the reading thread may close it, and its number may be used again.
            handle = socket.socket(fileno=os.dup(connected.fileno()))
            self._connections.append((connection, handle))

    def abort(self) -> None:
        """Shut its connections down, so that their readers return at once, and allow no new one."""
        with _lock:
            self._is_aborted = True
            for connection, handle in self._connections:
                # A pooled connection may serve another transfer by now.
                if connection.transfer is self:
                    with suppress(OSError):
                        handle.shutdown(socket.SHUT_RDWR)

    def _forget_connections(self) -> None:
        with _lock:
            for _, handle in self._connections:
                handle.close()
            self._connections = []


_current: ContextVar[Transfer | None] = ContextVar("transfer", default=None)


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
        transfer = _current.get()
        if transfer is not None:
            transfer.watch(self, connected)


def watch_connections(client: Any) -> None:
    """Make the boto3 ``client`` use watched connections, once. Botocore has no public way to do so."""
    pools = client._endpoint.http_session._pool_classes_by_scheme
    for scheme, pool in list(pools.items()):
        if not issubclass(pool.ConnectionCls, WatchedConnection):
            connection = type("Watched", (WatchedConnection, pool.ConnectionCls), {})
            pools[scheme] = type("WatchedPool", (pool,), {"ConnectionCls": connection})


class Transfers:
    """Runs calls on ``executor``, each for at most ``timeout_s`` and never longer than its invocation.

    ``executor`` must not be the one that records run on.
    """

    def __init__(self, executor: Executor, timeout_s: float) -> None:
        self._executor, self._timeout_s = executor, timeout_s

    def run(self, call: Callable[[], T]) -> T:
        """Run ``call`` in another thread and wait for it.

        Raises:
            DeadlinePassed: The invocation's time is over.
            CallerGone: The caller disconnected.
            NotReady: S3 takes longer than ``timeout_s``.
        """
        limit, ends_at = deadline.current(), time.monotonic() + self._timeout_s
        transfer = Transfer()
        running = self._executor.submit(contextvars.copy_context().run, transfer.run, call)
        try:
            while True:
                seconds = min(POLL_INTERVAL_S, ends_at - time.monotonic())
                if limit is not None:
                    seconds = min(seconds, limit.remaining())
                if wait([running], max(0.0, seconds)).done:
                    return running.result()
                if limit is not None:
                    limit.check()
                if time.monotonic() >= ends_at:
                    raise NotReady(f"S3 has taken longer than {self._timeout_s:g} s for one object")
        finally:
            if not running.done():
                transfer.abort()
                running.cancel()


#: Bytes of one read.
READ_BYTES = 2**18


class Store:
    """Reads and writes the allowed objects in S3.

    Args:
        allowed: Buckets, or ``bucket/prefix``.
        max_bytes: Of an object that is read.
        executor: Runs the calls. It must not be the executor of the records.
        client: Of boto3.
        timeout_s: For one call.
    """

    def __init__(
        self,
        allowed: Sequence[str],
        max_bytes: int,
        executor: Executor,
        client: Any,
        timeout_s: float = Settings.s3_timeout,
    ) -> None:
        watch_connections(client)
        self._allowed, self._max_bytes = allowed, max_bytes
        self._transfers, self._client = Transfers(executor, timeout_s), client

    def parse_address(self, value: object, path: str) -> S3Uri:
        """Parse an address of the request and check that it is allowed."""
        return parse_uri(value, self._allowed, path)

    def read_object(self, value: object, path: str) -> bytes:
        """Read the object at an address of the request, if it is allowed."""
        return self.read(self.parse_address(value, path))

    def read(self, address: S3Uri) -> bytes:
        """Read an object.

        Raises:
            NotFound: It does not exist.
            Forbidden: The box's role may not read it.
            TooLarge: It is larger than ``max_bytes``.
            NotReady: S3 does not answer in time.
        """
        return self._run(lambda: self._read(address), address)

    def write(self, address: S3Uri, body: bytes, content_type: str) -> None:
        """Write an object, replacing any that exists. Raises the same errors."""
        request = {"Bucket": address.bucket, "Key": address.key, "Body": body, "ContentType": content_type}
        self._run(lambda: self._client.put_object(**request), address)

    def _read(self, address: S3Uri) -> bytes:
        answer = self._client.get_object(Bucket=address.bucket, Key=address.key)
        with closing(answer["Body"]) as body:
            size = answer.get("ContentLength")
            if size is None:
                raise StorageFailed(f"S3 does not say how long {address} is")
            if size > self._max_bytes:
                raise TooLarge(f"{address} has {size:,} bytes, this box takes {self._max_bytes:,}")
            return b"".join(body.iter_chunks(READ_BYTES))

    def _run(self, call: Callable[[], T], address: S3Uri) -> T:
        try:
            return self._transfers.run(call)
        except TriremeError:
            raise
        except Exception as error:
            raise to_trireme_error(error, address) from None


def open_store(settings: Settings) -> Store | None:
    """Open the store; None if the settings name no bucket. Then boto3 is not imported.

    Raises:
        StartError: boto3 is not installed.
    """
    if not settings.s3_buckets:
        return None
    executor = ThreadPoolExecutor(settings.s3_threads, "s3")
    client = open_client("TRIREME_S3_BUCKETS", settings.s3_threads)
    return Store(settings.s3_buckets, settings.max_body, executor, client, settings.s3_timeout)


S3_OFF = "this box reads and writes no S3: TRIREME_S3_BUCKETS names no bucket"


def inline_objects(
    kind: type[Payload], record: Any, path: str, read_object: Callable[[object, str], bytes] | None
) -> Any:
    """Replace an address in ``record``'s main field by the object's data; other records are unchanged.

    The record may also be ``{"s3_uri": …}`` alone, as it may be a string of base64 alone.

    Args:
        kind: The client's payload.
        record: From the caller.
        path: The record's place in the request, for errors.
        read_object: Reads the object at an address; None if S3 is off.

    Raises:
        Forbidden: S3 is off, or the address is not allowed.
        WrongPayload: The address is invalid.
    """
    field = kind.main_field
    if field is None or not isinstance(record, dict):
        return record
    if record.keys() == {URI} and URI not in kind.model_fields:
        record = {field: record}
    name = next((name for name in kind.names_of(field) if _is_address(record.get(name))), None)
    if name is None:
        return record
    if read_object is None:
        raise Forbidden(f"{path}.{name}: {S3_OFF}")
    fields = kind.fields_of_raw(read_object(record[name][URI], f"{path}.{name}.{URI}"))
    # Keep the caller's key, so that a caller who sent the field under two names gets the error.
    return {**record, **{name if key == field else key: value for key, value in fields.items()}}


def _is_address(value: object) -> bool:
    return isinstance(value, dict) and value.keys() == {URI}
