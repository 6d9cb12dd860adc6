"""Send calls to Triton; wait for the next Triton, or for a model's next process, and send a call again.

A part that died is back within seconds, and a caller's deadline is a minute. So a call that finds its Triton
or its model's process gone, in doubt or being loaded waits, and is sent once more. It keeps its slot, so
admission bounds how many wait.

What follows a failure is decided in :mod:`sm.triton.retries`.
"""

from __future__ import annotations

import fcntl
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

from sm.errors import DeadlinePassed, Interrupted, ModelCrashed, NotReady, Unavailable
from sm.invocation import Invocation, Ticket, wait
from sm.metrics import MODELS, REPEATS
from sm.model_processes.answer_guard import AnswerGuard
from sm.model_processes.generations import SERVES, STOPPED, TRITON_ITSELF, now, slot
from sm.model_processes.python_models import PythonModels
from sm.polling import POLL_S, poll_until
from sm.run_state import Box
from sm.triton import server
from sm.triton.retries import RESERVATION_S, Failures, Step, next_step
from sm.triton.sequence_ids import id_types

#: Seconds after which a call is sent although an instance is still missing, if another one serves.
INSTANCE_WAIT_S = 5.0
#: The stage of an invocation in which it waits.
WAIT = "wait"

Answer = TypeVar("Answer")


class Calls:
    """The calls of a process to Triton, again where needed. All its threads share one object.

    Args:
        guard: Admits the calls.
        has_state: Returns True if a model keeps state between calls. Its calls are not sent twice.
        seconds: Longest wait of a request, all its waits together; 0 for none.
        folder: For the locks of the calls that are sent alone.
        loaded: The folder of the models that the box has loaded on demand; None if it loads none.
        sequence_id_types: Returns the datatypes in which the models that a call reaches take a sequence's id.
    """

    def __init__(
        self,
        guard: AnswerGuard,
        has_state: Callable[[str], bool] = lambda _: False,
        seconds: float = 0.0,
        folder: Path = Path(),
        loaded: Path | None = None,
        sequence_id_types: Callable[[str], frozenset[str]] = lambda _: frozenset(),
    ) -> None:
        self.guard, self._shared, self.has_state = guard, guard.shared, has_state
        self._seconds, self._folder, self._loaded = seconds, folder, loaded
        self.sequence_id_types = sequence_id_types

    @classmethod
    def of(cls, box: Box, seconds: float) -> Calls:
        """Create those of a process of ``box``."""
        models = PythonModels(box)
        # Without a supervisor nothing comes back, and no call is sent again.
        waits = seconds if box.generation_file else 0.0
        loaded = box.served if box.catalog else None
        last_end = partial(server.last_end, box.http_port, keys=box.http_keys)
        guard = AnswerGuard.of(box, models, last_end)
        return cls(
            guard,
            lambda model: models.of(model).has_state,
            waits,
            box.alone_folder,
            loaded,
            lambda model: id_types(models.of(model).stateful),
        )

    def comes_again(self, model: str, version: str = "") -> bool:
        """True if a restarted Triton could not load a model that it should know; it will be loaded again."""
        return self._loaded is not None and (self._loaded / model / version).is_dir()

    def may_make_again(self, invocation: Invocation) -> bool:
        """True if the client may run again, because its result was made from answers that are in doubt."""
        models = {model for ticket in invocation.tickets for model, _ in ticket.generations}
        step = self._step(Interrupted(""), invocation, models)
        # The client may have changed its session already.
        return bool(models) and invocation.session is None and step is Step.AGAIN

    def _step(self, failure: NotReady, invocation: Invocation | None, models: Iterable[str]) -> Step:
        """Return what follows the failure of a call of these models."""
        if invocation is None or not self._seconds:
            return Step.RAISE
        return next_step(failure, invocation.repeatable and not any(map(self.has_state, models)))

    def run(self, model: str, send: Callable[[Ticket], Answer], invocation: Invocation | None) -> Answer:
        """Return what ``send`` returns; call it again if it raises :class:`NotReady`.

        Args:
            model: The model that is called.
            send: Sends the call. It raises :class:`Interrupted` if a process may have begun with it, and
                :class:`Refused` if Triton answered that it did not begin.
            invocation: The one that makes the call; without one nothing is sent again.

        Raises:
            DeadlinePassed, CallerGone: The invocation ended during the wait.
            ModelCrashed: The call crashes its model.
            NotReady: The call cannot be repeated, or what it waits for did not come.
        """
        if invocation is not None and invocation.suspicion is not None and self._seconds:
            # One of the records that a process had when it died.
            failures = Failures.of_batch(self._shared, invocation.suspicion)
            if failures.suspect in (TRITON_ITSELF, *self.guard.python_models(model)):
                return self._repeat(model, send, failures, invocation)
        ticket: Ticket | None = None
        try:
            ticket = self.guard.admit(model)
            return send(ticket)
        except NotReady as error:
            if invocation is None or not self._seconds:
                raise
            failure = error.with_traceback(None)  # it refers to the call's memory
        return self._repeat(model, send, Failures(self._shared, failure, ticket), invocation)

    def check(self, ticket: Ticket, invocation: Invocation | None) -> None:
        """Called while a call waits for Triton: give it up if its answer would be refused.

        Raises:
            Interrupted: It would, and the call may be repeated.
        """
        if invocation is None or not self._seconds:
            return
        if ticket.alone is not None:
            self._shared.reserve(ticket.alone, RESERVATION_S)
        if invocation.repeatable:
            self.guard.confirm_delivery((ticket,))

    def _repeat(
        self, model: str, send: Callable[[Ticket], Answer], failures: Failures, invocation: Invocation
    ) -> Answer:
        while True:
            if self._step(failures.last, invocation, (model,)) is Step.RAISE:
                # Final for the whole request: what it would do again may not be done twice.
                raise Unavailable(failures.last.sentence)
            if failures.suspect is not None and invocation.is_batch:
                invocation.suspicion = failures.suspicion
                raise ModelCrashed("a process died while it had several records; each is sent alone")
            with self._turn(failures.suspect) as take_turn:
                ticket = self._wait(model, failures, invocation, take_turn)
                if failures.triton_crashed():
                    continue  # perhaps alone
                if isinstance(failures.last, Interrupted):
                    invocation.repeats += 1
                    REPEATS.labels(MODELS.of(model)).inc()
                try:
                    return send(ticket)
                except NotReady as error:
                    failures.add(error.with_traceback(None), ticket)

    def _wait(
        self, model: str, failures: Failures, invocation: Invocation, take_turn: Callable[[], bool]
    ) -> Ticket:
        """Wait until a call of the model may be sent."""
        began, sentence = time.monotonic(), failures.last.sentence
        before = invocation.spent_waiting

        def check() -> None:
            if self._shared.triton == STOPPED:
                raise Unavailable(f"the box is stopping: {sentence}")
            spent = max(before + time.monotonic() - began, invocation.spent_waiting)
            invocation.spent_waiting = spent
            if spent > self._seconds:
                raise Unavailable(f"{sentence}; this has lasted for more than {self._seconds:g} s")

        def admit() -> Ticket | None:
            nonlocal sentence
            check()
            if time.monotonic() < began + POLL_S:  # what is gone may not have been noticed yet
                return None
            if self._shared.triton != SERVES or not take_turn():
                return None
            try:
                ticket = self.guard.admit(model, failures.suspect)
            except Unavailable:
                raise
            except NotReady as error:
                sentence = error.sentence
                return None
            return None if any(self._is_being_replaced(each) for each, _ in ticket.generations) else ticket

        try:
            ticket = wait(partial(poll_until, admit), invocation)
        except DeadlinePassed:
            raise DeadlinePassed(f"the invocation's time ended during a wait: {sentence}") from None
        invocation.stages[WAIT] = invocation.stages.get(WAIT, 0.0) + time.monotonic() - began
        return ticket

    def _is_being_replaced(self, model: str) -> bool:
        since = self._shared.out_since(model)
        return bool(since) and now() - since < INSTANCE_WAIT_S

    @contextmanager
    def _turn(self, suspect: str | None) -> Iterator[Callable[[], bool]]:
        """Yield a function that returns True when it is this call's turn to be sent alone.

        Only one call of the box has the lock; the kernel releases that of a process that ends.
        """
        if suspect is None:
            yield lambda: True
            return
        self._folder.mkdir(exist_ok=True)
        with (self._folder / str(slot(suspect))).open("w") as file:

            def take() -> bool:
                self._shared.reserve(suspect, RESERVATION_S)
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    return False
                return True

            yield take
