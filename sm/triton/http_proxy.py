"""Pass requests on to Triton's HTTP port unchanged, and pass its replies back.

h11 implements the protocol. The sockets are handled here, so that a wait for Triton ends at the invocation's
deadline or when the caller disconnects. Closing a connection makes Triton cancel its stream.
"""

from __future__ import annotations

import contextlib
import re
import select
import socket
import time
import zlib
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import h11
import numpy as np
import orjson

from sm.client.decode_budget import DECODED, bytes_of_json
from sm.errors import (
    BadInput,
    CallerGone,
    DeadlinePassed,
    HeadersTooLong,
    Interrupted,
    NotReady,
    Refused,
    StreamStalled,
    UnknownModel,
    UnsupportedType,
    body_too_large,
)
from sm.http.messages import count_opening, load_json, not_json, outside_texts
from sm.invocation import Invocation, Ticket, Value, span, wait
from sm.triton.calls import Calls
from sm.triton.model_paths import model_asked
from sm.triton.read_ahead import read_ahead
from sm.triton.sequence_ids import check_sequence_id
from sm.triton.server import LOOPBACK
from sm.triton.triton_errors import MODEL_ANSWERED, UNREACHABLE, Failed, translate_http_status
from sm.triton.v2_body import MAX_DIMENSIONS, MAX_TENSORS, asked_classes, check_outputs, check_tensors

#: Bytes of one read.
READ_BYTES = 2**18
#: Statuses without a body. Bytes that follow such a reply would be read as the reply to the next request.
NO_BODY = {204, 304}
#: Headers of one connection (RFC 9110, section 7.6.1).
HOP_BY_HOP = {
    "connection",
    "content-length",
    "expect",
    "host",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
}
STREAM = "text/event-stream"
VERSION_PATH = re.compile(r"/v2/models/[^/?]+/versions/([^/?]+)")
#: Beginnings of an error's body, and of an event with an error.
ERRORS = (b'{"error":', b'data: {"error":')
#: Headers of a caller's trace.
TRACE_HEADERS = frozenset({"traceparent", "tracestate"})
#: The default limit in bytes.
MAX_BODY_BYTES = 25 * 2**20
#: Triton's HTTP server has room for 8,192 in a header's name or value. gunicorn takes no URL that long.
MAX_FIELD_CHARACTERS = 8000

#: Triton's header: bytes of JSON before the tensors; 0 without it.
HEADER_SIZE = "inference-header-content-length"
#: The Content-Encodings that Triton decompresses.
COMPRESSIONS = ("gzip", "deflate")
#: Levels of JSON. They are counted, as the limits of parsers differ between releases of Python.
MAX_DEPTH = 1000
#: The step of the level at each bracket, as a signed byte, and how many bytes are counted at once.
STEPS, DEPTH_CHUNK = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff"), 2**16
#: ``"shape": [...]``, whose list has numbers only: no two matches begin in the same bytes, so that the search
#: takes linear time. JSON allows to write each letter as an escape.
SHAPE = re.compile(
    rb'"(?:s|\\u0073)(?:h|\\u0068)(?:a|\\u0061)(?:p|\\u0070)(?:e|\\u0065)"\s*:\s*\[([-+.\w\s,]*)\]',
)
#: A dimension, one of nothing, and the digits of the largest that Triton reads.
DIMENSION, NOTHING, MAX_DIGITS = re.compile(rb"\s*([0-9]+)\s*"), re.compile(rb"(?:^|,)\s*0\s*(?:,|$)"), 20
#: A number of bytes in a header.
BYTE_COUNT = re.compile(r"[0-9]{1,18}")


@dataclass(frozen=True)
class ProxyRequest:
    """A request for Triton. ``target`` is path and query, percent-encoded as the caller sent them."""

    method: str
    target: str
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    #: The outputs of which it must ask for all or none; empty if it may choose.
    outputs: frozenset[str] = frozenset()


@dataclass(frozen=True)
class ProxyReply:
    """Triton's reply. Header names are in lower case; the body of a stream is an iterator."""

    status: int
    headers: Mapping[str, str]
    body: bytes | Iterator[bytes]
    #: The caller's error, if the reply is one.
    failure: Failed | None = None
    #: A refusal of Triton's own has a length. What a model answers to ``generate`` comes in chunks, and a
    #: failure has 400 then, whatever code the model gave it.
    in_chunks: bool = False


class Upstream:
    """Triton's HTTP port on loopback, for the threads of one process.

    Args:
        port: Triton's.
        timeout: Seconds for a request without a deadline.
        calls: Those of the process.
        max_body: Bytes of a body after decompression.
    """

    def __init__(self, port: int, timeout: float, calls: Calls, max_body: int = MAX_BODY_BYTES) -> None:
        self._port, self._timeout, self._max_body = port, timeout, max_body
        self._guard, self._calls = calls.guard, calls
        self._idle: deque[HttpConnection] = deque()

    def send(self, request: ProxyRequest, invocation: Invocation | None = None) -> ProxyReply:
        """Send a request; return Triton's reply, whatever its status.

        Raises:
            NotReady: Triton does not answer, or its reply may be another request's.
            DeadlinePassed, CallerGone: The invocation ended.
            BadInput: The body is beyond the bounds.
        """
        model = model_asked(request.target)
        attributes: dict[str, Value] = {
            "http.request.method": request.method,
            "server.address": LOOPBACK,
            "server.port": self._port,
            # Without the query, which may have a key.
            "url.full": f"http://{LOOPBACK}:{self._port}{request.target.partition('?')[0]}",
        }
        if model:
            attributes["trireme.model"] = model
        with span(request.method, attributes, is_call=True) as call:
            # With the caller's own trace headers Triton would trace a request that the router does not.
            given = request.headers.items()
            headers = {name: value for name, value in given if name not in TRACE_HEADERS}
            request = replace(request, headers={**headers, **call.headers})
            invocation = invocation or Invocation(time.monotonic() + self._timeout)
            invocation.check()
            check_headers(request.headers)
            is_call = request.method == "POST" and bool(model)
            types = self._calls.sequence_id_types(model) if is_call else frozenset()
            has_tensors = request.target.partition("?")[0].endswith("/infer")
            asked = check_json(
                request.body, request.headers, self._max_body, has_tensors, types, request.outputs
            )
            others = self._other_outputs(request, model, invocation) if asked else ()
            if wrong := [name for name in others if name in asked]:
                raise BadInput(f"outputs: {wrong[0]} has no numbers, and so no classes", field="outputs")
            send = partial(self._send, request, model, invocation)
            reply = self._calls.run(model, send, invocation) if is_call else send(self._guard.admit(model))
            call.describe({"http.response.status_code": reply.status})
            if reply.status >= 400:
                call.fail(str(reply.status))
            return reply

    def _other_outputs(self, request: ProxyRequest, model: str, invocation: Invocation) -> list[str]:
        """Return the outputs of the model that a request infers which have no numbers."""
        target = request.target.partition("?")[0].removesuffix("/infer")
        send = partial(self._send, ProxyRequest("GET", target), model, invocation)
        reply = self._calls.run(model, send, invocation)
        assert isinstance(reply.body, bytes)
        # Of an unknown model Triton says so in its answer to the request.
        outputs = orjson.loads(reply.body)["outputs"] if reply.status == 200 else ()
        return [output["name"] for output in outputs if output["datatype"] in ("BYTES", "BOOL")]

    def _send(self, request: ProxyRequest, model: str, invocation: Invocation, ticket: Ticket) -> ProxyReply:
        began = time.monotonic()
        connection = self._connection()
        connection.check = partial(self._calls.check, ticket, invocation)
        try:
            with _errors_for_caller(Interrupted):
                reply = connection.exchange(request, invocation)
                if reply.status == 200 and reply.headers.get("content-type", "").startswith(STREAM):
                    # Triton ends no stream whose model's process is gone.
                    check = partial(self._guard.confirm_delivery, (ticket,))
                    parts = connection.stream_body(invocation, check)
                    return replace(reply, body=self._confirm_parts(parts, model, ticket, began, invocation))
                body = b"".join(connection.body_chunks(invocation))
                complete = replace(reply, body=body)
        except BaseException as error:
            connection.close()
            gave_up = isinstance(error, DeadlinePassed | CallerGone)
            self._guard.report_abandoned(ticket, model if gave_up else "", invocation)
            raise
        if connection.prepare_next():
            self._idle.append(connection)
        status = MODEL_ANSWERED if reply.in_chunks and reply.status == 400 else reply.status
        failure = _failure(status, body, model, began)
        self._confirm(failure, ticket, invocation)
        if failure is None:
            return complete
        version = VERSION_PATH.match(request.target)
        comes_again = failure.kind is UnknownModel and self._calls.comes_again(
            model, version[1] if version else ""
        )
        if failure.kind is Refused or comes_again:
            raise Refused(failure.sentence)
        return replace(complete, failure=failure)

    def _confirm_parts(
        self,
        parts: Generator[bytes, None, None],
        model: str,
        ticket: Ticket,
        began: float,
        invocation: Invocation,
    ) -> Iterator[bytes]:
        """Yield a stream's parts. Raises :class:`NotReady` at one that may be another request's."""
        try:
            for piece in parts:
                invocation.check()
                self._confirm(_failure(200, piece, model, began), ticket, invocation)
                self._guard.note_part(model)
                yield piece
        except (GeneratorExit, DeadlinePassed, CallerGone, StreamStalled):
            self._guard.report_abandoned(ticket, model, invocation, streamed=True)
            raise
        finally:
            parts.close()

    def _confirm(self, failure: Failed | None, ticket: Ticket, invocation: Invocation) -> None:
        """Raise :class:`NotReady` if a reply may be the answer to another request."""
        if failure is not None and failure.stalled is not None:
            self._guard.report_stall(ticket, failure.stalled)
        self._guard.confirm(ticket, invocation=invocation)

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()

    def _connection(self) -> HttpConnection:
        """Take an idle connection, or open one."""
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open():
                return connection
            connection.close()
        with _errors_for_caller(NotReady):
            return HttpConnection(self._port)


class HttpConnection:
    """A connection that does one exchange at a time."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection((LOOPBACK, port), timeout=5)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)
        self._protocol = h11.Connection(h11.CLIENT)
        #: Called now and then during an exchange; if it raises, the exchange ends.
        self.check: Callable[[], None] = lambda: None
        #: Set to False by an answer whose end cannot be told from the bytes after it.
        self._reusable = True

    def is_open(self) -> bool:
        """True if the other side has not closed the connection; then an idle one has nothing to read."""
        return not self._poll.poll(0)

    def exchange(self, request: ProxyRequest, invocation: Invocation) -> ProxyReply:
        """Send ``request``; return the status and headers of the reply, whose body is still to be read."""
        headers = {**request.headers, "host": LOOPBACK, "content-length": str(len(request.body))}
        # WSGI keeps each byte of a header in one character.
        encoded = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
        head = h11.Request(method=request.method, target=request.target.encode("latin-1"), headers=encoded)
        for piece in (head, h11.Data(data=request.body), h11.EndOfMessage()):
            for data in self._protocol.send_with_data_passthrough(piece) or ():
                rest = memoryview(data)
                while rest:
                    rest = wait(partial(self._send_some, rest), invocation, self.check)
        event = self._next(invocation)
        while isinstance(event, h11.InformationalResponse):
            event = self._next(invocation)
        assert isinstance(event, h11.Response)
        self._reusable = request.method != "HEAD" and event.status_code not in NO_BODY
        fields = {name.decode("latin-1"): value.decode("latin-1") for name, value in event.headers}
        headers = {name: value for name, value in fields.items() if name not in HOP_BY_HOP}
        return ProxyReply(event.status_code, headers, b"", in_chunks="transfer-encoding" in fields)

    def body_chunks(self, invocation: Invocation) -> Iterator[bytes]:
        """Yield the body in chunks as they arrive."""
        while isinstance(event := self._next(invocation), h11.Data):
            yield bytes(event.data)

    def stream_body(self, invocation: Invocation, check: Callable[[], None]) -> Generator[bytes, None, None]:
        """Yield the body in chunks, and close the connection at the end. ``check`` may end a wait."""
        with contextlib.closing(self), _errors_for_caller(Interrupted):
            yield from read_ahead(self.body_chunks(invocation), len, self.interrupt, invocation, check)

    def interrupt(self) -> None:
        """End an exchange from another thread."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def prepare_next(self) -> bool:
        """Prepare for the next exchange. If bytes of this one may be left, close instead and return False.

        For example, Triton's 405 for HEAD has a body.
        """
        finished = (self._protocol.our_state, self._protocol.their_state) == (h11.DONE, h11.DONE)
        if not finished or not self._reusable or self._protocol.trailing_data != (b"", False):
            self.close()
            return False
        self._protocol.start_next_cycle()
        return True

    def close(self) -> None:
        self._socket.close()

    def _send_some(self, data: memoryview, seconds: float) -> memoryview | None:
        self._socket.settimeout(max(0.001, seconds))
        with contextlib.suppress(TimeoutError):
            return data[self._socket.send(data) :]
        return None

    def _next(self, invocation: Invocation) -> h11.Event:
        event = self._protocol.next_event()
        while event is h11.NEED_DATA:
            wait(self._has_news, invocation, self.check)
            self._protocol.receive_data(self._socket.recv(READ_BYTES))
            event = self._protocol.next_event()
        if not isinstance(event, h11.Event) or isinstance(event, h11.ConnectionClosed):
            raise ConnectionResetError
        return event

    def _has_news(self, seconds: float) -> bool:
        return bool(self._poll.poll(seconds * 1000))


@contextlib.contextmanager
def _errors_for_caller(unreachable: type[NotReady]) -> Iterator[None]:
    """Translate a broken exchange into the caller's error; ``unreachable`` if Triton is not there."""
    try:
        yield
    except h11.LocalProtocolError as error:
        raise BadInput(f"a header cannot be passed on: {error}") from error
    except (OSError, h11.RemoteProtocolError) as error:
        raise unreachable(UNREACHABLE) from error


def check_headers(headers: Mapping[str, str]) -> None:
    """Refuse a header for which Triton 2.51 has no room and no answer either."""
    for name, value in headers.items():
        if max(len(name), len(value)) > MAX_FIELD_CHARACTERS:
            raise HeadersTooLong(f"Triton takes no header of more than {MAX_FIELD_CHARACTERS:,} characters")


def failure_text(status: int, body: bytes) -> str | None:
    """Return Triton's error message in a reply or an event; None if it is not an error.

    The generate extension sends some errors with status 200.
    """
    text = body.removeprefix(b"data: ")
    if status == 200 and not text.startswith(b'{"error":'):
        return None
    try:
        error = orjson.loads(text)
    except orjson.JSONDecodeError:
        return text.strip().decode(errors="replace") or f"Triton answers {status}"
    return str(error.get("error", "")) if isinstance(error, Mapping) else str(error)


def _failure(status: int, body: bytes, model: str, began: float) -> Failed | None:
    """Return what a reply means, or an event with status 200, if it is an error."""
    text = failure_text(status, body) if status >= 300 or body.startswith(ERRORS) else None
    # An event has no status of its own.
    return None if text is None else translate_http_status(status, text).of(model, time.monotonic() - began)


def end_to_end(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the headers to pass on: without those of the connection, and without the box's own."""
    return {
        name: value
        for name, value in headers.items()
        if name not in HOP_BY_HOP and not name.startswith("x-trireme-")
    }


def check_json(
    body: bytes,
    headers: Mapping[str, str],
    max_bytes: int,
    has_tensors: bool = False,
    types: frozenset[str] = frozenset(),
    outputs: frozenset[str] = frozenset(),
) -> list[object]:
    """Refuse a body that claims more than it has, is nested too deeply, or has values that Triton would cast.

    Triton reports other errors. Triton 2.51 ends at some bodies that these bounds keep away.

    Args:
        body: As the caller sent it, perhaps compressed.
        headers: Names in lower case.
        max_bytes: Of the body after decompression.
        has_tensors: True for a v2 inference request.
        types: The datatypes in which its models take a sequence's id.
        outputs: See :class:`ProxyRequest`.

    Returns:
        The names of the outputs of which it asks for classes.

    Raises:
        BadInput: The body is beyond a bound, or is not JSON, or its values do not fit their datatypes.
        TooLarge: It has more than ``max_bytes``.
        UnsupportedType: Triton cannot decompress it.
    """
    content = decompress(body, headers.get("content-encoding", ""), max_bytes)
    size = headers.get(HEADER_SIZE)
    if size is not None and not BYTE_COUNT.fullmatch(size):
        raise BadInput(f"{HEADER_SIZE} must be a number of bytes, not {size[:40]!r}")
    if size is not None and int(size) > len(content):
        raise BadInput(f"{HEADER_SIZE}: {size} is more than the body's {len(content)} bytes")
    text = content if size is None else content[: int(size)]
    check_depth(text)
    for number, match in enumerate(SHAPE.finditer(text)):
        if number >= MAX_TENSORS or match[1].count(b",") >= MAX_DIMENSIONS:
            raise BadInput(
                f"a request has at most {MAX_TENSORS} tensors of at most {MAX_DIMENSIONS} dimensions"
            )
        # An element takes at least a byte, in JSON and in binary.
        if has_more_elements(match[1], len(content)):
            raise BadInput(f"a tensor has more elements than the body of {len(content)} bytes can have")
    if (has_tensors or types) and text and not text.isspace():
        # The memory of a body as it came is reserved by now, that of an unpacked one is not.
        with DECODED.reserve(0 if content is body else bytes_of_json(text)):
            try:
                request = load_json(text)
            except orjson.JSONDecodeError as error:
                raise not_json(error) from None
            if has_tensors:
                check_tensors(request)
                check_outputs(request, outputs)
            if types:
                check_sequence_id(request, text, types)
            return asked_classes(request, text) if has_tensors else []
    return []


def decompress(body: bytes, encoding: str, max_bytes: int) -> bytes:
    """Decompress a body as Triton does."""
    coding = encoding.strip()
    if not body or coding in ("", "identity"):
        return body
    if coding not in COMPRESSIONS:
        raise UnsupportedType(
            f"a body with the Content-Encoding {coding[:40]!r} is not taken, only {' or '.join(COMPRESSIONS)}"
        )
    decompressor = zlib.decompressobj(zlib.MAX_WBITS | 32)
    try:
        content = decompressor.decompress(body, max_bytes + 1)
    except zlib.error as error:
        raise BadInput(f"the body is not {coding}: {error}") from None
    if len(content) > max_bytes:
        raise body_too_large(max_bytes, unpacked=True)
    if not decompressor.eof or decompressor.unused_data:
        raise BadInput(f"the body is not one whole {coding} stream")
    return content


def check_depth(text: bytes) -> None:
    """Raise :class:`BadInput` if JSON is nested too deeply. Most bodies have too few brackets for that."""
    if count_opening(text) <= MAX_DEPTH:
        return
    depth = 0
    steps = np.frombuffer(outside_texts(text, b"[]{}").translate(STEPS), np.int8)
    for place in range(0, len(steps), DEPTH_CHUNK):
        levels = depth + np.cumsum(steps[place : place + DEPTH_CHUNK], dtype=np.int64)
        if int(levels.max()) > MAX_DEPTH:
            raise BadInput(f"the body is more than {MAX_DEPTH} levels deep")
        depth = int(levels[-1])


def has_more_elements(dimensions: bytes, limit: int) -> bool:
    """True if a shape has more than ``limit`` elements; False if it is not a shape, which Triton refuses."""
    count = 1
    if NOTHING.search(dimensions):
        return False
    for dimension in dimensions.split(b","):
        match = DIMENSION.fullmatch(dimension)
        if match is None:
            return False
        if len(match[1]) > MAX_DIGITS or (count := count * int(match[1])) > limit:
            return True
    return False
