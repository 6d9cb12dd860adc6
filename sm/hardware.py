"""This machine: its GPUs and TensorRT library, the memory that the box may use, and its processes."""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import itertools
import math
import os
import re
import signal
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

QUERY = ("nvidia-smi", "--query-gpu=name,compute_cap", "--format=csv,noheader")
#: Seconds. A faulty driver may hang, and a failing start must report within five.
QUERY_TIMEOUT_S = 3
#: Folders of NVIDIA's image and of Debian packages with the library that Triton loads.
LIBRARY_FOLDERS = (
    Path("/opt/tritonserver/backends/tensorrt"),
    Path("/usr/lib/x86_64-linux-gnu"),
    Path("/usr/lib/aarch64-linux-gnu"),
    Path("/usr/local/tensorrt/lib"),
)
#: Device files of a GPU: NVIDIA's driver, WSL, Jetson.
DEVICES, DEVICE_NAMES = Path("/dev"), ("nvidia[0-9]*", "dxg", "nvhost-gpu")
#: ``libnvinfer.so.10.13.3``; the links to it have fewer numbers.
LIBRARY = re.compile(r"^libnvinfer\.so\.(\d+\.\d+(?:\.\d+)*)$")
IMAGE_VERSION = re.compile(r"(\d+(?:\.\d+){2,3})(?![\d.])")
#: Names of a control group's files, version 2 and version 1: limit, use, counter of killed processes.
LIMIT_FILES = ("memory.max", "memory.limit_in_bytes")
USE_FILES = ("memory.current", "memory.usage_in_bytes")
KILL_FILES = ("memory.events", "memory.oom_control")
#: Members of ``memory.stat``, version 1 first: files in the page cache, which the kernel drops when it must.
CACHED_FILES = (("total_active_file", "total_inactive_file"), ("active_file", "inactive_file"))


@dataclass(frozen=True)
class Gpu:
    """One GPU, as its driver names it; ``compute_capability`` such as ``8.6``."""

    name: str
    compute_capability: str


@dataclass(frozen=True)
class Hardware:
    """The GPUs of this machine and its TensorRT version; ``tensorrt`` is None if no library was found."""

    gpus: tuple[Gpu, ...]
    tensorrt: str | None

    @classmethod
    def find(cls) -> Hardware:
        """Query the driver and search for the library; a machine may have neither."""
        return cls(gpus(), tensorrt())

    @property
    def capabilities(self) -> tuple[str, ...]:
        """Return the distinct compute capabilities, in order."""
        return tuple(sorted({gpu.compute_capability for gpu in self.gpus}))


def version_numbers(version: str) -> tuple[int, ...]:
    """Return a version's numbers, up to the first part that is not a number."""
    return tuple(map(int, itertools.takewhile(str.isdigit, version.split("."))))


def gpus() -> tuple[Gpu, ...]:
    """Return the GPUs that this process may use, as the driver lists them."""
    try:
        process = subprocess.run(QUERY, capture_output=True, text=True, check=False, timeout=QUERY_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired):
        return ()
    if process.returncode:
        return ()
    rows = (line.rpartition(",") for line in process.stdout.splitlines())
    return tuple(
        Gpu(name.strip(), capability.strip()) for name, comma, capability in rows if comma and name.strip()
    )


def has_gpu(devices: Path = DEVICES) -> bool:
    """True if there is a device file of a GPU. The file exists even if the driver's program hangs.

    If in doubt, the answer is True: Triton reports what is wrong with the GPU.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and (not visible or visible.startswith("-")):
        return False
    return any(path for name in DEVICE_NAMES for path in devices.glob(name)) or bool(gpus())


def tensorrt() -> str | None:
    """Return the version of the TensorRT library that Triton would load, else of the Python package.

    The library's name has three numbers of four. NVIDIA's image says all in ``TRT_VERSION``
    (``8.6.1.2+cuda12.0.1.011``), which counts if the library is the image's.
    """
    said = IMAGE_VERSION.match(os.environ.get("TRT_VERSION", ""))
    of_image = said[1] if said else None
    paths = filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(":"))
    for folder in (*map(Path, paths), *LIBRARY_FOLDERS):
        for path in sorted(folder.glob("libnvinfer.so.*"), key=lambda path: len(path.name), reverse=True):
            if match := LIBRARY.match(path.name):
                library = match[1]
                return of_image if of_image and f"{of_image}.".startswith(f"{library}.") else library
    if of_image:
        return of_image
    try:
        return importlib.metadata.version("tensorrt")
    except importlib.metadata.PackageNotFoundError:
        return None


def memory_limit(groups: Sequence[Path] | None = None) -> int:
    """Return the bytes that the box may use: the machine's, or its control group's limit if that is less."""
    limits = (_limit(group) for group in (control_groups() if groups is None else groups))
    return min((_machine_bytes(), *(limit for limit in limits if limit is not None)))


def free_memory(groups: Sequence[Path] | None = None) -> int:
    """Return the bytes that the box may still take, on the machine and in its control groups."""
    available = _numbers(Path("/proc/meminfo")).get("MemAvailable:", 0) * 1024
    free = [available or _machine_bytes()]
    for group in control_groups() if groups is None else groups:
        limit, used = _limit(group), next(filter(None, (_number(group / name) for name in USE_FILES)), None)
        if limit is not None and used is not None and limit < _machine_bytes():
            statistics = _numbers(group / "memory.stat")
            names = next((names for names in CACHED_FILES if names[0] in statistics), ())
            free.append(limit - used + sum(statistics.get(name, 0) for name in names))
    return max(0, min(free))


def memory_kills(groups: Sequence[Path] | None = None) -> int:
    """Return how many processes of this control group the kernel killed for memory; 0 without a counter."""
    counters = (
        group / name for group in (control_groups() if groups is None else groups) for name in KILL_FILES
    )
    counts = (_numbers(counter).get("oom_kill") for counter in counters)
    return next((count for count in counts if count is not None), 0)


def cores(groups: Sequence[Path] | None = None) -> int:
    """Return the processors that the box may use: by affinity, and by the least quota of its control groups.

    A part of a processor counts as one, as for Go's and Java's runtimes.
    """
    quotas = map(_cpu_quota, control_groups("cpu") if groups is None else groups)
    limits = (math.ceil(quota) for quota in quotas if quota is not None)
    return max(1, min((len(os.sched_getaffinity(0)), *limits)))


def _cpu_quota(group: Path) -> float | None:
    """Return how many processors a control group may use; None without a limit ("max"; in version 1, -1)."""
    with contextlib.suppress(OSError, ValueError):
        files = [group / "cpu.max"]
        if not files[0].is_file():
            files = [group / "cpu.cfs_quota_us", group / "cpu.cfs_period_us"]
        quota, period = map(int, " ".join(file.read_text() for file in files).split())
        return quota / period if quota > 0 and period > 0 else None
    return None


@functools.cache
def control_groups(
    controller: str = "memory",
    membership: Path = Path("/proc/self/cgroup"),
    root: Path = Path("/sys/fs/cgroup"),
) -> tuple[Path, ...]:
    """Return the folders of this process's control group for a resource, and of those around it.

    Its own comes first.

    In a container the kernel often shows the group at the root, whatever its path is called outside.
    """
    groups: list[Path] = []
    with contextlib.suppress(OSError):
        for line in membership.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and controller not in controllers.split(","):
                continue
            base = root / controller if controllers else root
            names = Path(path).parts[1:]
            groups += (base.joinpath(*names[:count]) for count in range(len(names), -1, -1))
    groups += (root, root / controller)
    return tuple(dict.fromkeys(group for group in groups if any(group.glob(f"{controller}.*"))))


def _machine_bytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _limit(group: Path) -> int | None:
    return next(filter(None, (_number(group / name) for name in LIMIT_FILES)), None)


def _number(file: Path) -> int | None:
    """Read a file of one number; None if there is none, or if it says "max"."""
    text = _read(str(file)).strip()
    return int(text) if text.isdigit() else None


def _numbers(file: Path) -> dict[str, int]:
    """Read lines of a name and a number."""
    rows = (line.split() for line in _read(str(file)).decode(errors="replace").splitlines())
    return {row[0]: int(row[1]) for row in rows if len(row) > 1 and row[1].isdecimal()}


# Processes, read from /proc: for one that has ended the result is empty, no error.

#: Bytes of a page, the unit of ``/proc/PID/statm``.
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
#: The unit of the times in ``/proc/PID/stat``.
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


#: Parents whose children are known.
MAX_KNOWN_PARENTS = 256
#: The children of each parent, and the machine's newest process when they were read.
_children: dict[int, tuple[bytes, frozenset[int]]] = {}


def children(pid: int) -> set[int]:
    """Return the children of ``pid``, dead ones included until it waits for them.

    The kernel keeps a list for each thread, and may omit some while others start or end. A kernel that was
    built without the lists shows no children. Triton has hundreds of threads, so the lists are read again
    only if a process was started meanwhile, or one of the children is gone.
    """
    newest, tasks = _newest_process()
    known = _children.get(pid)
    if known and known[0] == newest and all(Path(f"/proc/{child}").exists() for child in known[1]):
        return set(known[1])
    found = _read_children(pid)
    if newest.strip(b"0") and (newest, tasks) == _newest_process():
        if len(_children) >= MAX_KNOWN_PARENTS:
            _children.clear()
        _children[pid] = newest, frozenset(found)
    return found


def _newest_process() -> tuple[bytes, bytes]:
    """Return the id of the process or thread that was started last, and the number of all.

    The id is 0 where the kernel does not say it.
    """
    fields = _read("/proc/loadavg").split()
    return (fields[4], fields[3].partition(b"/")[2]) if len(fields) > 4 else (b"0", b"")


def _read_children(pid: int) -> set[int]:
    try:
        with os.scandir(f"/proc/{pid}/task") as entries:
            threads = [entry.path for entry in entries]
    except OSError:
        return set()
    return {int(child) for thread in threads for child in _read(f"{thread}/children").split()}


def with_descendants(pid: int) -> Iterator[int]:
    """Yield a process and all below it."""
    yield pid
    for child in children(pid):
        yield from with_descendants(child)


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


#: The reason for a SIGKILL that no process of the box sent.
OOM_KILLED = (
    ", killed by the kernel because memory ran out (give the container more, as with --memory, or let it "
    "serve fewer models, or with fewer SAGEMAKER_MODEL_SERVER_WORKERS)"
)


def describe_exit(status: int) -> str:
    """Describe in words how a process ended: its exit code, or minus the signal that killed it."""
    return f"exit code {status}" if status >= 0 else f"signal {-status} ({signal.Signals(-status).name})"


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
