"""When a failed call is sent again: one table, and the crashes after which it is sent no more.

A call may have crashed the process itself. Those that a process had when it crashed are sent one at a time,
while new calls wait: the one under which a process crashes again ends with ``model_crashed``. A call with the
records of several callers is not sent again: its records are, each alone (:mod:`sm.client.batches`).

Nothing else in the box decides it, but for nginx: it gives the request of a worker that died to another one,
unless it may run only once (:mod:`sm.router.once`).
"""

from __future__ import annotations

from enum import Enum

from sm.errors import Interrupted, ModelCrashed, NotReady, Refused, Unavailable
from sm.invocation import Suspicion, Ticket
from sm.model_processes.generations import TRITON_ITSELF, SharedGeneration

#: Seconds that one check keeps new calls waiting, while others are sent alone.
RESERVATION_S = 0.3
#: Crashes of a model's process, and of Triton, under one call after which it is sent no more. Many calls are
#: under way when Triton ends, so the second time all of them are sent alone first.
MAX_MODEL_CRASHES, MAX_TRITON_CRASHES = 2, 3


class Step(Enum):
    """The next step after a call has failed."""

    RAISE = "raise"
    #: Send it as soon as it can be served.
    WAIT = "wait"
    #: Send it once more as soon as it can be served; raise if it may not be sent twice.
    AGAIN = "again"


#: The next step after a failure: the first row that fits. Any other error is the answer.
STEPS: tuple[tuple[type[NotReady], Step], ...] = (
    # The call would wait for something that does not come.
    (Unavailable, Step.RAISE),
    # A process may have begun with it, or the answer may be another call's.
    (Interrupted, Step.AGAIN),
    # Triton had it, and perhaps a step of an ensemble has run.
    (Refused, Step.AGAIN),
    # Nobody had it.
    (NotReady, Step.WAIT),
)


def next_step(failure: NotReady, may_repeat: bool) -> Step:
    """Return what follows a failure of a call that may be sent twice, or not."""
    step = next(step for kind, step in STEPS if isinstance(failure, kind))
    return Step.RAISE if step is Step.AGAIN and not may_repeat else step


class Failures:
    """The failures of one call so far."""

    def __init__(self, shared: SharedGeneration, failure: NotReady, ticket: Ticket | None) -> None:
        self._shared, self._crashes, self._triton_crashes = shared, 0, 0
        #: The model whose calls are sent alone, this one among them; None if it is not suspected.
        self.suspect: str | None = None
        self.add(failure, ticket)

    @classmethod
    def of_batch(cls, shared: SharedGeneration, suspicion: Suspicion) -> Failures:
        """Return what happened to a record's batch, before the record is sent alone."""
        failures = cls(shared, Interrupted("a process died while it had this record among others"), None)
        failures.suspect, failures._crashes, failures._triton_crashes = suspicion
        return failures

    @property
    def suspicion(self) -> Suspicion:
        """The suspicion that the records of a batch take with them."""
        return Suspicion(self.suspect or TRITON_ITSELF, self._crashes, self._triton_crashes)

    def add(self, failure: NotReady, ticket: Ticket | None) -> None:
        """Count a failure. Raises :class:`ModelCrashed` if the call has crashed the model too often."""
        self.last, self._starts = failure, self._shared.triton_starts
        if ticket is None or not isinstance(failure, Interrupted):
            return
        crashed = [model for model, number in ticket.generations if self._shared.crashed(model, number)]
        if not crashed:
            return
        self._crashes += 1
        self.suspect = crashed[0]
        self._shared.reserve(self.suspect, RESERVATION_S)
        if self._crashes >= MAX_MODEL_CRASHES:
            raise ModelCrashed(
                f"the process of the model {self.suspect!r} died twice while it had this request"
            )

    def triton_crashed(self) -> bool:
        """Count the end of a Triton that had the call, once another one serves; True if there was one."""
        starts, self._starts = self._starts, self._shared.triton_starts
        if not isinstance(self.last, Interrupted) or starts == self._starts:
            return False
        self._triton_crashes += 1
        if self._triton_crashes >= MAX_TRITON_CRASHES:
            raise ModelCrashed(f"Triton ended {self._triton_crashes} times while it had this request")
        if self._triton_crashes == MAX_TRITON_CRASHES - 1:
            self.suspect = TRITON_ITSELF
        return True
