"""Admit invocations fairly: each model has a queue of its own and a bounded share of a worker's threads.

The rules are a dynamic threshold and a longest-queue drop, as network switches share a buffer among ports:

- A model uses at most ``share`` slots, and never more slots than are free. So a model alone gets its
  whole share, several models get equal parts, and stalled models leave a slot for others.
- A model that uses no slot gets one at once.
- Every waiting request is in its model's queue. A slot that becomes free goes to the model that uses the
  fewest slots; among equals, to the one whose last turn is longest ago.
- If the queues are full, the newest request of the longest queue is refused (429).
- A request that would have to wait for longer than it has time is refused at once. The wait is estimated from
  the requests before it and the mean time of the model's last requests. A model whose time is not known yet
  refuses none for it.
"""

from __future__ import annotations

import math
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

from sm import metrics
from sm.errors import DeadlinePassed, Overloaded
from sm.invocation import Invocation, held_lock, wait

#: How much the last request's time counts in the mean: after 8 requests, a change is known by two thirds.
NEWEST_SHARE = 1 / 8
#: A wait is taken for this much longer than the estimate: the requests before may be slower than the mean.
WAIT_MARGIN = 1.25
#: A request whose turn comes is refused if it has less left than this many mean times.
TURN_MARGIN = 1.1
#: Models whose time is remembered.
MAX_MODELS = 1024

Outcome = Literal["waiting", "admitted", "refused", "late"]


@dataclass(slots=True, eq=False)
class _Waiter:
    """A request in a queue. ``decided`` is released when ``outcome`` is no longer ``waiting``."""

    #: The request's deadline, in seconds of the monotonic clock.
    until: float
    outcome: Outcome = "waiting"
    decided: threading.Lock = field(default_factory=held_lock)

    def decide(self, outcome: Outcome) -> None:
        self.outcome = outcome
        self.decided.release()


@dataclass(slots=True, eq=False)
class _Model:
    """A model's requests: how many are served, and those that wait."""

    name: str
    served: int = 0
    queue: deque[_Waiter] = field(default_factory=deque)
    #: The decaying mean of the seconds that a request is served; 0 if it is not known.
    seconds: float = 0.0

    def wait_before(self, position: int) -> float:
        """Estimate the seconds until the request at this position of the queue is served."""
        return self.seconds * position / max(1, self.served)


class FairGate:
    """Decides when an invocation may be served. All threads of a worker share one gate.

    Args:
        share: Slots that one model may use at once. All models together have twice as many, and each model
            that uses none may take one more.
        room: Invocations of all models that may wait. Served and waiting invocations together are at most
            twice ``share`` plus ``room``.
    """

    def __init__(self, share: int, room: int) -> None:
        self._share, self._slots = share, 2 * share
        self._room, self._capacity = room, self._slots + room
        self._lock = threading.Lock()
        #: Models with requests; and models with a queue, the one whose last turn is longest ago first. Read
        #: without the lock it may be out of date.
        self._models: dict[str, _Model] = {}
        self.waiting: OrderedDict[str, _Model] = OrderedDict()
        #: Places in use, and requests that are served or wait.
        self._slots_in_use = self._requests = 0

    def enter(self, name: str, invocation: Invocation | None = None) -> None:
        """Take a slot for a request, after its turn in the model's queue.

        Args:
            name: The model.
            invocation: The request's; None if nobody can leave.

        Raises:
            Overloaded: No further request of this model can wait.
            DeadlinePassed, CallerGone: The invocation ended while it waited.
        """
        with self._lock:
            model = self._models.get(name)
            if model is None:
                model = self._add_model(name)
            is_served = not model.queue and self._may_serve(model)
            if not is_served:
                if len(model.queue) >= self._room:
                    raise self._refuse(model)
                waiter = _Waiter(math.inf if invocation is None else invocation.at)
                turn = time.monotonic() + WAIT_MARGIN * model.wait_before(len(model.queue) + 1)
                late_by = turn + model.seconds - waiter.until if model.seconds else 0.0
                if late_by > 0:
                    raise self._refuse(model, late_by)
            # Last: nobody loses a place to a request that is refused itself.
            if self._requests >= self._capacity and not self._make_room(model):
                raise self._refuse(model)
            if is_served:
                self._requests += 1
                self._serve(model)
                return
            model.queue.append(waiter)
            self.waiting.setdefault(name, model)
            self._requests += 1
        metrics.waiting(name).inc()
        try:
            with metrics.stage(name, metrics.QUEUE):
                self._wait(model, waiter, invocation)
        finally:
            metrics.waiting(name).inc(-1.0)

    def leave(self, name: str, seconds: float = 0.0) -> None:
        """Give back a request's slot, which it had for so many ``seconds``."""
        with self._lock:
            model = self._models[name]
            self._requests -= 1
            if seconds:
                model.seconds += (seconds - model.seconds) * (NEWEST_SHARE if model.seconds else 1.0)
            self._release(model)

    def _wait(self, model: _Model, waiter: _Waiter, invocation: Invocation | None) -> None:
        """Wait until the request is admitted or refused; leave the queue if its deadline passes first."""
        try:
            wait(partial(waiter.decided.acquire, True), invocation)
        except BaseException as error:
            with self._lock:
                if waiter.outcome == "waiting":
                    model.queue.remove(waiter)
                    self._after_queue_change(model)
                    self._requests -= 1
                elif waiter.outcome == "admitted":
                    self._requests -= 1
                    self._release(model)
            if isinstance(error, DeadlinePassed) and model.seconds:
                # It did not get to its model, so it may come again when fewer wait.
                raise self._refuse(model, model.wait_before(len(model.queue) + 1)) from None
            raise
        if waiter.outcome == "refused":
            raise self._refuse(model)
        if waiter.outcome == "late":
            raise self._refuse(model, model.seconds)

    def _may_serve(self, model: _Model) -> bool:
        return model.served == 0 or model.served < min(self._share, self._slots - self._slots_in_use)

    def _add_model(self, name: str) -> _Model:
        """Add a model. What is known of others is dropped if callers sent very many names."""
        if len(self._models) >= MAX_MODELS:
            self._models = {
                known: model for known, model in self._models.items() if model.served or model.queue
            }
        model = self._models[name] = _Model(name)
        return model

    def _serve(self, model: _Model) -> None:
        model.served += 1
        self._slots_in_use += 1
        metrics.served(model.name).inc()

    def _release(self, model: _Model) -> None:
        model.served -= 1
        self._slots_in_use -= 1
        metrics.served(model.name).inc(-1.0)
        if self.waiting:
            self._admit_waiting()

    def _admit_waiting(self) -> None:
        """Give free slots to the requests whose turn it is."""
        while self.waiting:
            model = min(self.waiting.values(), key=lambda waiting_model: waiting_model.served)
            if not self._may_serve(model):
                return
            waiter = model.queue.popleft()
            self.waiting.move_to_end(model.name)
            self._after_queue_change(model)
            if waiter.until - time.monotonic() < TURN_MARGIN * model.seconds:
                # The model became slower while the request waited.
                self._requests -= 1
                waiter.decide("late")
                continue
            self._serve(model)
            waiter.decide("admitted")

    def _make_room(self, arriving: _Model) -> bool:
        """Refuse the newest request of the longest queue, if that is longer than the arriving request's."""
        longest = max(self.waiting.values(), key=lambda waiting_model: len(waiting_model.queue), default=None)
        if longest is None or len(longest.queue) <= len(arriving.queue):
            return False
        longest.queue.pop().decide("refused")
        self._requests -= 1
        self._after_queue_change(longest)
        return True

    def _after_queue_change(self, model: _Model) -> None:
        if not model.queue:
            self.waiting.pop(model.name, None)

    @staticmethod
    def _refuse(model: _Model, late_by: float = 0.0) -> Overloaded:
        """Return the error for a request that is not admitted; ``late_by``: seconds that it lacks."""
        metrics.rejected(model.name).inc()
        if late_by:
            sentence = f"the requests for {model.name!r} that are waiting take longer than this one has time"
        else:
            sentence = f"more requests for {model.name!r} are waiting than there is room for"
        error = Overloaded(sentence, model=model.name)
        error.retry_after = max(1, math.ceil(late_by or model.wait_before(1)))
        return error


@dataclass(slots=True, eq=False)
class Admission:
    """The slot of one request. Without a gate no slot is needed: something else limits the request."""

    _gate: FairGate | None
    _model: str = ""
    _since: float = 0.0

    def enter(self, model: str, invocation: Invocation | None = None) -> None:
        """Take a slot of ``model`` and return any other; see :meth:`FairGate.enter`."""
        if self._gate is None or model == self._model:
            return
        if self._model:
            self.leave()
        self._gate.enter(model, invocation)
        self._model, self._since = model, time.monotonic()

    def leave(self) -> None:
        """Give back the slot, if there is one."""
        model, self._model = self._model, ""
        if self._gate is not None and model:
            self._gate.leave(model, time.monotonic() - self._since)

    @contextmanager
    def waiting(self, model: str, invocation: Invocation) -> Iterator[None]:
        """Take a slot of ``model`` before it can serve. The model's times begin when the block ends."""
        self.enter(model, invocation)
        try:
            yield
        finally:
            self._since = time.monotonic()
