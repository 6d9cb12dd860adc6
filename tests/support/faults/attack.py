"""Start a box that is attacked, inject one fault under load, and measure when right answers come again."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sm.run_state import SHARED_MEMORY
from sm.settings import Settings
from tests.support.boxes import RunningBox, command_line, descendants, running_box, wait_until
from tests.support.faults.callers import HANG, PARTLY_RIGHT, RIGHT, WRONG, Callers, Reply
from tests.support.faults.inputs import (
    DEMO_MODELS,
    Sample,
    demo_samples,
    echo_samples,
    v2_numbers,
    with_golden_answers,
)
from tests.support.tritons import MODELS
from trireme_tools.prepare.demo import prepare

#: A plain python model. Unlike the box's own runner, it has no protection against mixed-up answers.
ECHO, PAIR = "echo", "pair"
#: Seconds that an invocation may take, and how much longer a caller waits until it counts a hang.
DEADLINE_S, HANG_MARGIN_S = 30, 10.0
#: The box's restart limit, above the number of faults that it gets.
RESTARTS = 1000
CALLERS = 8
#: Seconds for a right answer of every model, before the fault and after it.
FIRST_ANSWERS_TIMEOUT_S, RECOVERY_TIMEOUT_S = 120.0, 60.0
QUIET_S = 2.0  # the box has recovered after so long without a failure
#: How often to look for processes that were started while others were being stopped.
STOP_ROUNDS = 5
#: Outcomes that callers may see during a fault.
EXPECTED = {RIGHT, PARTLY_RIGHT, "503", "429", "504"}

Find = Callable[[RunningBox], list[int]]


def make_repository(folder: Path) -> Path:
    """Write a repository with the three demo models and :data:`ECHO`."""
    settings = Settings.read({})
    prepare(settings)
    repository = folder / "repository"
    MODELS[ECHO].write(repository / ECHO)
    for model in DEMO_MODELS:
        (repository / model).symlink_to(settings.cache / "repository" / "cpu" / model)
    return repository


def make_small_repository(folder: Path) -> Path:
    """Write a repository with :data:`ECHO`, and the same model with two instances as :data:`PAIR`."""
    repository = folder / "model"
    for name in (ECHO, PAIR):
        MODELS[ECHO].write(repository / name)
    config = repository / PAIR / "config.pbtxt"
    config.write_text(config.read_text() + "instance_group [{count: 2, kind: KIND_CPU}]\n")
    return repository


@contextmanager
def attacked_box(folder: Path, repository: Path) -> Iterator[RunningBox]:
    """Run a box with a high restart limit until the block ends.

    Raises:
        AssertionError: The box left a process or a file in shared memory behind.
    """
    options: Any = {"TRIREME_RESTARTS": str(RESTARTS), "SAGEMAKER_MODEL_SERVER_TIMEOUT": str(DEADLINE_S)}
    with running_box(folder, repository, clients=(), **options) as box:
        yield box
        processes, identity = all_processes(box), box.box_id()
    wait_until(lambda: not any(map(command_line, processes)), description="the end of every process")
    leftovers = [path.name for path in SHARED_MEMORY.glob(f"*{identity}*")]
    assert not leftovers, f"left in {SHARED_MEMORY}: {leftovers}"


def learn_samples(box: RunningBox) -> list[Sample]:
    """Return the samples with golden answers, which an idle box gives."""
    return with_golden_answers([*demo_samples(), *echo_samples(ECHO)], box.port)


def small_samples(box: RunningBox) -> list[Sample]:
    """Return the samples of the small models, with golden answers."""
    numbers = [v2_numbers(name, [1000.0 * number, 1.0]) for name in (ECHO, PAIR) for number in range(1, 33)]
    return with_golden_answers(numbers, box.port)


def masters(box: RunningBox, words: str) -> list[int]:
    """Return the processes with ``words`` in their command line that no other such process started."""
    pids = box.pids(words)
    return [pid for pid in pids if not any(pid in descendants(other) for other in pids if other != pid)]


def workers(box: RunningBox, words: str) -> list[int]:
    """Return the processes with ``words`` in their command line that another such process started."""
    return [pid for pid in box.pids(words) if pid not in masters(box, words)]


def triton(box: RunningBox) -> list[int]:
    return box.pids("tritonserver --")


def model_pids(box: RunningBox, model: str = "") -> list[int]:
    """Return the python backend's processes, of one model or of all."""
    found = box.pids("triton_python_backend_stub")
    return [pid for pid in found if f"/{model}/" in command_line(pid)] if model else found


def watchdog(box: RunningBox) -> list[int]:
    """Return the watchdog, which cleans up after a killed supervisor."""
    return [pid for pid in box.pids("/serve") if "sm.server." not in command_line(pid)]


def all_processes(box: RunningBox) -> list[int]:
    """Return all processes, the supervisor first: stopped first, it does not see the others stop."""
    return [box.process.pid, *descendants(box.process.pid)]


@dataclass(frozen=True)
class Fault:
    """``inject`` breaks something, mends it if that is part of the fault, and returns."""

    name: str
    inject: Callable[[RunningBox], object]
    #: Half of the callers send requests for this model only.
    focus: str = ""
    #: How long the fault keeps the box from answering at all.
    seconds: float = 0.0
    #: Outcomes besides :data:`EXPECTED` that callers may see.
    allowed: frozenset[str] = frozenset()
    #: True if requests wait for what is replaced, so that none may fail.
    unnoticed: bool = False


@dataclass(frozen=True)
class Result:
    """What a fault did to the callers. ``recovery_s``: from its end to right answers again; None: never."""

    fault: Fault
    outcomes: Counter[str]
    recovery_s: float | None
    failures: int
    details: tuple[str, ...]

    def misses(self) -> list[str]:
        """Return a sentence for each goal that is missed."""
        missed = {*self.outcomes} - EXPECTED - self.fault.allowed
        if self.recovery_s is None:
            missed.add("right answers did not come again")
        if self.fault.unnoticed and self.failures:
            missed.add(f"{self.failures} requests failed")
        return sorted(missed)

    @property
    def is_sound(self) -> bool:
        """True if nobody got another caller's answer or none, and right answers came again."""
        return not (self.outcomes[WRONG] or self.outcomes[HANG]) and self.recovery_s is not None


def attack(box: RunningBox, samples: Sequence[Sample], fault: Fault) -> Result:
    """Inject ``fault`` while callers check every answer."""
    models = {sample.model for sample in samples}
    hang_after_s = DEADLINE_S + fault.seconds + HANG_MARGIN_S
    load = Callers(box.port, samples, CALLERS, hang_after_s, fault.focus).start()
    errors: list[str] = []
    ended = time.monotonic()
    try:
        wait_until(
            lambda: {reply.model for reply in load.snapshot() if not reply.failed} == models,
            FIRST_ANSWERS_TIMEOUT_S,
            "a right answer of every model",
        )
        fault.inject(box)
        ended = time.monotonic()
        while time.monotonic() < ended + RECOVERY_TIMEOUT_S and not has_recovered(load, models, ended):
            time.sleep(0.1)
    except AssertionError as error:
        errors.append(str(error))
    finally:
        load.stop()
    replies = load.snapshot()
    recovery_s = None if errors else recovery_time(replies, models, ended)
    failures = sum(reply.failed for reply in replies)
    return Result(fault, load.outcomes(), recovery_s, failures, (*errors, *load.details))


def has_recovered(load: Callers, models: set[str], since: float) -> bool:
    replies = load.snapshot()
    last_failure = max((reply.ended for reply in replies if reply.failed), default=since)
    quiet = time.monotonic() - max(since, last_failure) > QUIET_S
    return quiet and recovery_time(replies, models, since) is not None


def recovery_time(replies: Sequence[Reply], models: set[str], since: float) -> float | None:
    """Return the seconds from ``since``, the fault's end, until all of ``models`` answer right for good.

    A model has recovered with the first right answer to a request that was sent after its last failure.
    """
    recovered = [since]
    for model in models:
        of_model = [reply for reply in replies if reply.model == model]
        failure = max(since, *(reply.ended for reply in of_model if reply.failed), since)
        after = [reply.ended for reply in of_model if not reply.failed and reply.started >= failure]
        if not after:
            return None
        recovered.append(min(after) if failure > since else since)
    return max(recovered) - since


def make_kill(find: Find) -> Callable[[RunningBox], None]:
    """Return an action that kills the first process that ``find`` returns."""
    return lambda box: os.kill(require_processes(find(box))[0], signal.SIGKILL)


def make_stall(find: Find, seconds: float, every: bool = False) -> Callable[[RunningBox], None]:
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
