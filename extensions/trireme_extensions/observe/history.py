"""The state of the box every few seconds, for an hour: requests, processes, memory, and what changed.

The control plane keeps it, because workers come and go.
"""

from __future__ import annotations

import os
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import orjson

from sm import __version__, hardware
from sm.control.state import read_state
from sm.metrics.series import read_families
from sm.polling import Poll
from sm.run_state import SHARED_MEMORY, Box
from trireme_extensions.observe.counts import Counts, describe, describe_own, read_contents
from trireme_extensions.observe.served_models import CHANGING, ServedModels, find_gpus

POINT_INTERVAL_S = 5.0
HISTORY_S = 3600.0
MAX_POINTS = int(HISTORY_S / POINT_INTERVAL_S)
#: Points in the table of the last minute: a single point may have no request.
RECENT_POINTS = 12
MAX_EVENTS = 100
#: The state before the first point.
STARTING: dict[str, Any] = {
    "ready": False,
    "reason": "the box is starting",
    "models": [],
    "processes": [],
    "shared_memory": {"used": 0, "size": 0, "free": 0},
    "gpus": [],
}
#: The fields of a process group that are shown as they are.
PROCESS_FIELDS = ("name", "state", "pid", "processes", "stopped", "memory")


class HistoryRecorder:
    """The points, the events and the current state of one box.

    Points are compressed: one with 65 busy models, the most that have their own series, takes about 3 KB.
    """

    def __init__(
        self,
        box: Box,
        clock: Callable[[], float] = time.time,
        captures: bool = False,
        failures: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        self._box, self._clock, self._captures = box, clock, captures
        self._models, self._changes = ServedModels(box, failures), StateChanges()
        #: When a model had its last answer, in seconds since 1970, of those with series of their own.
        self._answered: dict[str, float] = {}
        #: Held while the state is found, and while what was found is read or replaced.
        self._updating, self._lock = threading.Lock(), threading.Lock()
        #: The supervisor's state at the time when the current state was found.
        self._state: dict[str, Any] = {}
        self._contents: dict[str, bytes] = {}
        self._counts: deque[Counts] = deque(maxlen=RECENT_POINTS + 1)
        self._points: deque[tuple[float, bytes]] = deque(maxlen=MAX_POINTS)
        self._events: deque[dict[str, Any]] = deque(maxlen=MAX_EVENTS)
        self._current: dict[str, Any] = {
            "at": round(clock(), 3),
            "version": __version__,
            **STARTING,
            "last_minute": describe(Counts(0.0), Counts(0.0)),
            "own_metrics": [],
        }

    def watch(self) -> None:
        """Start a thread that records a point at each interval."""
        Poll("history", POINT_INTERVAL_S, self.record_point, first_s=0.0).start()

    def record_point(self) -> None:
        """Add a point, and the events since the last one."""
        with self._updating:
            now = self._clock()
            counts = self._read_counts(now)
            before = self._counts[-1].answers if self._counts else {}
            self._answered |= {
                key[0]: now for key, number in counts.answers.items() if number > before.get(key, 0.0)
            }
            memory, shared = self._update(now, read_state(self._box))
            with self._lock:
                if self._counts:
                    point = {
                        **describe(self._counts[-1], counts),
                        "memory": memory,
                        "shared_memory": shared,
                    }
                    self._points.append((now, zlib.compress(orjson.dumps(point))))
                self._counts.append(counts)
                self._current["last_minute"] = describe(self._counts[0], counts)
                self._current["own_metrics"] = describe_own(self._counts[0], counts)

    def _read_counts(self, now: float) -> Counts:
        """Read the workers' series, or take the last ones again while nobody counts."""
        before, self._contents = self._contents, read_contents(self._box.metrics_folder)
        if self._counts and self._contents == before:
            return replace(self._counts[-1], at=now)
        return Counts.from_families(read_families(self._box.metrics_folder), now)

    def _update(self, now: float, state: dict[str, Any]) -> tuple[dict[str, int], int]:
        """Find the current state, and the events since the last one.

        Returns the memory of each group of processes, and the bytes of shared memory.
        """
        groups = find_groups(state, int(self._box.pid_file.read_text()))
        models, is_complete = self._models.find()
        for row in models:
            row["used"] = row["used"] or self._answered.get(row["name"])
        shared, gpus = shared_memory(self._box.id), find_gpus(self._box)
        readiness = _readiness(state)
        events = [*self._changes.compare_box(**readiness), *self._changes.compare_processes(groups)]
        if is_complete:
            events += self._changes.compare_models(models)
        with self._lock:
            self._state = state
            self._events += ({"at": round(now, 3), "text": text} for text in events)
            self._current |= {
                "at": round(now, 3),
                **readiness,
                "models": models,
                "processes": [
                    {name: getattr(group, name) for name in PROCESS_FIELDS}
                    | {"restarts": self._changes.restarts(group)}
                    for group in groups
                ],
                "shared_memory": shared,
                "gpus": gpus,
            }
        return {group.name: group.memory for group in groups}, shared["used"]

    def read(self, since: float) -> bytes:
        """Return JSON: the current state, all events, and the points after ``since`` (Unix time).

        The state is read again if the supervisor has published another one since. Only one caller waits for
        that: the control plane's other threads are for ``/ping``.
        """
        state = read_state(self._box)
        if state != self._state and self._updating.acquire(blocking=False):
            try:
                self._update(self._clock(), state)
            finally:
                self._updating.release()
        with self._lock:
            current = {**self._current, **_readiness(state), "captures": self._captures}
            events = list(self._events)
            points = [point for at, point in self._points if at > since]
        head = orjson.dumps({"interval_seconds": POINT_INTERVAL_S, "box": current, "events": events})
        return head[:-1] + b',"points":[' + b",".join(map(zlib.decompress, points)) + b"]}"


def _readiness(state: Mapping[str, Any]) -> dict[str, Any]:
    return {"ready": bool(state["ready"]), "reason": str(state.get("reason", ""))}


#: States in ``/proc/PID/stat`` of a process that a signal or a debugger has stopped.
STOPPED = (b"T", b"t")
BLOCK_BYTES = 512  # the unit of st_blocks


@dataclass
class ProcessGroup:
    """A child of the supervisor with everything below it."""

    name: str
    state: str
    pid: int | None
    #: The supervisor's count of unexpected exits.
    restarts: int
    #: Bytes of anonymous memory. Shared memory is not counted here, see :func:`shared_memory`.
    memory: int = 0
    #: Direct children: gunicorn's or nginx's workers, Triton's Python models.
    children: frozenset[int] = frozenset()
    processes: int = 0
    #: How many of the processes are stopped.
    stopped: int = 0


def find_groups(state: Mapping[str, Any], supervisor: int) -> list[ProcessGroup]:
    """Find the groups of the children that the supervisor has published, and the supervisor itself."""
    groups = [ProcessGroup("supervisor", "ready", supervisor, 0)]
    for name, child in state.get("processes", {}).items():
        groups.append(ProcessGroup(name, child["state"], child["pid"], child["restarts"]))
    for group in groups:
        if group.pid is not None:
            _measure(group, with_children=group.name != "supervisor")
    return groups


def _measure(group: ProcessGroup, with_children: bool) -> None:
    """Count a group's processes and their memory."""
    assert group.pid is not None
    group.children = frozenset(hardware.children(group.pid)) if with_children else frozenset()
    pids = [group.pid, *(pid for child in group.children for pid in hardware.with_descendants(child))]
    for pid in pids:
        fields = hardware.status_fields(pid)
        if not fields or fields[0] == b"Z":
            continue
        group.processes += 1
        group.stopped += fields[0] in STOPPED
        group.memory += hardware.anonymous_bytes(pid)


def shared_memory(box_id: str, folder: Path = SHARED_MEMORY) -> dict[str, int]:
    """Return the bytes of the box's files in shared memory, and the folder's size and free bytes."""
    used = 0
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.startswith(f"trireme-{box_id}"):
                    with suppress(FileNotFoundError):  # it was removed meanwhile
                        used += entry.stat(follow_symlinks=False).st_blocks * BLOCK_BYTES
        space = os.statvfs(folder)
    except OSError:
        return {"used": 0, "size": 0, "free": 0}
    return {
        "used": used,
        "size": space.f_blocks * space.f_frsize,
        "free": space.f_bavail * space.f_frsize,
    }


#: The groups whose children are gunicorn's workers. nginx and Triton start and end children all the time.
WITH_WORKERS = ("data", "control")


class StateChanges:
    """Compares each state of the box with the last one. The first comparison yields nothing."""

    def __init__(self) -> None:
        self._groups: dict[str, ProcessGroup] = {}
        self._restarts: dict[str, int] = {}
        self._replaced_workers: dict[str, int] = {}
        self._models: dict[str, str] | None = None
        self._ready: bool | None = None

    def restarts(self, group: ProcessGroup) -> int:
        """Return how often a group's process or one of its workers was started again.

        This is the higher of two counts: the supervisor counts unexpected exits only, and this class sees two
        quick ones as one.
        """
        own_restarts = max(group.restarts, self._restarts.get(group.name, 0))
        return own_restarts + self._replaced_workers.get(group.name, 0)

    def compare_box(self, ready: bool, reason: str) -> Iterator[str]:
        """Yield a sentence if the readiness changed."""
        if self._ready is not None and ready != self._ready:
            yield "the box is ready" if ready else f"the box is not ready: {reason}"
        self._ready = ready

    def compare_processes(self, groups: Iterable[ProcessGroup]) -> Iterator[str]:
        """Yield a sentence for each group that was restarted, stopped or lost workers."""
        for group in groups:
            if group.pid is None:
                continue
            before = self._groups.get(group.name)
            self._groups[group.name] = group
            if before is None:
                continue
            if before.pid != group.pid:
                self._restarts[group.name] = self._restarts.get(group.name, 0) + 1
                yield f"{group.name} was started again"
            elif group.name in WITH_WORKERS and (ended := len(before.children - group.children)):
                self._replaced_workers[group.name] = self._replaced_workers.get(group.name, 0) + ended
                yield f"{ended} {'worker' if ended == 1 else 'workers'} of {group.name} ended"
            if group.stopped and not before.stopped:
                yield f"{group.stopped} of {group.processes} processes of {group.name} do not run: stopped"
            elif before.stopped and not group.stopped:
                yield f"all processes of {group.name} run again"

    def compare_models(self, rows: Iterable[Mapping[str, Any]]) -> Iterator[str]:
        """Yield a sentence for each model, or version of one that may be replaced, whose state changed."""
        models = {
            f"{row['name']} {row['revision']}".strip(): row["state"]
            for row in rows
            if row["state"] != CHANGING
        }
        before, self._models = self._models, models
        if before is None:
            return
        for name in sorted(models.keys() | before.keys()):
            if name not in models:
                yield f"the model {name} no longer serves"
            elif before.get(name) != models[name]:
                yield f"the model {name} is {models[name]}"
