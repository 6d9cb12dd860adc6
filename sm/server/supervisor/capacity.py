"""Compute from memory and descriptors how many callers nginx serves at once."""

from __future__ import annotations

import resource
from dataclasses import dataclass, replace

from sm.errors import StartError
from sm.settings import Settings

#: Bytes of a body that nginx keeps in memory: the platform's limit outside of batch transform. Writing a 400
#: KB picture to a file costs 0.9 ms.
BODY_BUFFER_BYTES = 25 * 2**20
#: Connections of one nginx process. More would only enlarge its tables.
MAX_CONNECTIONS = 8192
#: Descriptors below which the box does not start.
MIN_FILES = 96
#: Descriptors that an idle worker and an idle Triton have open, with some to spare.
WORKER_FILES, TRITON_FILES = 48, 80
#: What each request adds: its caller's connection; and, while it is served, Triton's HTTP and gRPC, on both
#: sides.
REQUEST_FILES, TRITON_REQUEST_FILES = 1, 2
#: Requests that the workers have not read yet. A worker rejects or queues each within milliseconds, so a
#: flood of requests for one model does not shut out the others.
MAX_UNREAD_REQUESTS = 512
#: Bytes from which nginx counts a body as large, not medium; see ``nginx.conf``.
LARGE_BODY_BYTES = 1_000_000
#: The share of memory for bodies that are being received, half of it for each of the two sizes.
BODY_MEMORY_SHARE = 1 / 8
#: The lowest and the highest number of bodies of each size that are received at once.
MEDIUM_BODIES, LARGE_BODIES = (64, 4096), (16, 512)


@dataclass(frozen=True)
class Capacity:
    """The limits for nginx. A body counts as medium or large until its request is answered."""

    connections: int
    in_flight: int
    medium_bodies: int
    large_bodies: int


def capacity(settings: Settings, memory: int, files: int) -> Capacity:
    """Compute the limits for a machine with ``memory`` bytes and a process with ``files`` descriptors."""
    # Each request takes two descriptors, the caller's and the worker's. Half of all is left for callers that
    # get 429.
    in_flight = min(requests_in_workers(settings) + MAX_UNREAD_REQUESTS, files // 4)
    # nginx holds the bodies of the unread requests too; their number is bounded by their bytes.
    concurrent_requests = min(in_flight, settings.worker_count * settings.max_invocations)
    share = memory * BODY_MEMORY_SHARE / 2
    return Capacity(
        connections=min(MAX_CONNECTIONS, files),
        in_flight=in_flight,
        medium_bodies=concurrent_requests + clamp(share / LARGE_BODY_BYTES, *MEDIUM_BODIES),
        large_bodies=concurrent_requests + clamp(share / body_buffer(settings), *LARGE_BODIES),
    )


def fit_to_descriptors(settings: Settings, files: int) -> Settings:
    """Return the settings with the threads and the queue that ``files`` descriptors of a process allow.

    Raises:
        StartError: There are too few for the box to work at all.
    """
    if files < MIN_FILES:
        raise StartError(
            f"A process may open {files} files (ulimit -n), and the box needs {MIN_FILES}: allow more, as "
            "with docker run --ulimit nofile=1024."
        )
    worker_threads = (files - WORKER_FILES) // (4 * REQUEST_FILES + 2 * TRITON_REQUEST_FILES)
    triton_threads = (files - TRITON_FILES) // (2 * TRITON_REQUEST_FILES * settings.worker_count)
    threads = max(1, min(settings.threads, worker_threads, triton_threads))
    spare = files - WORKER_FILES - threads * (4 * REQUEST_FILES + 2 * TRITON_REQUEST_FILES)
    return replace(settings, threads=threads, queue=max(0, min(settings.queue, spare // REQUEST_FILES)))


def describe_limits(requested: Settings, fitted: Settings, limits: Capacity, files: int) -> tuple[str, str]:
    """Return level and text of the log line about the limits."""
    text = (
        f"at once: {limits.in_flight} requests, {fitted.threads} threads for a model and "
        f"{fitted.max_invocations} invocations in each of {fitted.worker_count} workers, "
        f"{limits.connections} connections of each nginx process, {limits.medium_bodies} bodies of "
        f"100 KB and {limits.large_bodies} of 1 MB and more; a process may open {files} files"
    )
    is_reduced = (fitted.threads, fitted.queue) < (requested.threads, requested.queue)
    if is_reduced or limits.in_flight < requests_in_workers(requested):
        return "warning", f"{text}, too few for the requests and threads that are set (ulimit -n)"
    return "info", text


def requests_in_workers(settings: Settings) -> int:
    """Return how many requests the workers hold at most, by the settings alone."""
    return min(65535, settings.worker_count * settings.max_threads)


def body_buffer(settings: Settings) -> int:
    """Return the bytes of a body that nginx keeps in memory; a larger one goes to a file."""
    return max(1024, min(BODY_BUFFER_BYTES, settings.max_body))


def descriptor_limit() -> int:
    """Return how many files a process of the box may open; children have the same limit."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def clamp(value: float, low: int, high: int) -> int:
    """Return the largest integer up to ``value`` within the bounds."""
    return max(low, min(high, int(value)))
