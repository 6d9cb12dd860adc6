"""Read about other processes from ``/proc``, and tell the kernel which to kill first.

For a process that has ended the result is empty, no error.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

#: Bytes of a page, the unit of ``/proc/PID/statm``.
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
#: Of the times in ``/proc/PID/stat``.
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def children(pid: int) -> set[int]:
    """Return the children of ``pid``, dead ones included until it waits for them.

    The kernel keeps a list for each thread, and may omit some while others start or end. A kernel that was
    built without the lists shows no children.
    """
    try:
        with os.scandir(f"/proc/{pid}/task") as entries:
            threads = [entry.path for entry in entries]
    except OSError:
        return set()
    return {int(child) for thread in threads for child in _read(f"{thread}/children").split()}


def resident_bytes(pid: int) -> int:
    """Return the bytes of a process in RAM, with those that it shares with others."""
    fields = _read(f"/proc/{pid}/statm").split()
    return int(fields[1]) * PAGE_BYTES if fields else 0


def command_line(pid: int) -> list[str]:
    """Return the arguments that a process was started with; one empty string for a dead one."""
    return _read(f"/proc/{pid}/cmdline").decode(errors="replace").split("\0")


def status_fields(pid: int) -> list[bytes]:
    """Return the fields of ``/proc/PID/stat`` after the name, see proc(5): state, parent and so on."""
    # "7 (a name) Z 1 ...": the name may hold anything, brackets too.
    return _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()


def born(pid: int) -> float:
    """Return when a process was started, on the boot clock, to the tick; 0 if there is no such process."""
    fields = status_fields(pid)
    return int(fields[19]) / TICKS_PER_S if fields else 0.0


def anonymous_bytes(pid: int) -> int:
    """Return the bytes of a process's anonymous memory, without files and shared memory; 0 for a dead one."""
    for line in _read(f"/proc/{pid}/status").splitlines():
        if line.startswith(b"RssAnon:"):
            return int(line.split()[1]) * 1024
    return 0


def set_oom_score(pid: int, score: int) -> None:
    """Make the kernel kill a process sooner when memory runs out, from 0 to 1000. It may have ended."""
    with contextlib.suppress(OSError), Path(f"/proc/{pid}/oom_score_adj").open("w") as file:
        file.write(str(score))


def _read(path: str) -> bytes:
    """Read a small file. There may be hundreds, and a file object for each would take four times as long."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(file, 1 << 16)
    except OSError:
        return b""
    finally:
        os.close(file)
