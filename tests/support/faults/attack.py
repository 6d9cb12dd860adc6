"""Inject one fault into a box under load, and measure when right answers come again."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.support.boxes import RunningBox, wait_until
from tests.support.faults import report
from tests.support.faults.boxes import DEADLINE_S, HANG_MARGIN_S
from tests.support.faults.callers import Callers, PingWatcher
from tests.support.faults.inputs import Sample

CALLERS = 8
#: Seconds for a right answer of every model, before the fault and after it.
FIRST_ANSWERS_TIMEOUT_S, RECOVERY_TIMEOUT_S = 120.0, 60.0
QUIET_S = 2.0  # the box has recovered after so long without a failure
#: How often to look for processes that were started while others were being stopped.
STOP_ROUNDS = 5


@dataclass(frozen=True)
class Fault:
    """``inject`` breaks something, mends it if that is part of the fault, and returns."""

    name: str
    #: May return the outcomes of callers of its own.
    inject: Callable[[RunningBox], Counter[str] | None]
    #: Half of the callers send requests for this model only.
    focus: str = ""
    #: How long the fault keeps the box from answering at all.
    seconds: float = 0.0
    #: The kind of box, one of :data:`tests.support.faults.boxes.BOX_KINDS`.
    kind: str = ""
    #: As in :class:`report.Row`.
    recovery_limit_s: float = report.RECOVERY_LIMIT_S
    allowed: frozenset[str] = frozenset()
    #: True if requests wait for what is replaced, so that none may fail.
    unnoticed: bool = False


def attack(
    box: RunningBox, samples: Sequence[Sample], fault: Fault, callers: int = CALLERS, seed: int = 0
) -> report.Row:
    """Inject ``fault`` while ``callers`` check every answer, and return a row of the report."""
    models = {sample.model for sample in samples}
    load = Callers(
        box.port,
        samples,
        callers,
        hang_after_s=DEADLINE_S + fault.seconds + HANG_MARGIN_S,
        focus=fault.focus,
        seed=seed,
    )
    watcher = PingWatcher(box.port).start()
    load.start()
    fault_began = fault_ended = time.monotonic()
    outcomes_of_fault: Counter[str] = Counter()
    errors: tuple[str, ...] = ()
    try:
        wait_until(
            lambda: {reply.model for reply in load.snapshot() if not reply.failed} == models,
            FIRST_ANSWERS_TIMEOUT_S,
            "a right answer of every model",
        )
        fault_began = time.monotonic()
        outcomes_of_fault = fault.inject(box) or Counter()
        fault_ended = time.monotonic()
        wait_for_right_answers(load, models, fault_ended)
    except AssertionError as error:
        errors = (str(error),)
    finally:
        load.stop()
        watcher.stop()
    replies = load.snapshot()
    return report.Row(
        fault.name,
        report.first_error(replies, fault_began),
        None if errors else report.recovery_time(replies, models, fault_ended),
        load.outcomes() + outcomes_of_fault,
        report.summarize_pings(watcher.pings, fault_began),
        (*errors, *load.details),
        fault.recovery_limit_s,
        fault.allowed,
        sum(reply.failed for reply in replies) if fault.unnoticed else None,
        max((reply.ended - reply.started for reply in replies if reply.ended > fault_began), default=0.0),
    )


def wait_for_right_answers(load: Callers, models: set[str], since: float) -> None:
    """Wait until all models answer right and no request has failed for a while, or until the timeout."""
    while time.monotonic() < since + RECOVERY_TIMEOUT_S:
        replies = load.snapshot()
        last_failure = max((reply.ended for reply in replies if reply.failed), default=since)
        quiet = time.monotonic() - max(since, last_failure) > QUIET_S
        if quiet and report.recovery_time(replies, models, since) is not None:
            return
        time.sleep(0.1)


def make_kill(find: Callable[[RunningBox], list[int]]) -> Callable[[RunningBox], None]:
    """Return an action that kills the first process that ``find`` returns."""

    def inject(box: RunningBox) -> None:
        os.kill(require_processes(find(box))[0], signal.SIGKILL)

    return inject


def make_stall(
    find: Callable[[RunningBox], list[int]], seconds: float, every: bool = False
) -> Callable[[RunningBox], None]:
    """Return an action that stops the first process that ``find`` returns, or ``every`` one, for a while."""

    def inject(box: RunningBox) -> None:
        stopped: list[int] = []
        try:
            for _ in range(STOP_ROUNDS):
                found = [pid for pid in require_processes(find(box)) if pid not in stopped]
                for pid in found if every else found[:1]:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGSTOP)
                    stopped.append(pid)
                if not every or not found:
                    break
            time.sleep(seconds)
        finally:
            for pid in stopped:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    return inject


def require_processes(pids: list[int]) -> list[int]:
    assert pids, "the process is not there"
    return pids
