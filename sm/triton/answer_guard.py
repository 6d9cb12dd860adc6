"""Refuse answers that may be another caller's. :mod:`sm.generation` explains how Triton mixes up answers."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from functools import partial

from sm.errors import NotReady
from sm.generation import MAX_HEARTBEAT_AGE_S, SharedGeneration
from sm.metrics import DOUBTED_ANSWERS, MISMATCHED_ANSWERS
from sm.run_state import Box
from sm.triton.stub_processes import instance_is_running

log = logging.getLogger(__name__)

#: Seconds between two checks for the supervisor's next heartbeat.
HEARTBEAT_POLL_S = 0.005
#: Seconds that an answer waits for a heartbeat. The supervisor writes ten a second.
HEARTBEAT_TIMEOUT_S = 2.0
IN_DOUBT = "a model's process has stalled, its answers may be mixed up; Triton is being started again"
NO_HEARTBEAT = "the box's supervisor does not respond, so the answer cannot be trusted"
MISMATCHED = "the model answered another request; Triton is being started again"


class AnswerGuard:
    """Checked before each call to Triton and before each answer is used; one guard serves all threads.

    Args:
        generation: Shared with the supervisor. None if there is no supervisor, as in a test: then only
            answers that name another request are refused.
        is_running: Returns True if the process of a model instance is alive.
    """

    def __init__(
        self, generation: SharedGeneration | None, is_running: Callable[[str], bool] = lambda _: True
    ) -> None:
        self._generation, self._is_running = generation, is_running

    @classmethod
    def of(cls, box: Box) -> AnswerGuard:
        """Create the guard for a process of ``box``."""
        if box.generation_file is None:
            return cls(None)
        return cls(SharedGeneration(box.generation_file), partial(instance_is_running, box))

    def admit(self) -> int:
        """Return the generation in which a call begins.

        Raises:
            NotReady: The answers of this generation are in doubt.
        """
        if self._generation is None:
            return 0
        current = self._generation.current
        if self._generation.is_in_doubt(current):
            raise NotReady(IN_DOUBT)
        return current

    def confirm(self, generation: int, identified: bool = False) -> None:
        """Accept an answer to a call.

        Args:
            generation: In which the call began.
            identified: True if the answer names its request, so that no heartbeat is needed.

        Raises:
            NotReady: The answer may be another request's.
        """
        shared = self._generation
        if shared is None:
            return
        if not identified and shared.is_watched and shared.heartbeat_age() > MAX_HEARTBEAT_AGE_S:
            self._wait_for_heartbeat(shared)
        if shared.is_in_doubt(generation):
            DOUBTED_ANSWERS.inc()
            raise NotReady(IN_DOUBT)

    def confirm_delivery(self, generations: Iterable[int]) -> None:
        """Accept a result that a client made from Triton's answers in these generations.

        Each of those answers was confirmed before. A stall may be noticed later, while the client works.

        Raises:
            NotReady: One of the answers may be another request's.
        """
        shared = self._generation
        if shared is not None and any(map(shared.is_in_doubt, generations)):
            DOUBTED_ANSWERS.inc()
            raise NotReady(IN_DOUBT)

    def report_stall(self, generation: int, instance: str) -> None:
        """Report that Triton gave up on the process of a model ``instance`` ("" if it did not name one).

        A dead process is not reported: it cannot answer late, and the supervisor handles it.
        """
        if self._generation is not None and (not instance or self._is_running(instance)):
            self._put_in_doubt(generation, f"the process of model instance {instance!r} has stalled")

    def report_mismatch(self, generation: int, model: str) -> NotReady:
        """Report an answer that names another request; return the error for its caller."""
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
