"""Refuse answers that may be another caller's. :mod:`sm.generation` says how they come about."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from functools import partial

from sm.errors import NotReady
from sm.generation import MAX_HEARTBEAT_AGE_S, SharedGeneration
from sm.metrics import MISMATCHED_ANSWERS
from sm.run_state import Box
from sm.triton.stub_processes import instance_is_running

log = logging.getLogger(__name__)

#: Between two looks for the supervisor's next heartbeat.
HEARTBEAT_POLL_S = 0.005
#: How long an answer waits for a heartbeat. The supervisor leaves ten a second.
HEARTBEAT_TIMEOUT_S = 2.0
IN_DOUBT = "a model's process has stalled, its answers may be mixed up; Triton is being started again"
NO_HEARTBEAT = "the box's supervisor does not respond, so the answer cannot be trusted"
MISMATCHED = "the model answered another request; Triton is being started again"


class AnswerGuard:
    """Asked before each call to Triton and before each of its answers is used; one for all threads.

    ``generation`` is None where no supervisor watches, as in a test: then nothing is refused but an answer
    that says itself whose it is. ``is_running`` tells whether a model instance's process is there.
    """

    def __init__(
        self, generation: SharedGeneration | None, is_running: Callable[[str], bool] = lambda _: True
    ) -> None:
        self._generation, self._is_running = generation, is_running

    @classmethod
    def of(cls, box: Box) -> AnswerGuard:
        """The guard of a process of ``box``."""
        if box.generation_file is None:
            return cls(None)
        return cls(SharedGeneration(box.generation_file), partial(instance_is_running, box))

    def admit(self) -> int:
        """The generation that a call begins in. Raises :class:`NotReady` if its answer could not be used."""
        if self._generation is None:
            return 0
        current = self._generation.current
        if self._generation.is_in_doubt(current):
            raise NotReady(IN_DOUBT)
        return current

    def confirm(self, generation: int, identified: bool = False) -> None:
        """Let an answer pass to a call that began in ``generation``. Raises :class:`NotReady` in doubt.

        ``identified``: the model said which request it answers, so no heartbeat need be waited for.
        """
        shared = self._generation
        if shared is None:
            return
        if not identified and shared.is_watched and shared.heartbeat_age() > MAX_HEARTBEAT_AGE_S:
            self._wait_for_heartbeat(shared)
        if shared.is_in_doubt(generation):
            raise NotReady(IN_DOUBT)

    def confirm_delivery(self, generations: Iterable[int]) -> None:
        """Let an answer pass that was made of Triton's in these generations. Raises :class:`NotReady`.

        Again, as a client may have worked on them for long, and a stall may be noticed late.
        """
        shared = self._generation
        if shared is not None and any(map(shared.is_in_doubt, generations)):
            raise NotReady(IN_DOUBT)

    def report_stall(self, generation: int, instance: str) -> None:
        """Triton gave up on the process of a model ``instance`` ("" where it did not say which).

        A process that has died cannot reply late: what to do then is the supervisor's rule for dead ones.
        """
        if self._generation is not None and (not instance or self._is_running(instance)):
            self._put_in_doubt(generation, f"the process of model instance {instance!r} has stalled")

    def report_mismatch(self, generation: int, model: str) -> NotReady:
        """An answer named another request than the one it came for: the error for its caller."""
        MISMATCHED_ANSWERS.inc()
        self._put_in_doubt(generation, f"model {model!r} answered another request than the one it was asked")
        return NotReady(MISMATCHED)

    def _put_in_doubt(self, generation: int, reason: str) -> None:
        shared = self._generation
        if shared is None or not shared.is_in_doubt(generation):
            log.error("%s: no answer of this Triton is delivered any more", reason)
        if shared is not None:
            shared.put_in_doubt(generation)

    @staticmethod
    def _wait_for_heartbeat(shared: SharedGeneration) -> None:
        end = time.monotonic() + HEARTBEAT_TIMEOUT_S
        while shared.heartbeat_age() > MAX_HEARTBEAT_AGE_S:
            if time.monotonic() > end:
                raise NotReady(NO_HEARTBEAT)
            time.sleep(HEARTBEAT_POLL_S)
