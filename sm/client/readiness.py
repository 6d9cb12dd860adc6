"""A client's own readiness: its method ``ready`` is asked every few seconds, in a thread of its own."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Protocol

import numpy as np

from sm.client.marks import Marks
from sm.errors import NotReady, TriremeError
from sm.polling import Poll
from sm.run_state import write_unready

log = logging.getLogger(__name__)
#: Seconds between two questions, and for one answer: SageMaker asks ``/ping`` every 10 s.
INTERVAL_S, PATIENCE_S = 3.0, 2.0
#: Characters of a client's sentence.
MAX_SENTENCE = 200


class Asked(Protocol):
    """A client."""

    name: str
    _marks: Marks


class ReadinessCheck:
    """Asks one client. While it has not answered, it is not asked again: no more than one thread hangs.

    Args:
        client: The client.
        ready: Its method, which returns True, False, or a sentence that says why it is not ready.
    """

    def __init__(self, client: Asked, ready: Callable[[], object]) -> None:
        self._client, self._ready = client, ready
        self._answer: Future[str] | None = None

    def begin(self) -> None:
        """Ask, unless an earlier question is open."""
        if self._answer is None:
            answer = Future[str]()
            threading.Thread(target=self._ask, args=(answer,), name="ready", daemon=True).start()
            self._answer = answer

    def read(self, seconds: float) -> None:
        """Wait so long for the answer, and note on the client why it is not ready."""
        assert self._answer is not None
        if wait([self._answer], max(0.0, seconds)).done:
            reason, self._answer = self._answer.result(), None
        else:
            reason = f"its client has not said for {PATIENCE_S:g} s whether it is"
        client, marks, before = self._client, self._client._marks, self._client._marks.unready
        marks.unready = reason and f"the model {client.name!r} is not ready: {reason}"
        if marks.unready and marks.unready != before:
            log.warning("%s", marks.unready)
        elif before and not marks.unready:
            log.info("the model %r is ready again", client.name)

    def _ask(self, answer: Future[str]) -> None:
        try:
            reason = _reason(self._ready())
        except TriremeError as error:
            reason = _plain(error.sentence)
        except BaseException as error:  # a client may call sys.exit()
            if not self._client._marks.unready:
                log.error("the ready() of the client %r failed", self._client.name, exc_info=error)
            reason = f"its client's ready() failed ({type(error).__name__})"
        answer.set_result(reason)


def _reason(said: object) -> str:
    if isinstance(said, bool | np.bool_):
        return "" if said else "its client says so"
    if isinstance(said, str):
        return _plain(said) or "its client says so"
    return f"its client's ready() returned a {type(said).__name__}, not True, False or a sentence"


def _plain(sentence: str) -> str:
    """Return a sentence as one line that JSON can carry."""
    return " ".join(sentence[:MAX_SENTENCE].encode(errors="replace").decode().split())


def ask(clients: Iterable[Asked]) -> None:
    """Ask all clients that have a question, at the same time."""
    questions = [question for client in clients if (question := client._marks.readiness) is not None]
    for question in questions:
        question.begin()
    end = time.monotonic() + PATIENCE_S
    for question in questions:
        question.read(end - time.monotonic())


class Readiness:
    """The readiness of a worker's clients, asked at intervals and published for ``/ping``.

    Args:
        find: Returns the clients that serve, of each name the newest last.
        file: Where this worker says which models are not ready.
    """

    def __init__(self, find: Callable[[], Iterable[Asked]], file: Path) -> None:
        self._find, self._file = find, file
        self._published: Mapping[str, str] = {}
        #: Why models are not ready, by name.
        self.reasons: Mapping[str, str] = {}

    def check(self, model: str) -> None:
        """Raise :class:`NotReady` if the model's client says that it is not ready."""
        if reason := self.reasons.get(model):
            raise NotReady(reason)

    def watch(self) -> None:
        """Publish what the clients said when they were loaded, and ask them at intervals."""
        self._publish(list(self._find()))
        Poll("readiness", INTERVAL_S, self.ask).start()

    def ask(self) -> None:
        """Ask all clients, and publish the answers."""
        clients = list(self._find())
        ask(clients)
        self._publish(clients)

    def _publish(self, clients: Iterable[Asked]) -> None:
        newest = {client.name: client._marks.unready for client in clients}
        self.reasons = {name: reason for name, reason in newest.items() if reason}
        if self.reasons == self._published:
            return
        try:
            self._file.parent.mkdir(exist_ok=True)
            write_unready(self._file, self.reasons)
        except OSError as error:
            log.warning("/ping does not say which clients are ready: %s", error)
        else:
            self._published = self.reasons
