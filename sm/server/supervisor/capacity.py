"""Work out from memory and descriptors how many callers nginx takes at once."""

from __future__ import annotations

import contextlib
import os
import resource
from dataclasses import dataclass, replace
from pathlib import Path

from sm.errors import StartError
from sm.settings import Settings

#: Bytes of a body that nginx keeps in memory, as large as the platform's largest outside of batch transform:
#: spooling a 400 KB picture to a file costs 0.9 ms.
BODY_BUFFER = 25 * 2**20
#: Connections of one process of nginx. Beyond, its tables only cost memory.
MAX_CONNECTIONS = 8192
#: Descriptors without which the box does not start.
MIN_FILES = 96
#: Descriptors that a worker and Triton have open when idle, with some to spare.
WORKER_FILES, TRITON_FILES = 48, 80
#: What each thread of a worker adds to both: a caller's connection, and Triton's HTTP and gRPC.
THREAD_FILES, TRITON_THREAD_FILES = 3, 2
#: Bytes. Bodies from here on are counted while nginx receives them; see ``nginx.conf``.
MEDIUM_BODY, LARGE_BODY = 100_000, 1_000_000
#: Of the memory there is, the part that bodies being received may take, half of it for each of the two sizes.
BODY_MEMORY_SHARE = 1 / 8
#: Least and most bodies of a size that are received at once.
MEDIUM_BODIES, LARGE_BODIES = (64, 4096), (16, 512)
#: The memory limit of the container's control group, in its second form and in its first.
MEMORY_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


@dataclass(frozen=True)
class Capacity:
    """What nginx is told. A body counts as medium or large until its request is answered."""

    connections: int
    in_flight: int
    medium_bodies: int
    large_bodies: int


def capacity(settings: Settings, memory: int, files: int) -> Capacity:
    """The limits for a machine with ``memory`` bytes and a process with ``files`` descriptors."""
    # Each takes two descriptors, its caller's and the one behind: half is left to callers that get 429.
    in_flight = min(requests_wanted(settings), files // 4)
    share = memory * BODY_MEMORY_SHARE / 2
    return Capacity(
        connections=min(MAX_CONNECTIONS, files),
        in_flight=in_flight,
        medium_bodies=in_flight + clamp(share / LARGE_BODY, *MEDIUM_BODIES),
        large_bodies=in_flight + clamp(share / body_buffer(settings), *LARGE_BODIES),
    )


def fit_to_descriptors(settings: Settings, files: int) -> Settings:
    """The settings with as many threads as a process with ``files`` descriptors can serve.

    Raises:
        StartError: There are too few for the box to work at all.
    """
    if files < MIN_FILES:
        raise StartError(
            f"A process may open {files} files (ulimit -n), and the box needs {MIN_FILES}: allow more, as "
            "with docker run --ulimit nofile=1024."
        )
    of_worker = (files - WORKER_FILES) // THREAD_FILES
    of_triton = (files - TRITON_FILES) // (TRITON_THREAD_FILES * settings.worker_count)
    return replace(settings, threads=max(1, min(settings.threads, of_worker, of_triton)))


def describe_limits(asked: Settings, fitted: Settings, limits: Capacity, files: int) -> tuple[str, str]:
    """Level and text of the line that says at start what the box takes at once."""
    text = (
        f"at once: {limits.in_flight} requests, {fitted.threads} threads in each of {fitted.worker_count} "
        f"workers, {limits.connections} connections of each nginx process, {limits.medium_bodies} bodies of "
        f"100 KB and {limits.large_bodies} of 1 MB and more; a process may open {files} files"
    )
    if fitted.threads < asked.threads or limits.in_flight < requests_wanted(asked):
        return "warning", f"{text}, too few for the requests and threads that are set (ulimit -n)"
    return "info", text


def requests_wanted(settings: Settings) -> int:
    """Requests in the workers' hands and in the queue, by the settings alone."""
    return min(65535, settings.worker_count * settings.request_threads + settings.queue)


def body_buffer(settings: Settings) -> int:
    """Bytes of a body that nginx keeps in memory; what is larger goes to a file."""
    return max(1024, min(BODY_BUFFER, settings.max_body))


def memory_limit(limits: tuple[Path, ...] = MEMORY_LIMITS) -> int:
    """Bytes that the box may use: the machine's, or less where its control group says so."""
    found = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for path in limits:
        # "max" where there is no limit.
        with contextlib.suppress(OSError, ValueError):
            found = min(found, int(path.read_text()))
    return found


def descriptor_limit() -> int:
    """Files that a process of the box may have open; children have the same limit."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def clamp(value: float, least: int, most: int) -> int:
    """The integer below ``value`` that is within the bounds."""
    return max(least, min(most, int(value)))
