"""Refuse answers that may be another caller's, and report the models that may have mixed them up, or hang.

:mod:`sm.triton.generation` says how Triton mixes them up.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial

from sm import hardware
from sm.errors import Interrupted, NotReady, Unavailable
from sm.invocation import Invocation, Ticket, current
from sm.metrics import DOUBTED_ANSWERS, HANGS, MISMATCHED_ANSWERS
from sm.polling import WATCH_S, poll_until
from sm.run_state import Box
from sm.triton import server
from sm.triton.generation import (
    MAX_HEARTBEAT_AGE_S,
    REPORTED,
    TRITON_ITSELF,
    UNSTABLE,
    SharedGeneration,
    now,
)
from sm.triton.python_models import PythonModels, triton_pid
from sm.triton.reports import Report

log = logging.getLogger(__name__)

#: Seconds that a report waits for the supervisor's decision. The model's calls wait in any case.
DECISION_TIMEOUT_S = 1.0
#: Seconds that an answer waits for a heartbeat. The supervisor writes at least five a second.
HEARTBEAT_TIMEOUT_S = 2.0
NO_HEARTBEAT = "the box's supervisor does not respond, so the answer cannot be trusted"
#: Seconds that a model has to end a request after its deadline. Triton tells it of the deadline.
GRACE_S = 0.5
#: Seconds that a request must have had. One that is given up sooner may be in Triton's queue, and is dropped
#: there without a trace in the statistics.
MIN_AGE_S = 1.0
#: Seconds in which Triton is watched after a stream was given up, and bytes that it may grow by.
STREAM_WATCH_S, MAX_GROWTH_BYTES = 60.0, 2**28


class AnswerGuard:
    """Checked before each call to Triton and before each answer is used; one guard serves all threads.

    Args:
        shared: The models' generations. None if there is no supervisor, as with a Triton elsewhere: then only
            answers that name another request are refused.
        python_models: Returns the Python models that may answer in a call of a model.
        send: Tells the supervisor of a model whose process must be replaced. Returns False if there is none.
    """

    def __init__(
        self,
        shared: SharedGeneration | None,
        python_models: Callable[[str], tuple[str, ...]] = lambda model: (model,),
        send: Callable[[Report], bool] = lambda _: False,
    ) -> None:
        self.shared = shared or SharedGeneration.private()
        self.python_models = python_models if shared else lambda _: ()
        self._send = send
        self._hangs: HangWatch | None = None

    @classmethod
    def of(cls, box: Box, models: PythonModels) -> AnswerGuard:
        """Create the guard for a process of ``box`` with these Python models."""
        if box.generation_file is None:
            return cls(None)
        shared = SharedGeneration(box.generation_file)
        guard = cls(
            shared, lambda model: models.of(model).python, partial(Report.send, pipe=box.reports_pipe)
        )
        guard._hangs = HangWatch(box, shared, models, guard._report)
        return guard

    def admit(self, model: str, alone: str | None = None) -> Ticket:
        """Return what a call of a model must be confirmed with.

        Args:
            model: The model that is called.
            alone: The model whose calls are sent alone, if it is this call's turn.

        Raises:
            NotReady: A process that would answer is gone, or other calls are sent alone.
            Unavailable: The model's processes die too often.
        """
        shared = self.shared
        models = self.python_models(model)
        if alone is None and (ticket := shared.ticket(models)) is not None:
            return ticket
        for each in models:
            refusal = shared.refusal(each)
            if refusal == UNSTABLE:
                raise Unavailable(f"processes of the model {each!r} keep dying")
            if refusal:
                raise NotReady(f"the Python model process of {each!r} died; the model is reloading")
            if alone is None and shared.is_reserved(each):
                raise NotReady(f"requests under which the model {each!r} crashed are sent first")
        if alone is None and shared.is_reserved(TRITON_ITSELF):
            raise NotReady("requests under which Triton crashed are sent first")
        return Ticket(tuple((each, shared.number(each)) for each in models), shared.resumed, alone)

    def confirm(self, ticket: Ticket, identified: bool = False) -> None:
        """Accept an answer to a call.

        Args:
            ticket: Of the call.
            identified: True if the answer names its request, so that nothing is in doubt.

        Raises:
            Interrupted: The answer may be another request's.
        """
        shared = self.shared
        if identified or not ticket.generations:
            return
        if shared.is_watched and shared.heartbeat_age() > MAX_HEARTBEAT_AGE_S:
            self._wait_for_heartbeat(shared)
        if shared.resumed and (seconds := shared.settling()) > 0:
            time.sleep(seconds)
        self.confirm_delivery((ticket,))

    def confirm_delivery(self, tickets: Iterable[Ticket]) -> None:
        """Accept a result that a client made from Triton's answers to these calls.

        Each of those answers was confirmed before. A stall may be noticed later, while the client works.

        Raises:
            Interrupted: One of the answers may be another request's.
        """
        for ticket in tickets:
            model = self.shared.ended(ticket.generations)
            if model is not None:
                DOUBTED_ANSWERS.inc()
                raise Interrupted(
                    f"a Python model process of {model!r} stalled or died, so the answer may be "
                    "another request's; the model is reloading"
                )

    def report_stall(self, ticket: Ticket, instance: str) -> None:
        """Report that Triton gave up on the process of a model ``instance`` ("" if it did not name one)."""
        models = [model for model, _ in ticket.generations]
        named = [model for model in models if instance.startswith(f"{model}_")]
        # One name may begin with another. A group of instances may have a name of its own.
        suspects = [max(named, key=len)] if named else models
        for model, number in ticket.generations:
            if model in suspects:
                self._report(model, number, f"model instance {instance!r} does not respond", instance)

    def report_mismatch(self, ticket: Ticket, model: str) -> Interrupted:
        """Report an answer that names another request; return the error for its caller."""
        MISMATCHED_ANSWERS.inc()
        for name, number in ticket.generations:
            if name == model:
                self._report(name, number, f"model {model!r} answered another request than it was asked")
        return Interrupted(f"the model {model!r} answered another request and is reloading")

    def note_part(self, model: str) -> None:
        """Record that a model has sent a part of a stream."""
        self.shared.note_part(model)

    def report_abandoned(self, ticket: Ticket, model: str, streamed: bool = False) -> None:
        """Report a call of a model whose answer nobody reads, because it is late or its caller is gone.

        The model may hang. After a standstill the answer might have told of a stall.
        """
        shared, deadline = self.shared, current()
        if self._hangs is not None and deadline is not None:
            self._hangs.add(ticket, model, deadline, streamed)
        is_late = shared.is_watched and shared.heartbeat_age() > MAX_HEARTBEAT_AGE_S
        if is_late or shared.resumed != ticket.resumed:
            for each, number in ticket.generations:
                self._report(each, number, f"the box stood still during a call of model {each!r}")

    def _report(self, model: str, number: int, reason: str, instance: str = "") -> bool:
        """End a model's generation, and let the supervisor replace the processes whose answers are in doubt.

        A report about a generation that has ended is too late: other processes may run by now.
        """
        shared = self.shared
        is_out = shared.out_since(model)
        if not shared.report(model, number):
            return False
        if not is_out:
            log.error("%s; reloading the model", reason, extra={"model": model})
        if self._send(Report(model, number, instance)):
            # The decision says whether a call crashed the process, perhaps this one.
            poll_until(lambda: shared.refusal(model) != REPORTED, DECISION_TIMEOUT_S)
        return True

    @staticmethod
    def _wait_for_heartbeat(shared: SharedGeneration) -> None:
        if not poll_until(lambda: shared.heartbeat_age() <= MAX_HEARTBEAT_AGE_S, HEARTBEAT_TIMEOUT_S):
            raise Interrupted(NO_HEARTBEAT)


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
    """

    def __init__(
        self,
        box: Box,
        shared: SharedGeneration,
        models: PythonModels,
        report: Callable[[str, int, str], bool],
    ) -> None:
        self._box, self._shared, self._models, self._report = box, shared, models, report
        self._doubts: dict[tuple[str, bool], Doubt] = {}
        self._lock = threading.Lock()
        self._is_watching = False

    def add(self, ticket: Ticket, model: str, deadline: Invocation, streamed: bool) -> None:
        """Watch a model of which a request was given up while Triton ran it."""
        began, at = (time.time() - (time.monotonic() - each) for each in (deadline.began, deadline.at))
        left, pid = time.time(), triton_pid(self._box)
        reach, numbers = self._models.of(model), dict(ticket.generations)
        suspects = tuple((part, numbers[part]) for part in reach.parts if part in numbers)
        # A decoupled model may end an execution before it answers, and then ends nothing when it gives up.
        streamed = streamed or reach.is_decoupled
        if not suspects or pid is None or (left - began < MIN_AGE_S and not streamed):
            return
        due = at + GRACE_S if not streamed or left >= at else float("inf")
        doubt = Doubt(model, suspects, deadline.request_id, began, began, due, left, pid, None)
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
            if not self._is_watching:
                self._is_watching = True
                threading.Thread(target=self._watch, name="hangs", daemon=True).start()

    def _watch(self) -> None:
        while True:
            time.sleep(WATCH_S)
            with self._lock:
                doubts = dict(self._doubts)
                if not doubts:
                    self._is_watching = False
                    return
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
        if not is_current or triton_pid(self._box) != doubt.triton:
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
            ended = server.last_end(self._box.http_port, model, self._box.http_keys)
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
            HANGS.labels(model).inc()
            log.error(
                "the model hung on this request", extra={"model": model, "request_id": doubt.request_id}
            )
        return True
