"""A client asked as a caller asks it: in this process, or in a box that runs."""

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

from sm import deadline
from sm.client.base import Client
from sm.errors import StartError, TriremeError
from sm.metrics import stage
from sm.plugins.registry import Registry
from sm.router.answer import Answer, dumps, write, write_error
from sm.router.dispatch import Dispatcher
from sm.router.invocation import Message, read

#: Seconds after which an answer that is not there is a hang.
REQUEST_TIMEOUT_S = 60.0
#: The box is full: a caller asks again.
BUSY = (429, 503)


@dataclass(frozen=True)
class Request:
    """A payload and its parameters, as the dispatch form has them."""

    payload: Any
    parameters: Mapping[str, Any] | None = None

    def body(self, model: str) -> bytes:
        asked = {} if self.parameters is None else {"parameters": self.parameters}
        return dumps({"modelname": model, "payload": self.payload, **asked})


@dataclass(frozen=True)
class Reply:
    """Status (0: none in time) and body; ``why`` has what only the log of a box says."""

    status: int
    body: Any = None
    why: str = ""

    @property
    def result(self) -> Any:
        return self.body.get("result") if isinstance(self.body, dict) else None

    @property
    def sentence(self) -> str:
        """What went wrong."""
        if not self.status:
            return f"a hang: no answer in {REQUEST_TIMEOUT_S:g} s"
        said = self.body.get("error", "") if isinstance(self.body, dict) else ""
        return f"a {self.status}: {self.why or said}"


class Caller(Protocol):
    """Whoever answers for the client."""

    def ask(self, request: Request) -> Reply:
        """The reply, in :data:`PATIENCE` whatever happens."""
        ...


class InProcessCaller:
    """The router's own way of a request, without its HTTP."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self._dispatcher = Dispatcher(Registry({client.name: client}), ThreadPoolExecutor(8, "records"))
        self._reasons = Reasons(client)
        logger = logging.getLogger("sm.router.dispatch")
        logger.propagate = False
        logger.addHandler(self._reasons)

    def ask(self, request: Request) -> Reply:
        replies: list[Reply] = []
        # A thread that hangs cannot be ended; a daemon does not keep the process.
        thread = threading.Thread(target=lambda: replies.append(self.reply(request)), daemon=True)
        thread.start()
        thread.join(REQUEST_TIMEOUT_S + 5)
        return replies[0] if replies else Reply(0)

    def reply(self, request: Request) -> Reply:
        """The same in the caller's own thread, however long it takes."""
        self._reasons.forget()
        with deadline.running(deadline.Deadline(time.monotonic() + REQUEST_TIMEOUT_S)):
            answer = self._answer(Message(request.body(self.client.name), {}, {}, "check"))
        status = 0 if answer.status == 504 else answer.status
        return Reply(status, json.loads(answer.read()), self._reasons.last())

    def _answer(self, message: Message) -> Answer:
        try:
            invocation = read(message, "")
            results = self._dispatcher.run(invocation)
            with stage(self.client.name, "encode"):
                return write(invocation, results)
        except TriremeError as error:
            return write_error(error, "check")


class Reasons(logging.Handler):
    """The last exception that a client raised in each thread, in one line."""

    def __init__(self, client: Client) -> None:
        super().__init__()
        self._folder, self._own = str(client.folder), threading.local()

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if error is None:
            return
        frames = traceback.extract_tb(error.__traceback__)
        theirs = [frame for frame in frames if frame.filename.startswith(self._folder)]
        where = f" ({theirs[-1].filename.rpartition('/')[2]}, line {theirs[-1].lineno})" if theirs else ""
        self._own.said = f"{type(error).__name__}: {error}{where}"

    def forget(self) -> None:
        self._own.said = ""

    def last(self) -> str:
        return str(getattr(self._own, "said", ""))


class RemoteCaller:
    """A box that runs."""

    def __init__(self, url: str, model: str) -> None:
        self._url, self._model = url, model

    def ask(self, request: Request) -> Reply:
        end = time.monotonic() + REQUEST_TIMEOUT_S
        reply = self._once(request, REQUEST_TIMEOUT_S)
        while reply.status in BUSY and time.monotonic() < end:
            time.sleep(0.2)
            reply = self._once(request, max(1.0, end - time.monotonic()))
        return reply

    def _once(self, request: Request, seconds: float) -> Reply:
        headers = {"Content-Type": "application/json"}
        sent = urllib.request.Request(  # noqa: S310  (the address was looked at)
            f"{self._url}/invocations", request.body(self._model), headers
        )
        try:
            with urllib.request.urlopen(sent, timeout=seconds) as answer:  # noqa: S310
                return Reply(answer.status, _parsed(answer.read()))
        except urllib.error.HTTPError as error:
            return Reply(error.code, _parsed(error.read()))
        except TimeoutError:
            return Reply(0)
        except OSError as error:
            raise StartError(f"no box answers at {self._url}: {error}.") from None


def _parsed(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return {"error": "the answer is not JSON"}
