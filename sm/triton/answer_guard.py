"""Refuse answers that may be another caller's; :mod:`sm.triton.generation` says how Triton mixes them up."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from functools import partial

from sm.deadline import current
from sm.errors import Interrupted, NotReady, Unavailable
from sm.metrics import DOUBTED_ANSWERS, MISMATCHED_ANSWERS
from sm.run_state import Box
from sm.triton.callable_models import PythonModels
from sm.triton.generation import (
    MAX_HEARTBEAT_AGE_S,
    TRITON_ITSELF,
    UNSTABLE,
    Admission,
    SharedGeneration,
    now,
)
from sm.triton.hangs import HangWatch
from sm.triton.stub_processes import kill_stubs

log = logging.getLogger(__name__)

#: Seconds between two checks for the supervisor's next heartbeat.
HEARTBEAT_POLL_S = 0.005
#: Seconds that an answer waits for a heartbeat. The supervisor writes ten a second.
HEARTBEAT_TIMEOUT_S = 2.0
NO_HEARTBEAT = "the box's supervisor does not respond, so the answer cannot be trusted"


NOTHING_TO_DOUBT = Admission((), 0.0)


class AnswerGuard:
    """Checked before each call to Triton and before each answer is used; one guard serves all threads.

    Args:
        shared: The models' generations. None if there is no supervisor, as in a test: then only answers that
            name another request are refused.
        python_models: Returns the Python models that may answer in a call of a model.
        kill: Kills the processes of a model that were started before a time; of one instance if it is known.
            Returns False if none is alive.
        box: Of the shared file. None if nothing watches for models that hang.
    """

    def __init__(
        self,
        shared: SharedGeneration | None,
        python_models: Callable[[str], tuple[str, ...]] = lambda model: (model,),
        kill: Callable[[str, str, float], bool] = lambda _model, _instance, _before: True,
        box: Box | None = None,
    ) -> None:
        self.shared, self._python_models, self._kill = shared, python_models, kill
        self._hangs: HangWatch | None = None
        if shared is not None and box is not None:
            self._hangs = HangWatch(box, shared, PythonModels(box), self._take_out)

    @classmethod
    def of(cls, box: Box) -> AnswerGuard:
        """Create the guard for a process of ``box``."""
        if box.generation_file is None:
            return cls(None)
        shared = SharedGeneration(box.generation_file)
        return cls(shared, PythonModels(box).reached_by, partial(kill_stubs, box), box)

    def admit(self, model: str, alone: str | None = None) -> Admission:
        """Return what a call of a model must be confirmed with.

        Args:
            model: The model that is called.
            alone: The model whose calls are sent alone, if it is this call's turn.

        Raises:
            NotReady: A process that would answer is gone, or other calls are sent alone.
            Unavailable: The model's processes die too often.
        """
        shared = self.shared
        if shared is None:
            return NOTHING_TO_DOUBT
        models = self._python_models(model)
        if alone is None and (admission := shared.admission(models)) is not None:
            return admission
        for each in models:
            refusal = shared.refusal(each)
            if refusal == UNSTABLE:
                raise Unavailable(f"processes of the model {each!r} keep dying")
            if refusal:
                raise NotReady(reloading(each))
            if alone is None and shared.is_reserved(each):
                raise NotReady(f"requests under which the model {each!r} crashed are sent first")
        if alone is None and shared.is_reserved(TRITON_ITSELF):
            raise NotReady("requests under which Triton crashed are sent first")
        return Admission(tuple((each, shared.number(each)) for each in models), shared.resumed, alone)

    def confirm(self, admission: Admission, identified: bool = False) -> None:
        """Accept an answer to a call.

        Args:
            admission: Of the call.
            identified: True if the answer names its request, so that nothing is in doubt.

        Raises:
            Interrupted: The answer may be another request's.
        """
        shared = self.shared
        if shared is None or identified or not admission.generations:
            return
        if shared.is_watched and shared.heartbeat_age() > MAX_HEARTBEAT_AGE_S:
            self._wait_for_heartbeat(shared)
        if shared.resumed and (seconds := shared.settling()) > 0:
            time.sleep(seconds)
        self.confirm_delivery((admission,))

    def confirm_delivery(self, admissions: Iterable[Admission]) -> None:
        """Accept a result that a client made from Triton's answers to these calls.

        Each of those answers was confirmed before. A stall may be noticed later, while the client works.

        Raises:
            Interrupted: One of the answers may be another request's.
        """
        if self.shared is None:
            return
        for admission in admissions:
            model = self.shared.ended(admission.generations)
            if model is not None:
                DOUBTED_ANSWERS.inc()
                raise Interrupted(
                    f"a Python model process of {model!r} stalled or died, so the answer may be "
                    "another request's; the model is reloading"
                )

    def report_stall(self, admission: Admission, instance: str) -> None:
        """Report that Triton gave up on the process of a model ``instance`` ("" if it did not name one)."""
        models = [model for model, _ in admission.generations]
        named = [model for model in models if instance.startswith(f"{model}_")]
        # One name may begin with another. A group of instances may have a name of its own.
        suspects = [max(named, key=len)] if named else models
        for model, number in admission.generations:
            if model in suspects:
                self._take_out(model, number, f"model instance {instance!r} does not respond", instance)

    def report_mismatch(self, admission: Admission, model: str) -> Interrupted:
        """Report an answer that names another request; return the error for its caller."""
        MISMATCHED_ANSWERS.inc()
        for name, number in admission.generations:
            if name == model:
                self._take_out(name, number, f"model {model!r} answered another request than it was asked")
        return Interrupted(f"the model {model!r} answered another request and is reloading")

    def note_part(self, model: str) -> None:
        """Record that a model has sent a part of a stream."""
        if self.shared is not None:
            self.shared.note_part(model)

    def report_abandoned(self, admission: Admission, model: str, streamed: bool = False) -> None:
        """Report a call of a model whose answer nobody reads, because it is late or its caller is gone.

        The model may hang. After a standstill the answer might have told of a stall.
        """
        shared, deadline = self.shared, current()
        if shared is None:
            return
        if self._hangs is not None and deadline is not None:
            self._hangs.add(admission, model, deadline, streamed)
        is_late = shared.is_watched and shared.heartbeat_age() > MAX_HEARTBEAT_AGE_S
        if is_late or shared.resumed != admission.resumed:
            for each, number in admission.generations:
                self._take_out(each, number, f"the box stood still during a call of model {each!r}")

    def _take_out(self, model: str, number: int, reason: str, instance: str = "") -> bool:
        """End a model's generation, and kill the processes whose answers are in doubt.

        A report about a generation that has ended is too late: other processes may run by now.
        """
        shared = self.shared
        if shared is None or shared.number(model) != number:
            return False
        is_served = not shared.out_since(model)
        # Younger ones belong to the next load.
        killed = self._kill(model, instance, now())
        if not shared.end(model, number, crashed=not killed):
            return False
        if is_served:
            log.error("%s; reloading the model", reason, extra={"model": model})
        return True

    @staticmethod
    def _wait_for_heartbeat(shared: SharedGeneration) -> None:
        end = time.monotonic() + HEARTBEAT_TIMEOUT_S
        while shared.heartbeat_age() > MAX_HEARTBEAT_AGE_S:
            if time.monotonic() > end:
                raise Interrupted(NO_HEARTBEAT)
            time.sleep(HEARTBEAT_POLL_S)


def reloading(model: str) -> str:
    """Return the sentence for callers of a model whose process is gone."""
    return f"the Python model process of {model!r} died; the model is reloading"
