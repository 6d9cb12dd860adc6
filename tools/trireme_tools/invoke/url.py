"""Invoke a URL: the local box, or another one."""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from sm.errors import CommandError
from trireme_tools.invoke.messages import EVENT_STREAM, InvokeReply, InvokeRequest, NoReply, to_error

#: Seconds to connect, and of silence on the connection: a stream has 8 minutes.
CONNECT_TIMEOUT_S, READ_TIMEOUT_S = 10.0, 490.0
CHUNK = 1 << 16


class Url:
    """A box at ``url``. Each thread keeps its own connection until :meth:`close`."""

    def __init__(self, url: str, api_key: str = "") -> None:
        parts = urlsplit(url)
        try:
            port = parts.port
        except ValueError:
            port = 0
        if not parts.hostname or port == 0:
            raise CommandError(f"{url} is not an address of a box: it looks like http://localhost:8080.")
        self.url, self._host, self._port = url, parts.hostname, port
        self._kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._path = (parts.path.rstrip("/") or "/invocations") + (f"?{parts.query}" if parts.query else "")
        self._api_key = api_key
        self._local = threading.local()
        self._connections: list[http.client.HTTPConnection] = []

    def close(self) -> None:
        for connection in self._connections:
            connection.close()

    def ask(self, request: InvokeRequest) -> InvokeReply:
        """Return the answer, whatever its status. :class:`NoReply` if there is none."""
        began = time.perf_counter()
        with self._send(request, request.accept) as answer:
            body = answer.read()
            return InvokeReply(answer.status, content_type(answer), body, time.perf_counter() - began)

    def stream(self, request: InvokeRequest) -> Iterator[bytes]:
        """Yield the answer's bytes as they arrive. Raises an error that comes before them."""
        with self._send(request, EVENT_STREAM) as answer:
            if answer.status >= 400:
                raise to_error(InvokeReply(answer.status, content_type(answer), answer.read()))
            while chunk := answer.read1(CHUNK):
                yield chunk

    @contextmanager
    def _send(self, request: InvokeRequest, accept: str) -> Iterator[http.client.HTTPResponse]:
        connection = self._connection()
        try:
            connection.request("POST", self._path, request.body, headers(request, accept, self._api_key))
            with connection.getresponse() as answer:
                yield answer
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            reason = str(error) or type(error).__name__
            raise NoReply(f"the connection to {self.url} broke: {reason}.", type(error).__name__) from None

    def _connection(self) -> http.client.HTTPConnection:
        connection: http.client.HTTPConnection | None = getattr(self._local, "connection", None)
        if connection is None:
            connection = self._local.connection = self._kind(
                self._host, self._port, timeout=CONNECT_TIMEOUT_S
            )
            self._connections.append(connection)
        if connection.sock is None:
            self._connect(connection)
        return connection

    def _connect(self, connection: http.client.HTTPConnection) -> None:
        try:
            connection.connect()
        except OSError as error:
            raise NoReply(
                f"nobody answers at {self.url}: {error}. Start a box with: make serve", type(error).__name__
            ) from None
        connection.sock.settimeout(READ_TIMEOUT_S)


def headers(request: InvokeRequest, accept: str, api_key: str) -> dict[str, str]:
    """Return the headers that an endpoint passes to its container, and the API key."""
    all_headers = {
        "Content-Type": request.content_type,
        "Accept": accept,
        "X-Amzn-SageMaker-Custom-Attributes": request.attributes,
        "X-Amzn-SageMaker-Target-Model": request.target_model,
        "X-Amzn-SageMaker-Inference-Component": request.component,
        "X-Api-Key": api_key,
    }
    return {name: value for name, value in all_headers.items() if value}


def content_type(answer: http.client.HTTPResponse) -> str:
    return answer.headers.get_content_type()


def read_api_key(file: Path | None) -> str:
    """Read the one key in the file of ``--api-key``; empty without a file. Raises :class:`CommandError`."""
    if file is None:
        return ""
    try:
        words = file.read_text("utf-8-sig").split()
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"--api-key {file} cannot be read: {error}.") from None
    if len(words) != 1:
        raise CommandError(f"--api-key {file} does not have one key and nothing else.")
    return words[0]
