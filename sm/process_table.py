"""Read what ``/proc`` tells of other processes. One that has ended has nothing to tell, and is no error."""

from __future__ import annotations

import os

#: Bytes of a page, the unit of ``/proc/PID/statm``.
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def children(pid: int) -> set[int]:
    """The processes that ``pid`` has started, dead ones too until it asks how they ended.

    The kernel keeps a list for each thread, and may leave some out while others come and go. A kernel that
    was built without the lists tells of none.
    """
    try:
        with os.scandir(f"/proc/{pid}/task") as entries:
            threads = [entry.path for entry in entries]
    except OSError:
        return set()
    return {int(child) for thread in threads for child in _read(f"{thread}/children").split()}


def resident_bytes(pid: int) -> int:
    """The memory of a process that is in RAM, what it shares with others included."""
    fields = _read(f"/proc/{pid}/statm").split()
    return int(fields[1]) * PAGE_BYTES if fields else 0


def command_line(pid: int) -> list[str]:
    """The words that a process was started with. Those of a dead one are one empty word."""
    return _read(f"/proc/{pid}/cmdline").decode(errors="replace").split("\0")


def status_fields(pid: int) -> list[bytes]:
    """The fields of ``/proc/PID/stat`` behind the name, see proc(5): state, parent and so on."""
    # "7 (a name) Z 1 ...": the name may hold anything, brackets too.
    return _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()


def anonymous_bytes(pid: int) -> int:
    """The memory that is the process's own: neither files nor what it shares with others. 0 of a dead one."""
    for line in _read(f"/proc/{pid}/status").splitlines():
        if line.startswith(b"RssAnon:"):
            return int(line.split()[1]) * 1024
    return 0


def _read(path: str) -> bytes:
    """A small file. There may be hundreds: a file object for each would take nine system calls and four times
    as long."""
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
