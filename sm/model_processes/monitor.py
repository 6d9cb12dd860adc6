"""The supervisor's rules for models' processes: which are dead or stopped, which are killed, what is out."""

from __future__ import annotations

import contextlib
import mmap
import os
import signal
import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sm.hardware import OOM_KILLED
from sm.model_processes.generations import NO_PROCESS, REPORTED, UNSTABLE, SharedGeneration, now
from sm.model_processes.reports import EndedGeneration
from sm.model_processes.search import DEAD, STOPPED, ModelProcess, ModelProcesses
from sm.polling import SLOW_WATCH_S, WATCH_S
from sm.run_state import SHARED_MEMORY

#: Seconds that a process may be stopped. Triton gives up on it after 0.7 s at the earliest, and may mix up
#: answers from then on (see sm.model_processes.generations). This leaves time for one more poll.
STOPPED_GRACE_S = 0.3
#: Seconds that a process may be dead: Triton itself has waited for one that it ended by then.
DEAD_GRACE_S = 0.4
#: A model whose processes crash this often within so many seconds refuses calls until it has run for so long.
MAX_CRASHES, CRASH_WINDOW_S, CALM_S = 5, 60.0, 10.0


#: Times that others must change a byte before it is taken for a health byte.
TRUSTED_CHANGES = 4
#: Bytes before Triton's objects in shared memory: a count of references, and room.
OBJECT_HEADER_SIZE = 16
#: Among a process's arguments: the name of its shared memory, and where the object with the health byte is.
MEMORY_NAME, CONTROL_OFFSET = 2, 7


@dataclass
class Instance:
    """The process of an instance, as the monitor judges it."""

    process: ModelProcess
    #: When it was first seen stopped or dead; None while it runs.
    since: float | None = None
    #: True if it was dead before the model was taken out.
    crashed: bool = False
    reported: bool = False
    #: The page of its shared memory with its health byte, and where that is; None if it cannot be mapped.
    health: tuple[mmap.mmap, int] | None = None
    #: The byte's last value, and how often others changed it.
    last_health: int = 1
    changes: int = 0

    @property
    def model(self) -> str:
        return self.process.model

    @property
    def born(self) -> float:
        return self.process.born


class ModelProcessMonitor:
    """Judges the processes of one Triton's Python models.

    Args:
        processes: Finds them.
        shared: The models' generations. That of a model whose process is gone ends here.
        oom_killed: True if the kernel killed a process because memory ran out; reports each kill once.
        is_served: True if Triton says that it serves a model; None if it does not answer. Bounded in time.
    """

    def __init__(
        self,
        processes: ModelProcesses,
        shared: SharedGeneration,
        oom_killed: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
        is_served: Callable[[str], bool | None] = lambda _: False,
    ) -> None:
        self._processes, self._shared, self._clock = processes, shared, clock
        self._oom_killed, self._is_served = oom_killed, is_served
        self._instances: dict[int, Instance] = {}
        self._next_search, self._next_question = 0.0, 0.0
        #: True once Triton's memory was seen to look as it is known to.
        self._keeps_healthy = False
        #: The times of each model's crashes, and when each model that refuses calls began to run.
        self._crashes: defaultdict[str, deque[float]] = defaultdict(lambda: deque(maxlen=MAX_CRASHES))
        self._unstable: dict[str, float] = {}
        #: The models of which the last poll found a report that had not come.
        self._undecided: set[str] = set()

    @property
    def has_instances(self) -> bool:
        """True if there are processes of Python models."""
        return bool(self._instances)

    def forget_times(self) -> None:
        """Count no time in which the whole box stood still."""
        for instance in self._instances.values():
            instance.since = None

    def keep_healthy(self) -> bool:
        """Tell Triton that its processes live, in the place of those that are stopped or get no time.

        Returns True if one of them has had a request since the last call.

        Triton clears a process's health byte with each request, the process sets it every 0.3 s, and Triton
        gives up on a process whose byte is still clear after a second. The byte's place is the one of
        ``IPCControlShm`` in Triton's python backend. Nothing is written before a byte there was seen to
        behave so.
        """
        had_request = False
        for instance in self._instances.values():
            if instance.health is None:
                continue
            memory, at = instance.health
            value = memory[at]
            had_request |= not value
            if value > 1:
                instance.health = None
            elif self._keeps_healthy:
                memory[at] = 1
            elif value != instance.last_health:
                instance.last_health, instance.changes = value, instance.changes + 1
                self._keeps_healthy = instance.changes >= TRUSTED_CHANGES
        return had_request

    def poll(self) -> list[str]:
        """Take out the models whose process has died or is stopped; return a sentence for each.

        A stopped process may answer late. It is killed, unless Triton is told that it lives.
        """
        some_are_out = any(map(self._shared.out_since, self._processes.models))
        if some_are_out or self._clock() >= self._next_search:
            # Triton has some 170 threads, each with a list of children. While a model is out there are new
            # ones, and when it is back the one that came with it.
            self._next_search = 0.0 if some_are_out else self._clock() + SLOW_WATCH_S
            self._search()
        self._admit_calm()
        self._decide_lost_reports()
        return [
            sentence
            for pid, instance in list(self._instances.items())
            if (sentence := self._check(pid, instance))
        ]

    def decide(self, report: EndedGeneration) -> str:
        """Kill the processes whose answers a worker doubts, and take their model out.

        Returns a sentence if they had died by themselves.
        """
        self._search()
        model, shared = report.model, self._shared
        # Younger ones belong to the next load.
        before = shared.out_since(model) or now()
        suspects = {
            pid: instance
            for pid, instance in self._instances.items()
            if instance.model == model and instance.born <= before
        }
        named = {
            pid: instance
            for pid, instance in suspects.items()
            if report.instance in instance.process.arguments
        }
        alive = [pid for pid in named or suspects if self._processes.state(pid) not in (DEAD, None)]
        for pid in alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            self._instances[pid].reported = True
        for instance in () if alive else (named or suspects).values():
            instance.crashed = True
        is_new_crash = not alive and not shared.out_since(model)
        shared.decide(model, report.number, crashed=not alive)
        if is_new_crash:
            self._count_crash(model)
        shared.refuse(model, self._refusal(model))
        return self._describe_death(model, is_new=True) if is_new_crash else ""

    def _decide_lost_reports(self) -> None:
        """Decide about generations that a worker has ended, but of which its report never came."""
        reported = {model for model in self._processes.models if self._shared.refusal(model) == REPORTED}
        for model in reported & self._undecided:
            self.decide(EndedGeneration(model, self._shared.number(model) - 1))
        self._undecided = reported

    def _admit_calm(self) -> None:
        for model, since in list(self._unstable.items()):
            if self._shared.out_since(model):
                self._unstable[model] = self._clock()
            elif self._clock() - since >= CALM_S:
                del self._unstable[model]
                self._shared.refuse(model, 0)

    def _search(self) -> None:
        self._processes.search()
        for process in self._processes.serving:
            if process.pid not in self._instances and not process.ending:
                self._instances[process.pid] = Instance(process, health=_map_health(process.arguments))

    def _check(self, pid: int, instance: Instance) -> str:
        state = self._processes.state(pid)
        if state is None:
            return self._handle_absence(pid, instance)
        is_kept = self._keeps_healthy and instance.health is not None
        if state != DEAD and (is_kept or state not in STOPPED):
            instance.since = None
            return ""
        if instance.reported:
            return ""
        if instance.since is None:
            instance.since = self._clock()
            instance.crashed = state == DEAD and not self._shared.out_since(instance.model)
        seconds = self._clock() - instance.since
        if state in STOPPED and seconds >= STOPPED_GRACE_S:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            is_new = self._take_out(instance)
            return f"a Python model process of {instance.model!r} stalled and is killed" if is_new else ""
        # A worker that takes a model out kills its processes.
        killed = instance.born <= self._shared.out_since(instance.model)
        if state == DEAD and (killed or seconds >= DEAD_GRACE_S):
            return self._describe_death(instance.model, self._take_out(instance))
        return ""

    def _handle_absence(self, pid: int, instance: Instance) -> str:
        """Find out why Triton has waited for a process.

        It does so for one that it ended. Triton 2.71 also does so for one that died, when somebody asks
        whether its model is ready; it goes on saying that it serves the model.
        """
        # A worker may have noticed the death first. Then Triton waits for the process as the model is loaded
        # again, perhaps between two polls.
        since = self._shared.out_since(instance.model), self._shared.loaded_since(instance.model)
        if instance.reported or since[0] or instance.born <= since[1]:
            del self._instances[pid]
            return "" if instance.reported else self._describe_death(instance.model, is_new=False)
        if self._clock() < self._next_question:
            return ""
        is_served = self._is_served(instance.model)
        if is_served is None:
            self._next_question = self._clock() + WATCH_S
            return ""
        del self._instances[pid]
        self._search()
        is_replaced = any(
            (other.model, other.process.instance) == (instance.model, instance.process.instance)
            and other.born > instance.born
            for other in self._instances.values()
        )
        if not is_served or is_replaced:
            return ""
        instance.crashed = True
        return self._describe_death(instance.model, self._take_out(instance))

    def _describe_death(self, model: str, is_new: bool) -> str:
        """Return a sentence, unless a worker took the model out and memory did not run out."""
        cause = OOM_KILLED if self._oom_killed() else ""
        if is_new and model in self._unstable:
            cause += f", {MAX_CRASHES} times within a minute: calls get 503 until it has run for {CALM_S:g} s"
        return f"a Python model process of {model!r} died{cause}" if is_new or cause else ""

    def _take_out(self, instance: Instance) -> bool:
        """Take the model out; False if a worker did, or if the process did not serve it."""
        instance.reported = True
        is_new = self._shared.take_out(instance.model, instance.born, instance.crashed)
        if is_new and instance.crashed:
            self._count_crash(instance.model)
        if refusal := self._refusal(instance.model):
            self._shared.refuse(instance.model, refusal)
        return is_new

    def _count_crash(self, model: str) -> None:
        crashes = self._crashes[model]
        crashes.append(self._clock())
        if len(crashes) == MAX_CRASHES and crashes[-1] - crashes[0] < CRASH_WINDOW_S:
            self._unstable[model] = self._clock()

    def _refusal(self, model: str) -> int:
        """Return why calls of a model must be refused: it is out, and none of its processes serves."""
        loaded, out = self._shared.loaded_since(model), self._shared.out_since(model)
        serving = (
            instance.model == model
            and loaded < instance.born <= out
            and not instance.reported
            and not instance.crashed
            for instance in self._instances.values()
        )
        if not out or (any(serving) and model not in self._unstable):
            return 0
        return UNSTABLE if model in self._unstable else NO_PROCESS


def _map_health(arguments: Sequence[str]) -> tuple[mmap.mmap, int] | None:
    """Map the health byte of a process with these arguments."""
    try:
        at = int(arguments[CONTROL_OFFSET]) + OBJECT_HEADER_SIZE
        path = SHARED_MEMORY / arguments[MEMORY_NAME]
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except (OSError, ValueError, IndexError):
        return None
    try:
        return (mmap.mmap(descriptor, mmap.PAGESIZE), at) if 0 <= at < mmap.PAGESIZE else None
    except (OSError, ValueError):
        return None
    finally:
        os.close(descriptor)
