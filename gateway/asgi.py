"""The Chalice app as an ASGI application: the key, then the size, then a timed body, then a thread.

This takes the place of API Gateway: a request becomes the event that Lambda would get. ASGI and not WSGI,
because with WSGI a request has a thread before its body has arrived, so callers who send slowly would hold
all threads.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
import sys
import time
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

# Chalice's layout: modules are imported from the project's folder.
sys.path.insert(0, str(Path(__file__).parent))

from app import app as chalice_app
from app import front
from chalicelib.failures import SlowBody
from chalicelib.front import DEADLINE_MARGIN_S, failure
from chalicelib.keys import Keys, presented_key
from chalicelib.options import Options
from chalicelib.storage import may_name_object

from sm.errors import CallerGone, NotFound, Overloaded, TooLarge, TriremeError

log = logging.getLogger(__name__)

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Answer = dict[str, Any]

#: The routes that read a body.
INFER, INFER_DEFAULT = "/infer/{model}", "/infer"
#: The one route without a key. It asks every Triton, so callers share an answer for a second.
HEALTH_ROUTE = "/health"
HEALTH_MAX_AGE_S = 1.0
#: Seconds for which a body may be slower than the minimum rate: connections begin slowly.
RATE_GRACE_S = 5.0
#: Seconds for which the body of a refused request is read and discarded. If the connection closed while the
#: caller still sends, it would be reset, and the caller might never see the response.
DISCARD_TIMEOUT_S = 2.0
#: The first bytes of each body do not count against the budget, so that large bodies do not block small ones.
UNCOUNTED_BYTES = 2**16


class Context:
    """The part of Lambda's context that the gateway uses."""

    def __init__(self, timeout: float) -> None:
        self.aws_request_id = uuid.uuid4().hex
        self.is_caller_gone = False
        self._ends_at = time.monotonic() + timeout + DEADLINE_MARGIN_S

    def restart_clock(self, timeout: float) -> None:
        """Start the time anew: receiving the body does not count against it."""
        self._ends_at = time.monotonic() + timeout + DEADLINE_MARGIN_S

    def get_remaining_time_in_millis(self) -> int:
        return int((self._ends_at - time.monotonic()) * 1000)


class ByteBudget:
    """Counts the bytes of all bodies in memory, from the first byte until the answer. For one event loop."""

    def __init__(self, limit: int) -> None:
        self._limit, self._used = limit, 0

    def take(self, count: int) -> None:
        """Reserve bytes. Raises :class:`Overloaded` if the budget is used up."""
        if self._used + count > self._limit:
            raise Overloaded("the gateway has no memory left for this body; retry later")
        self._used += count

    def give_back(self, count: int) -> None:
        self._used -= count


class Pool:
    """A thread pool with a bounded queue."""

    def __init__(self, name: str, options: Options) -> None:
        self._threads = ThreadPoolExecutor(options.threads, name)
        self._unanswered, self._limit = 0, options.threads + options.queue

    async def run(self, call: Callable[[], Answer]) -> Answer:
        """Run ``call`` in a thread. Raises :class:`Overloaded` if the queue is full."""
        if self._unanswered >= self._limit:
            raise Overloaded("the gateway is at its limit of concurrent requests")
        self._unanswered += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, call)
        finally:
            self._unanswered -= 1


class Application:
    """The ASGI application: receives requests on the event loop and handles them in threads."""

    def __init__(self, options: Options) -> None:
        self._options = options
        if not options.bucket:
            # Payloads come in the body, as JSON or as they are.
            for route in (INFER, INFER_DEFAULT):
                chalice_app.routes[route]["POST"].content_types = ["*/*"]
        self._keys = None if options.keys is None else Keys(options.keys)
        # A slow S3 holds no thread that other requests need.
        self._pool, self._s3_pool = Pool("request", options), Pool("s3_request", options)
        self._load_pool = Pool("load_request", options)
        self._health_pool = ThreadPoolExecutor(1, "health")
        self._health: tuple[float, asyncio.Task[Answer]] | None = None
        self._budget = ByteBudget(options.buffer)

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        context, body = Context(self._options.timeout), Body(headers, receive, self._options, self._budget)
        try:
            answer = await self._answer(scope, headers, body, context)
        except CallerGone:
            return
        except TriremeError as error:
            log.info(
                "request",
                extra={
                    "path": scope["path"][:200],
                    "status": error.status,
                    "request_id": context.aws_request_id,
                },
            )
            answer = failure(error, context.aws_request_id, self._options).to_dict()
        finally:
            body.release()
        await respond(answer, body, send)

    async def _answer(
        self, scope: Mapping[str, Any], headers: Mapping[str, str], body: Body, context: Context
    ) -> Answer:
        event = make_event(scope, headers)
        route = event["requestContext"]["resourcePath"]
        entry = chalice_app.routes[route].get(scope["method"])
        if entry is None:
            # Chalice itself answers 405 for the method.
            return call_chalice(event, context)
        if route == HEALTH_ROUTE:
            return await self._shared_health(event)
        if self._keys is not None:
            self._keys.owner(presented_key(event))
        if route in (INFER, INFER_DEFAULT):
            event["body"] = await body.read()
            context.restart_clock(self._options.timeout)
        pool = self._choose_pool(event)
        watch = asyncio.ensure_future(body.watch_caller(context))
        try:
            return await pool.run(lambda: call_chalice(event, context))
        finally:
            watch.cancel()

    def _choose_pool(self, event: Answer) -> Pool:
        """Choose a pool: requests that wait for S3, or for a model to load, have pools of their own."""
        route = event["requestContext"]["resourcePath"]
        if self._options.short_names and route.startswith(INFER_DEFAULT):
            if not front.is_prepared(event["pathParameters"].get("model", "")):
                return self._load_pool
            return self._s3_pool if route == INFER else self._pool
        return self._s3_pool if uses_s3(event) else self._pool

    async def _shared_health(self, event: Answer) -> Answer:
        now = time.monotonic()
        if self._health is None or (self._health[1].done() and now - self._health[0] > HEALTH_MAX_AGE_S):
            self._health = (now, asyncio.ensure_future(self._ask_health(event)))
        return await asyncio.shield(self._health[1])

    async def _ask_health(self, event: Answer) -> Answer:
        loop = asyncio.get_running_loop()
        context = Context(self._options.timeout)
        return await loop.run_in_executor(self._health_pool, call_chalice, event, context)


class Body:
    """The body of one request; not every request's body is read."""

    def __init__(
        self, headers: Mapping[str, str], receive: Receive, options: Options, budget: ByteBudget
    ) -> None:
        self._declared = int(headers.get("content-length") or 0)
        self.is_unread = self._declared > 0 or "transfer-encoding" in headers
        self._receive, self._options, self._budget = receive, options, budget
        self._reserved_bytes = 0

    async def read(self) -> bytes:
        """Receive the whole body.

        Raises:
            TooLarge: it is over the limit; if Content-Length says so, it is not read.
            SlowBody: it takes too long, or is below the minimum rate.
            Overloaded: the bodies of all requests together are over the budget.
            CallerGone: the connection is closed.
        """
        self._check_size(self._declared)
        started, received, more = time.monotonic(), bytearray(), self.is_unread
        while more:
            allowed = min(
                self._options.receive_timeout, RATE_GRACE_S + len(received) / self._options.min_rate
            )
            try:
                message = await asyncio.wait_for(self._receive(), started + allowed - time.monotonic())
            except asyncio.TimeoutError:
                raise SlowBody(
                    f"only {len(received):,} bytes of the body have come in {allowed:.0f} s"
                ) from None
            if message["type"] == "http.disconnect":
                raise CallerGone("the caller hung up")
            piece = message.get("body", b"")
            self._check_size(len(received) + len(piece))
            self._hold(len(received) + len(piece) - UNCOUNTED_BYTES)
            received += piece
            more = message.get("more_body", False)
        self.is_unread = False
        return bytes(received)

    def release(self) -> None:
        """Give its bytes back to the budget."""
        self._budget.give_back(self._reserved_bytes)
        self._reserved_bytes = 0

    async def discard(self, seconds: float) -> None:
        """Read and discard the rest for up to ``seconds``."""

        async def receive_all() -> None:
            message = await self._receive()
            while message["type"] == "http.request" and message.get("more_body", False):
                message = await self._receive()

        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(receive_all(), seconds)

    async def watch_caller(self, context: Context) -> None:
        """Note in ``context`` when the caller has disconnected."""
        if self.is_unread:
            return
        while not context.is_caller_gone:
            context.is_caller_gone = (await self._receive())["type"] == "http.disconnect"

    def _hold(self, count: int) -> None:
        if count > self._reserved_bytes:
            self._budget.take(count - self._reserved_bytes)
            self._reserved_bytes = count

    def _check_size(self, size: int) -> None:
        if size > self._options.max_body:
            raise TooLarge(f"the body is larger than {self._options.max_body:,} bytes")


def make_event(scope: Mapping[str, Any], headers: Mapping[str, str]) -> Answer:
    """Return the event that API Gateway would send to Lambda, without the body."""
    path = scope["path"]
    route, arguments = find_route(path)
    query = parse_qs(scope["query_string"].decode("latin-1"), keep_blank_values=True)
    return {
        "requestContext": {"httpMethod": scope["method"], "resourcePath": route, "path": path},
        "headers": dict(headers),
        "multiValueHeaders": _all_values(scope["headers"]),
        "pathParameters": arguments,
        "stageVariables": {},
        "multiValueQueryStringParameters": query or None,
        "body": b"",
    }


def _all_values(lines: Iterable[tuple[bytes, bytes]]) -> dict[str, list[str]]:
    """Return the values of each header, of which a caller may send several."""
    values: dict[str, list[str]] = {}
    for name, value in lines:
        values.setdefault(name.decode("latin-1"), []).append(value.decode("latin-1"))
    return values


def find_route(path: str) -> tuple[str, dict[str, str]]:
    """Return the route of a path, with the path's arguments. Raises :class:`NotFound`."""
    parts = path.rstrip("/").split("/") if path != "/" else ["", ""]
    for route in chalice_app.routes:
        names = route.split("/")
        pairs = list(zip(names, parts, strict=True)) if len(names) == len(parts) else []
        if pairs and all((part and name.startswith("{")) or name == part for name, part in pairs):
            return route, {name[1:-1]: part for name, part in pairs if name.startswith("{")}
    raise NotFound(f"no such path: {path[:200]}")


def uses_s3(event: Answer) -> bool:
    """True if the request needs S3: for an object, for models, or for the files beside a new model."""
    route = event["requestContext"]["resourcePath"]
    if route != INFER:
        return bool(route != INFER_DEFAULT)
    is_new = not front.is_prepared(event["pathParameters"]["model"])
    return is_new or may_name_object(event["body"])


def call_chalice(event: Answer, context: Context) -> Answer:
    answer: Answer = chalice_app(event, context)
    return answer


async def respond(answer: Answer, body: Body, send: Send) -> None:
    """Send the answer. If the request's body was not read, the connection closes after it."""
    content = encode_body(answer)
    headers = {**answer["headers"], "Content-Length": str(len(content))}
    if body.is_unread:
        headers["Connection"] = "close"
    await send(
        {
            "type": "http.response.start",
            "status": answer["statusCode"],
            "headers": [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()],
        }
    )
    if body.is_unread:
        # The caller has its whole answer; the connection stays open while it may still be sending.
        await send({"type": "http.response.body", "body": content, "more_body": True})
        await body.discard(DISCARD_TIMEOUT_S)
        content = b""
    await send({"type": "http.response.body", "body": content})


def encode_body(answer: Answer) -> bytes:
    body = answer["body"]
    if answer.get("isBase64Encoded"):
        return base64.b64decode(body)
    return body.encode() if isinstance(body, str) else bytes(body or b"")
