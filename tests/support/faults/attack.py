"""One fault under load: start the callers, break something, see when the right answers come again."""

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
#: Seconds in which every model must have answered before the fault, and after it.
WARM_TIMEOUT_S, BACK_TIMEOUT_S = 120.0, 60.0
#: Right answers of every model for so long: it is over.
QUIET_S = 2.0
#: Looks for processes that were started while the others were being stopped.
STOP_ROUNDS = 5


@dataclass(frozen=True)
class Fault:
    """``inject`` breaks something, mends it if that is part of the fault, and returns."""

    name: str
    #: May return what callers of its own saw.
    inject: Callable[[RunningBox], Counter[str] | None]
    #: The model that half of the callers ask for alone.
    focus: str = ""
    #: How long ``inject`` keeps the box from answering at all.
    seconds: float = 0.0
    #: The box that it is for, of :data:`tests.support.faults.boxes.KINDS`.
    kind: str = ""
    #: As in :class:`report.Row`.
    back_within_s: float = report.BACK_WITHIN_S
    allowed: frozenset[str] = frozenset()


def attack(
    box: RunningBox, samples: Sequence[Sample], fault: Fault, callers: int = CALLERS, seed: int = 0
) -> report.Row:
    """Inject ``fault`` while ``callers`` check every answer."""
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
    began = ended = time.monotonic()
    seen: Counter[str] = Counter()
    trouble: tuple[str, ...] = ()
    try:
        wait_until(
            lambda: {reply.model for reply in load.snapshot() if not reply.failed} == models,
            WARM_TIMEOUT_S,
            "a right answer of every model",
        )
        began = time.monotonic()
        seen = fault.inject(box) or Counter()
        ended = time.monotonic()
        wait_for_right_answers(load, models, ended)
    except AssertionError as error:
        trouble = (str(error),)
    finally:
        load.stop()
        watcher.stop()
    replies = load.snapshot()
    return report.Row(
        fault.name,
        report.first_error(replies, began),
        None if trouble else report.back_to_right(replies, models, ended),
        load.outcomes() + seen,
        report.summarize_pings(watcher.pings, began),
        (*trouble, *load.details),
        fault.back_within_s,
        fault.allowed,
    )


def wait_for_right_answers(load: Callers, models: set[str], since: float) -> None:
    """Until all is quiet, or it is clear that it will not be."""
    while time.monotonic() < since + BACK_TIMEOUT_S:
        replies = load.snapshot()
        last_failure = max((reply.ended for reply in replies if reply.failed), default=since)
        quiet = time.monotonic() - max(since, last_failure) > QUIET_S
        if quiet and report.back_to_right(replies, models, since) is not None:
            return
        time.sleep(0.1)


def kill(find: Callable[[RunningBox], list[int]]) -> Callable[[RunningBox], None]:
    """An action that kills one process."""

    def inject(box: RunningBox) -> None:
        os.kill(present(find(box))[0], signal.SIGKILL)

    return inject


def stall(
    find: Callable[[RunningBox], list[int]], seconds: float, every: bool = False
) -> Callable[[RunningBox], None]:
    """An action that lets one process, or ``every`` one that is found, stand still for a while."""

    def inject(box: RunningBox) -> None:
        stopped: list[int] = []
        try:
            for _ in range(STOP_ROUNDS):
                found = [pid for pid in present(find(box)) if pid not in stopped]
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


def present(pids: list[int]) -> list[int]:
    assert pids, "the process is not there"
    return pids
