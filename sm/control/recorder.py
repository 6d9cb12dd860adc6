"""Record the state of the box every few seconds, and keep an hour of it.

The control plane keeps it, because workers come and go.
"""

from __future__ import annotations

import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import orjson

from sm import __version__
from sm.control import processes
from sm.control.processes import Changes
from sm.control.series import Counts, describe, read_contents, read_families
from sm.control.state import ServedModels, read_state
from sm.polling import Poll
from sm.run_state import Box

POINT_INTERVAL_S = 5.0
HISTORY_S = 3600.0
MAX_POINTS = int(HISTORY_S / POINT_INTERVAL_S)
#: Points in the table of the last minute: a single point may have no request.
RECENT_POINTS = 12
MAX_EVENTS = 100


class Recorder:
    """The points, the events and the current state of one box.

    Points are compressed: one with 65 busy models, the most that have their own series, takes about 3 KB.
    """

    def __init__(self, box: Box, clock: Callable[[], float] = time.time, captures: bool = False) -> None:
        self._box, self._clock, self._captures = box, clock, captures
        self._models, self._changes = ServedModels(box), Changes()
        #: Held while the state is found, and while what was found is read or replaced.
        self._updating, self._lock = threading.Lock(), threading.Lock()
        #: What the supervisor had published when the current state was found.
        self._state: dict[str, Any] = {}
        self._contents: dict[str, bytes] = {}
        self._counts: deque[Counts] = deque(maxlen=RECENT_POINTS + 1)
        self._points: deque[tuple[float, bytes]] = deque(maxlen=MAX_POINTS)
        self._events: deque[dict[str, Any]] = deque(maxlen=MAX_EVENTS)
        self._current: dict[str, Any] = _describe_start(clock())

    def watch(self) -> None:
        """Start a thread that records a point at each interval."""
        Poll("history", POINT_INTERVAL_S, self.record_point, at_once=True).start()

    def record_point(self) -> None:
        """Add a point, and the events since the last one."""
        with self._updating:
            now = self._clock()
            counts = self._read_counts(now)
            memory, shared_memory = self._update(now, read_state(self._box))
            with self._lock:
                if self._counts:
                    point = {
                        **describe(self._counts[-1], counts),
                        "memory": memory,
                        "shared_memory": shared_memory,
                    }
                    self._points.append((now, zlib.compress(orjson.dumps(point))))
                self._counts.append(counts)
                self._current["last_minute"] = describe(self._counts[0], counts)

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
        groups = processes.find(state, int((self._box.run / "supervisor.pid").read_text()))
        models, is_complete = self._models.find()
        shared = processes.shared_memory(self._box.id)
        readiness = _readiness(state)
        events = [*self._changes.compare_box(**readiness), *self._changes.compare_processes(groups)]
        if is_complete:
            events += self._changes.compare_models(models)
        with self._lock:
            self._state = state
            self._events += ({"at": round(now, 3), "text": text} for text in events)
            self._current = {
                "at": round(now, 3),
                "version": __version__,
                **readiness,
                "models": models,
                "processes": [
                    {
                        "name": group.name,
                        "state": group.state,
                        "pid": group.pid,
                        "processes": group.processes,
                        "stopped": group.stopped,
                        "restarts": self._changes.restarts(group),
                        "memory": group.memory,
                    }
                    for group in groups
                ],
                "shared_memory": shared,
                "last_minute": self._current["last_minute"],
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

    @property
    def size(self) -> int:
        """Bytes of the points."""
        with self._lock:
            return sum(len(point) for _, point in self._points)


def _readiness(state: Mapping[str, Any]) -> dict[str, Any]:
    return {"ready": bool(state["ready"]), "reason": str(state.get("reason", ""))}


def _describe_start(now: float) -> dict[str, Any]:
    """Return the current state before the first point."""
    return {
        "at": round(now, 3),
        "version": __version__,
        "ready": False,
        "reason": "the box is starting",
        "models": [],
        "processes": [],
        "shared_memory": {"used": 0, "size": 0, "free": 0},
        "last_minute": describe(Counts(now), Counts(now)),
    }
