"""Call a client as a caller does: in this process, or through a running box."""

from __future__ import annotations

import json
import logging
import threading
import time
import traceback
import urllib.error
import urllib.request
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

from sm.client.base import Client
from sm.errors import CommandError, TriremeError
from sm.http.messages import Answer, write_error
from sm.invocation import Invocation, running
from sm.metrics import stage
from sm.models.table import models_of
from sm.router.answers import EncodedRecord, dumps, encode_failure, encode_record, write, write_list
from sm.router.classify import RequestClassifier
from sm.router.dispatch import run_record
from sm.router.records import OrderedMap, run_records
from sm.router.request_types import DispatchRequest, Message

#: Seconds after which a missing answer counts as a hang.
REQUEST_TIMEOUT_S = 60.0
#: Statuses of a full box: the request is repeated.
BUSY = (429, 503)


@dataclass(frozen=True)
class CheckRequest:
    """A payload and its parameters in the dispatch form."""

    payload: Any
    parameters: Mapping[str, Any] | None = None

    def body(self, model: str) -> bytes:
        options = {} if self.parameters is None else {"parameters": self.parameters}
        return dumps({"modelname": model, "payload": self.payload, **options})


@dataclass(frozen=True)
class CheckReply:
    """A status (0: no answer in time) and a body; ``why`` is the client's own exception, if it raised one."""

    status: int
    body: Any = None
    why: str = ""

    @property
    def result(self) -> Any:
        return self.body.get("result") if isinstance(self.body, dict) else None

    @property
    def sentence(self) -> str:
        """Describe the failure."""
        if not self.status:
            return f"a hang: no answer in {REQUEST_TIMEOUT_S:g} s"
        reason = self.body.get("error", "") if isinstance(self.body, dict) else ""
        return f"a {self.status}: {self.why or reason}"


class Caller(Protocol):
    """Sends requests to the client."""

    def ask(self, request: CheckRequest) -> CheckReply:
        """Return the reply within :data:`REQUEST_TIMEOUT_S`."""
        ...


class InProcessCaller:
    """The router's dispatch without HTTP."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self._records = OrderedMap(ThreadPoolExecutor(8, "records"), 8)
        self._reasons = LastErrors(client)
        logger = logging.getLogger("sm.router.dispatch")
        logger.propagate = False
        logger.addHandler(self._reasons)

    def ask(self, request: CheckRequest) -> CheckReply:
        replies: list[CheckReply] = []
        # A hanging thread cannot be ended; a daemon thread does not keep the process alive.
        thread = threading.Thread(target=lambda: replies.append(self.reply(request)), daemon=True)
        thread.start()
        thread.join(REQUEST_TIMEOUT_S + 5)
        return replies[0] if replies else CheckReply(0)

    def reply(self, request: CheckRequest) -> CheckReply:
        """Call in the current thread, without a time limit."""
        self._reasons.forget()
        with running(Invocation(time.monotonic() + REQUEST_TIMEOUT_S)) as invocation:
            answer = self._answer(request.body(self.client.name), invocation)
        status = 0 if answer.status == 504 else answer.status
        return CheckReply(status, json.loads(answer.read()), self._reasons.last())

    def _answer(self, body: bytes, invocation: Invocation) -> Answer:
        try:
            request = read_request(self.client, body)
            if not request.many:
                result = run_record(request, invocation)
                with stage(self.client.name, "encode"):
                    return write(request, result)

            def encode(result: object) -> EncodedRecord:
                with stage(self.client.name, "encode"):
                    return encode_record(request.model, result)

            records = run_records(request, invocation, encode, encode_failure, self._records)
            return write_list(request, records, invocation)
        except TriremeError as error:
            return write_error(error, "check")


def read_request(client: Client, body: bytes) -> DispatchRequest:
    """Read a request for a client as the router does."""
    request = RequestClassifier(models_of({client.name: client})).parse(Message(body, {}, {}, "check"))
    assert isinstance(request, DispatchRequest)
    return request


class LastErrors(logging.Handler):
    """The last exception that a client raised in each thread, in one line."""

    def __init__(self, client: Client) -> None:
        super().__init__()
        self._folder, self._local = str(client.folder), threading.local()

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if error is None:
            return
        frames = traceback.extract_tb(error.__traceback__)
        client_frames = [frame for frame in frames if frame.filename.startswith(self._folder)]
        where = (
            f" ({client_frames[-1].filename.rpartition('/')[2]}, line {client_frames[-1].lineno})"
            if client_frames
            else ""
        )
        self._local.failure = f"{type(error).__name__}: {error}{where}"

    def forget(self) -> None:
        self._local.failure = ""

    def last(self) -> str:
        return str(getattr(self._local, "failure", ""))


class RemoteCaller:
    """A running box."""

    def __init__(self, url: str, model: str) -> None:
        self._url, self._model = url, model

    def ask(self, request: CheckRequest) -> CheckReply:
        end = time.monotonic() + REQUEST_TIMEOUT_S
        reply = self._send(request, REQUEST_TIMEOUT_S)
        while reply.status in BUSY and time.monotonic() < end:
            time.sleep(0.2)
            reply = self._send(request, max(1.0, end - time.monotonic()))
        return reply

    def _send(self, request: CheckRequest, seconds: float) -> CheckReply:
        headers = {"Content-Type": "application/json"}
        http_request = urllib.request.Request(  # noqa: S310  (the address was looked at)
            f"{self._url}/invocations", request.body(self._model), headers
        )
        try:
            with urllib.request.urlopen(http_request, timeout=seconds) as answer:  # noqa: S310
                return CheckReply(answer.status, _parse(answer.read()))
        except urllib.error.HTTPError as error:
            return CheckReply(error.code, _parse(error.read()))
        except TimeoutError:
            return CheckReply(0)
        except OSError as error:
            raise CommandError(f"no box answers at {self._url}: {error}.") from None


def _parse(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return {"error": "the answer is not JSON"}
