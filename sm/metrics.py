"""The router's Prometheus series. Workers write memory-mapped files; the control plane sums them.

The files have the format of prometheus_client's multi-process mode, and its collector reads them. Clients
that use that library directly write files of their own. This module needs one look-up and no system call
for a count; the library asks for the process id each time.

The supervisor sets ``PROMETHEUS_MULTIPROC_DIR``. Without it (in a test or a tool) the series exist
only in the process.
"""

from __future__ import annotations

import logging
import mmap
import os
import struct
import threading
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from time import perf_counter
from typing import Any, ClassVar, Generic, TypeVar

from prometheus_client.mmap_dict import MmapedDict, mmap_key
from prometheus_client.multiprocess import mark_process_dead
from prometheus_client.utils import floatToGoString

from sm.errors import as_trireme_error
from sm.invocation import current, span

log = logging.getLogger(__name__)

#: Seconds; from a cached label look-up to the invocation's 60 s.
BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)
#: Finer ones, to compare two versions of a model: each is a quarter more than the last, up to 56 s.
FINE_BUCKETS = tuple(round(0.001 * 1.25**step, 6) for step in range(50))
#: Disk space for a worker's series, by kind, if all models have series that may have their own.
RESERVED_BYTES = {"counter": 2**18, "histogram": 2**22, "gauge_livesum": 2**16}

#: Gauges of which a process that has never set them must not show a zero: it could be the lowest, the highest
#: or the last.
WITHOUT_ZERO = frozenset(f"gauge_{mode}_clients" for mode in ("livemin", "livemax", "livemostrecent"))

#: A file begins with the count of its used bytes.
USED = struct.Struct("i")
#: Of a process without files. A file is mapped as float64 too: that stores a number at once, where struct's
#: pack_into writes zeros first, which the control plane would read now and then.
NO_FILE = memoryview(bytearray(16)).cast("d")
#: The kind of series that only this process knows, because there is no room for them in a file.
UNWRITTEN = "-"
#: Bytes by which a file grows for the clients' own series.
ROOM_BYTES = 2**16
#: Bytes of an entry beside its key, at most: lengths, padding, value and timestamp.
ENTRY_BYTES = 28


class SeriesFiles:
    """This process's files, one for each kind of series. A forked process creates its own, from zero."""

    def __init__(self, folder: str | None) -> None:
        self._folder = folder
        self._files: dict[str, MmapedDict] = {}
        self._maps: dict[str, memoryview[float]] = {}
        self._numbers: list[Number] = []
        self.lock, self.creation_lock = threading.Lock(), threading.Lock()
        os.register_at_fork(after_in_child=self._forget)

    def add(self, number: Number) -> None:
        self._numbers.append(number)

    def locate(self, kind: str, key: str) -> tuple[float, memoryview[float], int]:
        """Return a number's value so far, the mapped file that it is in, and its index there."""
        if self._folder is None or kind == UNWRITTEN:
            return 0.0, NO_FILE, 0
        path = series_file(Path(self._folder), kind, os.getpid())
        if kind not in self._files:
            self._files[kind] = MmapedDict(str(path))  # type: ignore[no-untyped-call]
            self._maps[kind] = _map(path)
        # The file begins with the count of used bytes, and ends with the last key's value and timestamp.
        before = USED.unpack_from(self._maps[kind])[0]
        # Appends a new key, and enlarges the file if necessary.
        value, _ = self._files[kind].read_value(key)  # type: ignore[no-untyped-call]
        used_bytes = USED.unpack_from(self._maps[kind])[0]
        if used_bytes > self._maps[kind].nbytes:
            self._maps[kind] = _map(path)
        if used_bytes > before:
            return value, self._maps[kind], used_bytes // NO_FILE.itemsize - 2
        # The key is in the file already: an earlier process had the same id.
        entries = MmapedDict.read_all_values_from_file(str(path))  # type: ignore[no-untyped-call]
        offset = next(offset for name, _, _, offset in entries if name == key)
        return value, self._maps[kind], offset // NO_FILE.itemsize

    def make_room(self, kind: str, size: int, max_size: int) -> bool:
        """Reserve disk space for more series of a kind. Returns False if there is none.

        Args:
            kind: The kind of series.
            size: Bytes that the series take.
            max_size: Bytes of the kind's file, at most.
        """
        if self._folder is None:
            return True
        path = series_file(Path(self._folder), kind, os.getpid())
        with self.lock:
            space, used = 0, 0
            if path.exists():
                with path.open("rb") as file:
                    space, (used,) = os.fstat(file.fileno()).st_size, USED.unpack(file.read(USED.size))
            # Before the first entry are the count of used bytes and as many of padding.
            needed = -(-(max(used, 2 * USED.size) + size) // ROOM_BYTES) * ROOM_BYTES
            if needed <= space:
                return True
            if needed > max_size:
                return False
            try:
                allocate(path, needed)
            except OSError:
                return False
            # Open it again, as the library would enlarge it from the size that it had. Numbers that are in
            # the file keep their own view of it.
            if opened := self._files.pop(kind, None):
                opened.close()  # type: ignore[no-untyped-call]
        return True

    def stop(self) -> None:
        """Stop writing to files: from now on the series exist only in this process."""
        self._folder = None
        self._forget()

    def _forget(self) -> None:
        self.lock, self.creation_lock = threading.Lock(), threading.Lock()
        self._files, self._maps = {}, {}
        for number in self._numbers:
            number.reset()


def _map(path: Path) -> memoryview[float]:
    with path.open("r+b") as file:
        return memoryview(mmap.mmap(file.fileno(), 0)).cast("d")


def series_file(folder: Path, kind: str, pid: int) -> Path:
    """Return the file of a process's series; the library's own are called ``KIND_PID.db``."""
    return folder / f"{kind}_{pid}-trireme.db"


FILES = SeriesFiles(os.environ.get("PROMETHEUS_MULTIPROC_DIR"))


class Number:
    """A counter, a gauge, or a part of a histogram. Its position in the file is looked up once."""

    __slots__ = ("_key", "_kind", "index", "numbers", "value")

    def __init__(self, kind: str, key: str) -> None:
        self._kind, self._key = kind, key
        self.reset()
        FILES.add(self)

    def reset(self) -> None:
        #: The number, the mapped file that has it, and its place there; -1 before the first count.
        self.value, self.index = 0.0, -1
        self.numbers = NO_FILE

    def add(self, amount: float) -> None:
        """Add to the number; call it under the lock."""
        if self.index < 0:
            self.value, self.numbers, self.index = FILES.locate(self._kind, self._key)
        self.value = value = self.value + amount
        self.numbers[self.index] = value

    def inc(self, amount: float = 1.0) -> None:
        with FILES.lock:
            if self.index < 0:
                self.add(amount)
                return
            self.value = value = self.value + amount
            self.numbers[self.index] = value

    def set(self, value: float) -> None:
        """Set a gauge; the values of all processes are summed."""
        with FILES.lock:
            if self.index < 0:
                self.add(value)
                return
            self.value = value
            self.numbers[self.index] = value

    def stamp(self, at: float) -> None:
        """Note when the gauge was set, in seconds since 1970: of some gauges, the last one counts."""
        with FILES.lock:
            self.numbers[self.index + 1] = at


class Histogram:
    """A series of times in seconds, or of a client's own numbers."""

    __slots__ = ("bounds", "buckets", "total")

    def __init__(self, total: Number, buckets: Sequence[Number], bounds: Sequence[float]) -> None:
        self.total, self.buckets, self.bounds = total, buckets, bounds

    def observe(self, seconds: float) -> None:
        write(((self.total, seconds), (self.buckets[bisect_left(self.bounds, seconds)], 1.0)))


def write(additions: Iterable[tuple[Number, float]]) -> None:
    """Add to several numbers at once."""
    with FILES.lock:
        for number, amount in additions:
            if number.index < 0:
                number.add(amount)
            else:
                # As in Number.add, without a call: a request counts a dozen times.
                number.value = value = number.value + amount
                number.numbers[number.index] = value


Series = TypeVar("Series")


class Family(Generic[Series]):
    """The series of one name, by their labels' values. Each is created once, and begins at zero.

    ``kind``: the kind of file, which the family's class decides if it is empty.
    """

    default_kind: ClassVar[str]

    def __init__(self, name: str, help_text: str, labels: Sequence[str] = (), kind: str = "") -> None:
        self.name, self._help, self._labels = name, help_text, tuple(labels)
        self.kind = kind or self.default_kind
        self._series: dict[tuple[str, ...], Series] = {}

    def labels(self, *values: str) -> Series:
        """Return the series with these label values; create it if it is new."""
        series = self._series.get(values)
        if series is None:
            with FILES.creation_lock:
                series = self._series.get(values)
                if series is None:
                    series = self._series[values] = self._create(dict(zip(self._labels, values, strict=True)))
        return series

    def __contains__(self, values: object) -> bool:
        return values in self._series

    def bytes_of(self, values: Sequence[str]) -> int:
        """Return how many bytes a series takes in its file, at most."""
        labels = dict(zip(self._labels, values, strict=True))
        return sum(len(self._key(*part)) + ENTRY_BYTES for part in self._parts(labels))

    def _create(self, labels: Mapping[str, str]) -> Series:
        raise NotImplementedError

    def _parts(self, labels: Mapping[str, str]) -> list[tuple[Mapping[str, str], str]]:
        """Return the labels and the name's ending of each number of a series."""
        return [(labels, "")]

    def _key(self, labels: Mapping[str, str], suffix: str) -> str:
        """Return the key by which the library finds a number in its files."""
        # It calls a counter without its suffix.
        family = self.name.removesuffix("_total") if self.default_kind == "counter" else self.name
        return str(mmap_key(family, self.name + suffix, list(labels), list(labels.values()), self._help))

    def _number(self, labels: Mapping[str, str], suffix: str = "") -> Number:
        number = Number(self.kind, self._key(labels, suffix))
        if self.kind not in WITHOUT_ZERO:
            number.inc(0.0)  # rate() loses the first count of a series that begins at 1
        return number


class Counters(Family[Number]):
    """Counters of one name; they only increase."""

    default_kind = "counter"

    def _create(self, labels: Mapping[str, str]) -> Number:
        return self._number(labels)


class Gauges(Family[Number]):
    """Gauges of one name."""

    default_kind = "gauge_livesum"

    def _create(self, labels: Mapping[str, str]) -> Number:
        return self._number(labels)


class Histograms(Family[Histogram]):
    """Histograms of one name."""

    default_kind = "histogram"

    def __init__(
        self,
        name: str,
        help_text: str,
        labels: Sequence[str],
        bounds: Sequence[float] = BUCKETS,
        kind: str = "",
    ) -> None:
        super().__init__(name, help_text, labels, kind)
        self._bounds = bounds

    def sums(self) -> Mapping[tuple[str, ...], float]:
        """Return the total seconds by the labels' values, in this process."""
        return {values: series.total.value for values, series in self._series.items()}

    def _create(self, labels: Mapping[str, str]) -> Histogram:
        *buckets, total = (self._number(*part) for part in self._parts(labels))
        return Histogram(total, buckets, self._bounds)

    def _parts(self, labels: Mapping[str, str]) -> list[tuple[Mapping[str, str], str]]:
        bounds = [floatToGoString(bound) for bound in (*self._bounds, float("inf"))]  # type: ignore[no-untyped-call]
        return [*(({**labels, "le": bound}, "_bucket") for bound in bounds), (labels, "_sum")]


def _gauge(name: str, help_text: str) -> Number:
    return Gauges(name, help_text).labels()


INVOCATIONS = Counters("trireme_invocations_total", "Responses by model and status.", ["model", "status"])
DURATIONS = Histograms(
    "trireme_invocation_duration_seconds",
    "Time of an invocation and of its stages.",
    ["model", "stage", "status"],
)
IN_FLIGHT = _gauge("trireme_in_flight", "Invocations that are running.")
SERVED = Gauges(
    "trireme_model_in_flight", "Threads that work for a model. A list of records may use several.", ["model"]
)
WAITING = Gauges("trireme_model_queue_length", "Invocations in the model's queue.", ["model"])
REJECTED = Counters(
    "trireme_model_rejected_total",
    "Invocations refused with 429 because their model's queue was full.",
    ["model"],
)
TENSORS = Counters(
    "trireme_tensor_requests_total",
    "Requests to Triton by transport of their tensors: shared memory or gRPC.",
    ["transport"],
)
MISMATCHED_ANSWERS = Counters(
    "trireme_mismatched_answers_total", "Model answers that belonged to another request. None was delivered."
).labels()
RELOADS = Counters(
    "trireme_model_reloads_total",
    "Times that a model was loaded again because a process of it had died or stalled.",
    ["model"],
)
LOADS = Counters("trireme_model_loads_total", "Loads of models on demand, by outcome.", ["model", "outcome"])
LOAD_SECONDS = Counters(
    "trireme_model_load_seconds_total",
    "Seconds of loads and of new versions, by part: fetch, or load with the wait for room.",
    ["model", "part"],
)
VERSIONS = Counters(
    "trireme_model_versions_total",
    "New versions of a model, by outcome: it serves, or it failed and the old one goes on serving.",
    ["model", "outcome"],
)
VARIANT_DURATIONS = Histograms(
    "trireme_variant_duration_seconds",
    "Time of an invocation while a canary gets a share of them, by the version that answered.",
    ["model", "variant", "status"],
    FINE_BUCKETS,
)
EVICTIONS = Counters(
    "trireme_model_evictions_total", "Models that were unloaded to make room for others.", ["model"]
)
FETCHED_BYTES = Counters(
    "trireme_model_fetched_bytes_total",
    "Bytes of models that came over the network since the start.",
    ["model"],
)
HANGS = Counters(
    "trireme_model_hangs_total",
    "Times that a model was loaded again because it answered nothing, or ignored the end of its stream.",
    ["model"],
)
REPEATS = Counters(
    "trireme_repeated_calls_total",
    "Calls that were sent to a model again, because the process that had them ended or stalled.",
    ["model"],
)
DOUBTED_ANSWERS = Counters(
    "trireme_doubted_answers_total",
    "Answers rejected because a model's process had stalled: they might belong to another request.",
).labels()
FALLBACKS = Counters(
    "trireme_fallbacks_total",
    "Times that shared memory, the fast JPEG decoder or the own gRPC client could not be used.",
    ["kind"],
)
SHARED_MEMORY_FALLBACKS, JPEG_FALLBACKS = FALLBACKS.labels("shared_memory"), FALLBACKS.labels("jpeg")
SHARED_BYTES = _gauge("trireme_shared_memory_bytes", "Bytes of shared memory held for tensors.")
SHARED_LIMIT = _gauge("trireme_shared_memory_limit_bytes", "Bytes of shared memory that tensors may take.")
DECODED_BYTES = _gauge("trireme_decoded_bytes", "Bytes of memory held for decoded pictures and large JSON.")
DECODED_LIMIT = _gauge("trireme_decoded_limit_bytes", "Bytes of memory that decoding may take.")
CAPTURED = Counters("trireme_captured_total", "Invocations whose payload and answer were stored.").labels()
CAPTURE_DROPPED = Counters(
    "trireme_capture_dropped_total",
    "Invocations in the capture's sample that were not stored, by reason.",
    ["reason"],
)
IN_FLIGHT_LIMIT = _gauge("trireme_in_flight_limit", "Invocations that may run or wait; further ones get 429.")
#: Restarts of workers; the supervisor counts those of the other processes.
WORKER_RESTARTS = Counters(
    "trireme_restarts_total", "Processes that ended by themselves and were started again.", ["process"]
).labels("worker")


class Labels:
    """Limits the values of a label: the first ``max_values`` are counted by name, later ones together.

    Series are never removed, so without a limit, models that come and go would add more and more. ``known``
    values are always counted by name.
    """

    def __init__(self, max_values: int, known: Sequence[str] = ()) -> None:
        self._max_values = max_values
        self._names = set(known)

    def of(self, name: str) -> str:
        """Return the value of the label: ``name``, or :data:`OTHERS` if there are too many."""
        if name not in self._names:
            if len(self._names) >= self._max_values:
                return OTHERS
            self._names.add(name)
        return name


#: Before the name of a client's own metric, so that none is the box's.
CLIENT_PREFIX = "trireme_client_"
#: The label of all models beyond the limit, and of what belongs to none. Triton's own series still separate
#: them.
OTHERS, NO_MODEL = "others", "-"
MODELS = Labels(64)
#: A whole invocation, and the wait in its model's queue.
TOTAL, QUEUE = "total", "queue"
#: The stages; a client may add a few of its own.
STAGES = Labels(16, (TOTAL, QUEUE, "decode", "preprocess", "infer", "postprocess"))


def reserve(folder: Path, pid: int) -> None:
    """Reserve the disk space of a worker's series before they exist.

    The files are sparse and mapped. If the disk filled up later, counting would kill the worker (SIGBUS). A
    worker that finds no space now counts in its own memory: it serves, but ``/metrics`` lacks its series.
    """
    files = {series_file(folder, kind, pid): size for kind, size in RESERVED_BYTES.items()}
    try:
        for path, size in files.items():
            allocate(path, size)
    except OSError as error:
        for path in files:
            path.unlink(missing_ok=True)
        FILES.stop()
        log.warning("the series of this worker are not counted: there is no disk space for them (%s)", error)


def allocate(path: Path, size: int) -> None:
    """Give a file of series its disk space. Raises :class:`OSError` if there is none."""
    # Readers fail on an empty file, so it gets its name when it has its size.
    reserved = path if path.exists() else path.with_suffix(".new")
    try:
        with reserved.open("ab") as file:
            os.posix_fallocate(file.fileno(), 0, size)
        reserved.replace(path)
    finally:
        path.with_suffix(".new").unlink(missing_ok=True)


def remove_gauges(folder: Path, pid: int) -> None:
    """Remove the gauges of a process that has ended; its counters stay."""
    for path in folder.glob(f"gauge_live*_{pid}-trireme.db"):
        path.unlink(missing_ok=True)
    # For clients that use the library themselves.
    mark_process_dead(pid, path=str(folder))  # type: ignore[no-untyped-call]


@lru_cache(maxsize=1024)
def invocations(model: str, status: int) -> Number:
    """Return the counter of a model's answers with this status."""
    return INVOCATIONS.labels(MODELS.of(model), str(status))


@lru_cache(maxsize=1024)
def served(model: str) -> Number:
    """Return the gauge of threads that serve a model."""
    # Create the queue's series too, so that rate() does not lose the first rejection.
    waiting(model)
    rejected(model)
    return SERVED.labels(MODELS.of(model))


@lru_cache(maxsize=1024)
def waiting(model: str) -> Number:
    """Return the gauge of a model's waiting requests."""
    return WAITING.labels(MODELS.of(model))


@lru_cache(maxsize=1024)
def rejected(model: str) -> Number:
    """Return the counter of a model's rejected requests."""
    return REJECTED.labels(MODELS.of(model))


@lru_cache(maxsize=4096)
def duration(model: str, stage: str, status: int) -> Histogram:
    """Return the histogram of a model's invocations with this status, or of one of their stages.

    Only the class of the status is a label: each exact status would add 17 numbers to every worker.
    """
    return DURATIONS.labels(MODELS.of(model), STAGES.of(stage), f"{status // 100}xx")


def variant(model: str, name: str, status: int) -> Histogram:
    """Return the histogram of a model's invocations on one of its two versions."""
    return VARIANT_DURATIONS.labels(model, name, f"{status // 100}xx")


class stage:  # noqa: N801 - used as a function is
    """Time one stage of a client."""

    __slots__ = ("_client", "_name", "_request", "_span", "_started")

    def __init__(self, client: str, name: str) -> None:
        self._client, self._name = client, name

    def __enter__(self) -> None:
        self._request = request = current()
        self._span = None
        if request is not None and request.listener is not None:
            self._span = span(self._name)
            self._span.__enter__()
        self._started = perf_counter()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        seconds = perf_counter() - self._started
        histogram = duration(
            self._client, self._name, 200 if error is None else as_trireme_error(error).status
        )
        request = self._request
        if request is None or request.observations is None:
            histogram.observe(seconds)
        else:
            bucket = histogram.buckets[bisect_left(BUCKETS, seconds)]
            request.observations += ((histogram.total, seconds), (bucket, 1.0))
        if request is not None:
            # Without a lock: if two records of a request end a stage at the same moment, one may be lost.
            stages = request.stages
            stages[self._name] = stages.get(self._name, 0.0) + seconds
        if self._span is not None:
            self._span.__exit__(kind, error, trace)
