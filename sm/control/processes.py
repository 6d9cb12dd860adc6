"""The processes of the box with their memory, and what changed: restarts, stops, loads and unloads."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sm import hardware
from sm.run_state import SHARED_MEMORY

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


def find(state: Mapping[str, Any], supervisor: int) -> list[ProcessGroup]:
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
                    used += _allocated(entry)
        space = os.statvfs(folder)
    except OSError:
        return {"used": 0, "size": 0, "free": 0}
    return {
        "used": used,
        "size": space.f_blocks * space.f_frsize,
        "free": space.f_bavail * space.f_frsize,
    }


def _allocated(entry: os.DirEntry[str]) -> int:
    try:
        return entry.stat(follow_symlinks=False).st_blocks * BLOCK_BYTES
    except OSError:  # removed meanwhile
        return 0


#: The groups whose children are gunicorn's workers. nginx and Triton start and end children all the time.
WITH_WORKERS = ("data", "control")


class Changes:
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
        """Yield a sentence for each model whose state changed."""
        models = {row["name"]: row["state"] for row in rows}
        before, self._models = self._models, models
        if before is None:
            return
        for name in sorted(models.keys() | before.keys()):
            if name not in models:
                yield f"the model {name} was unloaded"
            elif before.get(name) != models[name]:
                yield f"the model {name} is {models[name]}"
