"""Refuse answers that may be another caller's, and report the models that may have mixed them up.

:mod:`sm.model_processes.generations` says how Triton mixes them up.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from functools import partial

from sm.errors import Interrupted, NotReady, Unavailable
from sm.invocation import Invocation, Ticket, wait
from sm.metrics import DOUBTED_ANSWERS, MISMATCHED_ANSWERS
from sm.model_processes.generations import (
    MAX_HEARTBEAT_AGE_S,
    REPORTED,
    TRITON_ITSELF,
    UNSTABLE,
    SharedGeneration,
)
from sm.model_processes.hang_watch import HangWatch
from sm.model_processes.python_models import PythonModels
from sm.model_processes.reports import EndedGeneration
from sm.polling import poll_until
from sm.run_state import Box

log = logging.getLogger(__name__)

#: Seconds that a report waits for the supervisor's decision. The model's calls wait in any case.
DECISION_TIMEOUT_S = 1.0
#: Seconds that an answer waits for a heartbeat. The supervisor writes at least five a second.
HEARTBEAT_TIMEOUT_S = 2.0
NO_HEARTBEAT = "the box's supervisor does not respond, so the answer cannot be trusted"


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
        send: Callable[[EndedGeneration], bool] = lambda _: False,
    ) -> None:
        self.shared = shared or SharedGeneration.private()
        self.python_models = python_models if shared else lambda _: ()
        self._send = send
        self._hangs: HangWatch | None = None

    @classmethod
    def of(cls, box: Box, models: PythonModels, last_end: Callable[[str], float | None]) -> AnswerGuard:
        """Create the guard for a process of ``box`` with these Python models; see :class:`HangWatch`."""
        if box.generation_file is None:
            return cls(None)
        shared = SharedGeneration(box.generation_file)
        guard = cls(
            shared,
            lambda model: models.of(model).python,
            partial(EndedGeneration.send, pipe=box.reports_pipe),
        )
        guard._hangs = HangWatch(box, shared, models, guard._report, last_end)
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

    def confirm(self, ticket: Ticket, identified: bool = False, invocation: Invocation | None = None) -> None:
        """Accept an answer to a call.

        Args:
            ticket: Of the call.
            identified: True if the answer names its request, so that nothing is in doubt.
            invocation: The one that made the call.

        Raises:
            Interrupted: The answer may be another request's.
            DeadlinePassed, CallerGone: The invocation ended first.
        """
        shared = self.shared
        if identified or not ticket.generations:
            return
        if shared.is_watched and shared.heartbeat_age() > MAX_HEARTBEAT_AGE_S:
            self._wait_for_heartbeat(shared, invocation)
        if shared.resumed and shared.settling() > 0:
            wait(partial(poll_until, lambda: shared.settling() <= 0), invocation)
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

    def report_abandoned(
        self, ticket: Ticket, model: str, invocation: Invocation | None, streamed: bool = False
    ) -> None:
        """Report a call of a model whose answer nobody reads, because it is late or its caller is gone.

        The model may hang. After a standstill the answer might have told of a stall.
        """
        shared = self.shared
        if self._hangs is not None and invocation is not None:
            self._hangs.add(ticket, model, invocation, streamed)
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
        if self._send(EndedGeneration(model, number, instance)):
            # The decision says whether a call crashed the process, perhaps this one.
            poll_until(lambda: shared.refusal(model) != REPORTED, DECISION_TIMEOUT_S)
        return True

    @staticmethod
    def _wait_for_heartbeat(shared: SharedGeneration, invocation: Invocation | None) -> None:
        end = time.monotonic() + HEARTBEAT_TIMEOUT_S

        def give_up() -> None:
            if time.monotonic() > end:
                raise Interrupted(NO_HEARTBEAT)

        wait(partial(poll_until, lambda: shared.heartbeat_age() <= MAX_HEARTBEAT_AGE_S), invocation, give_up)
