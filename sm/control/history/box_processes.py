"""The processes of the box with their memory, as the kernel and the supervisor see them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
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
    pids = [group.pid, *(pid for child in group.children for pid in _with_descendants(child))]
    for pid in pids:
        fields = hardware.status_fields(pid)
        if not fields or fields[0] == b"Z":
            continue
        group.processes += 1
        group.stopped += fields[0] in STOPPED
        group.memory += hardware.anonymous_bytes(pid)


def _with_descendants(pid: int) -> Iterator[int]:
    yield pid
    for child in hardware.children(pid):
        yield from _with_descendants(child)


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
