"""Find the models that hang, by requests of them that were given up and what Triton has ended since."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from sm import hardware
from sm.invocation import Invocation, Ticket
from sm.metrics import HANGS, MODELS
from sm.model_processes.generations import SharedGeneration, now
from sm.model_processes.python_models import PythonModels
from sm.polling import WATCH_S, Poll
from sm.run_state import Box, read_pid

log = logging.getLogger(__name__)

#: Seconds that a model has to end a request after its deadline. Triton tells it of the deadline.
GRACE_S = 0.5
#: Seconds that a request must have had. One that is given up sooner may be in Triton's queue, and is dropped
#: there without a trace in the statistics.
MIN_AGE_S = 1.0
#: Seconds in which Triton is watched after a stream was given up, and bytes that it may grow by.
STREAM_WATCH_S, MAX_GROWTH_BYTES = 60.0, 2**28


@dataclass(frozen=True)
class Doubt:
    """Requests of a model that were given up, and of which none is known to have ended. Times are of day."""

    model: str
    #: The Python models that may hang, with their generations: the model, or the steps of an ensemble.
    suspects: tuple[tuple[str, int], ...]
    #: The id of the request that began first, when it began, and when the last one began.
    request_id: str
    began: float
    last_began: float
    #: When the model is judged: after the first request's deadline. Infinite for streams that ended sooner.
    due: float
    #: When the last request was given up.
    left: float
    #: Triton's pid, and for streams the bytes of its memory when the first was given up.
    triton: int
    bytes: int | None


class HangWatch:
    """The doubts of a worker: models that may hang, as the time of one of their requests is over.

    Triton's statistics say when a model last ended an execution, whatever came of it, and also one whose
    caller was gone. So a request that was given up and that does run on delays that time; a model that only
    has nothing to do does not, because the given-up request itself has ended since.

    A model that ignores the end of its stream is another kind: Triton keeps what it still sends, without a
    limit.

    Args:
        box: Its Triton, and the seconds in which a model must answer something.
        shared: The models' generations, and when they last sent a part of a stream.
        models: The repository's Python models.
        report: Called with a model that hangs, its generation and a sentence. Returns False if it was
            reported already.
        last_end: Returns when a model last ended an execution, as time of day; None if Triton does not say.
    """

    def __init__(
        self,
        box: Box,
        shared: SharedGeneration,
        models: PythonModels,
        report: Callable[[str, int, str], bool],
        last_end: Callable[[str], float | None],
    ) -> None:
        self._last_end = last_end
        self._box, self._shared, self._models, self._report = box, shared, models, report
        self._doubts: dict[tuple[str, bool], Doubt] = {}
        self._lock = threading.Lock()
        #: Judges the doubts while there are any.
        self._poll: Poll | None = None

    def add(self, ticket: Ticket, model: str, invocation: Invocation, streamed: bool) -> None:
        """Watch a model of which a request was given up while Triton ran it."""
        began, at = (time.time() - (time.monotonic() - each) for each in (invocation.began, invocation.at))
        left, pid = time.time(), read_pid(self._box, "triton")
        reach, numbers = self._models.of(model), dict(ticket.generations)
        suspects = tuple((part, numbers[part]) for part in reach.parts if part in numbers)
        # A decoupled model may end an execution before it answers, and then ends nothing when it gives up.
        streamed = streamed or reach.is_decoupled
        if not suspects or pid is None or (left - began < MIN_AGE_S and not streamed):
            return
        due = at + GRACE_S if not streamed or left >= at else float("inf")
        doubt = Doubt(model, suspects, invocation.request_id, began, began, due, left, pid, None)
        with self._lock:
            known = self._doubts.get((model, streamed))
            if known and (known.suspects, known.triton) == (suspects, pid):
                # Impatient callers leave before the one who has waited for longest.
                first = min(known, doubt, key=lambda each: each.began)
                doubt = replace(
                    first,
                    last_began=max(known.last_began, began),
                    due=min(known.due, due),
                    left=left,
                    bytes=known.bytes,
                )
            elif streamed:
                doubt = replace(doubt, bytes=hardware.anonymous_bytes(pid))
            self._doubts[model, streamed] = doubt
            if self._poll is None:
                self._poll = Poll("hangs", WATCH_S, self._judge_all)
                self._poll.start()

    def _judge_all(self) -> None:
        with self._lock:
            doubts = dict(self._doubts)
            if not doubts and self._poll is not None:
                self._poll.stop()
                self._poll = None
        for key, doubt in doubts.items():
            try:
                settled = self._judge(doubt)
            except Exception:
                log.exception("cannot tell whether the model %s hangs", doubt.model)
                settled = True
            with self._lock:
                # More requests may have been given up meanwhile.
                if settled and self._doubts[key] is doubt:
                    del self._doubts[key]

    def _judge(self, doubt: Doubt) -> bool:
        """Report what hangs. Returns True if nothing is in doubt any more."""
        is_current = all(self._shared.number(model) == number for model, number in doubt.suspects)
        if not is_current or read_pid(self._box, "triton") != doubt.triton:
            return True
        if doubt.bytes is not None:
            growth = hardware.anonymous_bytes(doubt.triton) - doubt.bytes
            if growth > MAX_GROWTH_BYTES:
                reason = f"ignores the end of its stream; Triton has taken {growth >> 20} MB since"
                return self._end(doubt, doubt.suspects[0], reason)
        elif time.time() < doubt.due:
            return False
        return self._judge_by_statistics(doubt)

    def _judge_by_statistics(self, doubt: Doubt) -> bool:
        is_stream = doubt.bytes is not None
        for model, number in doubt.suspects:
            ended = self._last_end(model)
            if ended is None:  # Triton is busy; the supervisor watches it
                return False
            # A step may have ended its part of the request. The model itself has done so only after that.
            if ended >= (doubt.left if model == doubt.model else doubt.last_began):
                continue
            if time.time() < doubt.due:
                return time.time() >= doubt.left + STREAM_WATCH_S
            if is_stream and self._shared.answered(doubt.model) >= doubt.last_began:
                return True
            if self._silent_seconds(max(ended, doubt.began)) >= self._box.model_timeout:
                reason = "has answered nothing, although the time of a request is over"
                return self._end(doubt, (model, number), reason)
            return False
        return True

    def _silent_seconds(self, answered: float) -> float:
        """Return the seconds since an answer in which the box did not stand still."""
        resumed = self._shared.resumed
        return min(time.time() - answered, now() - resumed) if resumed else time.time() - answered

    def _end(self, doubt: Doubt, suspect: tuple[str, int], reason: str) -> bool:
        model, number = suspect
        if self._report(model, number, f"the model {model!r} {reason}"):
            HANGS.labels(MODELS.of(model)).inc()
            log.error(
                "the model hung on this request", extra={"model": model, "request_id": doubt.request_id}
            )
        return True
