"""The router's Prometheus series. Workers write memory-mapped files; the control plane adds them up.

The supervisor sets ``PROMETHEUS_MULTIPROC_DIR`` before a worker starts: prometheus_client reads it
when it is imported. Without it (a test, a tool) the series live in the process alone.
"""

from __future__ import annotations

import logging
import os
import struct
import threading
import time
from bisect import bisect_left
from functools import lru_cache
from pathlib import Path
from typing import Any

from prometheus_client import Counter, Gauge, Histogram, values
from prometheus_client.mmap_dict import MmapedDict

log = logging.getLogger(__name__)


class Process:
    """This process's id, without asking the kernel for it with every count as prometheus_client does."""

    def __init__(self) -> None:
        self.renew()
        os.register_at_fork(after_in_child=self.renew)

    def renew(self) -> None:
        self.id = os.getpid()


PROCESS = Process()
LOCK = threading.Lock()
#: A value and the time it was set, as prometheus_client's files have them.
PAIR = struct.Struct("dd")
Mapped: Any = values.MultiProcessValue(lambda: PROCESS.id)  # type: ignore[no-untyped-call]


class Value(Mapped):  # type: ignore[misc]
    """A number in this process's file, whose place there is looked up once and not with every count."""

    _found_by = 0

    def inc(self, amount: float) -> None:
        if self._found_by != PROCESS.id:
            super().inc(0)  # opens files of this process's own, if it was forked
            self._place = self._file._positions[self._key]
            self._found_by = PROCESS.id
        with LOCK:
            self._value += amount
            PAIR.pack_into(self._file._m, self._place, self._value, 0.0)


if "PROMETHEUS_MULTIPROC_DIR" in os.environ:
    values.ValueClass = Value

#: Seconds; from a cached label look-up to the invocation's 60 s.
BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)

INVOCATIONS = Counter("trireme_invocations_total", "Answers by model and status.", ["model", "status"])
SECONDS = Histogram("trireme_invocation_seconds", "Time in the router.", ["model"], buckets=BUCKETS)
STAGE_SECONDS = Histogram(
    "trireme_stage_seconds", "Time per stage of a client.", ["client", "stage"], buckets=BUCKETS
)
IN_FLIGHT = Gauge("trireme_in_flight", "Invocations being worked on.", multiprocess_mode="livesum")
TENSORS = Counter(
    "trireme_tensor_requests_total", "Requests to Triton by how their tensors travelled.", ["transport"]
)
MISMATCHED_ANSWERS = Counter(
    "trireme_mismatched_answers_total", "Answers of models that were another request's; none was delivered."
)
SHARED_BYTES = Gauge(
    "trireme_shared_memory_bytes", "Shared memory held for tensors.", multiprocess_mode="livesum"
)
DECODED_BYTES = Gauge(
    "trireme_decoded_bytes", "Memory of decoded pictures and large JSON.", multiprocess_mode="livesum"
)


class Labels:
    """Names to count under: the first ``most`` as they are, what comes later together.

    A series costs some 50 KB in each worker, and prometheus_client cannot let go of one: where models come
    and go there would be ever more.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: set[str] = set()

    def of(self, name: str) -> str:
        if name not in self._known:
            if len(self._known) >= self._most:
                return OTHERS
            self._known.add(name)
        return name


#: Stands for all models beyond the first. Triton's own series still tell them apart.
OTHERS = "others"
MODELS = Labels(64)


#: Bytes of a worker's series by their kind, for as many models as have series of their own.
ROOM = {"counter": 2**18, "histogram": 2**20, "gauge_livesum": 2**16}


def reserve(folder: Path, pid: int) -> None:
    """Take the room of a worker's series before it has any.

    prometheus_client makes files of holes and maps them. On a disk that is full since, a worker that counts
    something would be killed (SIGBUS). A worker for which there is no room now counts for itself alone: it
    serves, and its series are not among those of ``/metrics``.
    """
    files = {folder / f"{kind}_{pid}.db": size for kind, size in ROOM.items()}
    try:
        for path, size in files.items():
            with path.open("ab") as file:
                os.posix_fallocate(file.fileno(), 0, size)
    except OSError as error:
        for path in files:
            path.unlink(missing_ok=True)
        values.MmapedDict = _in_memory  # type: ignore[attr-defined, assignment]
        log.warning("the series of this worker are not counted: there is no room for them (%s)", error)


def _in_memory(_: str) -> MmapedDict:
    """A file of series that is in no folder."""
    return MmapedDict(f"/proc/self/fd/{os.memfd_create('series')}")  # type: ignore[no-untyped-call]


@lru_cache(maxsize=1024)
def invocations(model: str, status: int) -> Counter:
    """A model's answers with this status. Looking a series up by its labels takes longer than counting."""
    return INVOCATIONS.labels(MODELS.of(model), str(status))


@lru_cache(maxsize=1024)
def seconds(model: str) -> Histogram:
    """A model's times."""
    return SECONDS.labels(MODELS.of(model))


@lru_cache(maxsize=1024)
def stage_seconds(client: str, name: str) -> Histogram:
    """The times of a client's stage."""
    return STAGE_SECONDS.labels(MODELS.of(client), name)


def observe(series: Histogram, seconds: float) -> None:
    """As the series' own ``observe``, which compares with one bound after another."""
    series._sum.inc(seconds)
    series._buckets[bisect_left(BUCKETS, seconds)].inc(1)


class stage:  # noqa: N801 - used as a function is
    """Time one stage of a client."""

    __slots__ = ("_series", "_started")

    def __init__(self, client: str, name: str) -> None:
        self._series = stage_seconds(client, name)

    def __enter__(self) -> None:
        self._started = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        observe(self._series, time.perf_counter() - self._started)
