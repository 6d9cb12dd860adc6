"""The router's Prometheus series. Workers write memory-mapped files; the control plane sums them.

They are prometheus_client's, in its multi-process mode: the supervisor sets ``PROMETHEUS_MULTIPROC_DIR``.
Without it (in a test or a tool) the series exist only in the process.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from time import perf_counter
from typing import Any

import prometheus_client
from prometheus_client import Counter, Gauge, values

from sm.errors import as_trireme_error
from sm.invocation import current, span
from sm.metrics.files import LOCK, Number, counted, open_files, take_over

values.ValueClass = Number
open_files()


class Histogram(prometheus_client.Histogram):
    """The library's, which observes in one step."""

    def observe(self, amount: float, _: object = None) -> None:
        total, bucket = self._sum, self._buckets[bisect_left(self._upper_bounds, amount)]
        with LOCK:
            total.cell[0] += amount
            bucket.cell[0] += 1.0


#: Seconds; from a cached label look-up to the invocation's 60 s.
BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)
#: Finer ones, to compare two versions of a model: each is a quarter more than the last, up to 56 s.
FINE_BUCKETS = tuple(round(0.001 * 1.25**step, 6) for step in range(50))


def _gauge(name: str, documentation: str, labels: Sequence[str] = ()) -> Gauge:
    """Return a gauge of which ``/metrics`` shows the sum over the workers that live."""
    return Gauge(name, documentation, labels, multiprocess_mode="livesum")


INVOCATIONS = Counter("trireme_invocations_total", "Responses by model and status.", ["model", "status"])
DURATIONS = Histogram(
    "trireme_invocation_duration_seconds",
    "Time of an invocation and of its stages.",
    ["model", "stage", "status"],
    buckets=BUCKETS,
)
IN_FLIGHT: Number = _gauge("trireme_in_flight", "Invocations that are running.")._value
SERVED = _gauge("trireme_model_in_flight", "Invocations of a model that are running.", ["model"])
WAITING = _gauge("trireme_model_queue_length", "Invocations in the model's queue.", ["model"])
REJECTED = Counter(
    "trireme_model_rejected_total",
    "Invocations refused with 429 because their model's queue was full.",
    ["model"],
)
TENSORS = Counter(
    "trireme_tensor_requests_total",
    "Requests to Triton by transport of their tensors: shared memory or gRPC.",
    ["transport"],
)
MISMATCHED_ANSWERS = Counter(
    "trireme_mismatched_answers_total", "Model answers that belonged to another request. None was delivered."
)
RELOADS = Counter(
    "trireme_model_reloads_total",
    "Times that a model was loaded again because a process of it had died or stalled.",
    ["model"],
)
LOADS = Counter("trireme_model_loads_total", "Loads of models on demand, by outcome.", ["model", "outcome"])
LOAD_SECONDS = Counter(
    "trireme_model_load_seconds_total",
    "Seconds of loads and of new versions, by part: fetch, or load with the wait for room.",
    ["model", "part"],
)
VERSIONS = Counter(
    "trireme_model_versions_total",
    "New versions of a model, by outcome: it serves, or it failed and the old one goes on serving.",
    ["model", "outcome"],
)
VARIANT_DURATIONS = Histogram(
    "trireme_variant_duration_seconds",
    "Time of an invocation while a canary gets a share of them, by the version that answered.",
    ["model", "variant", "status"],
    buckets=FINE_BUCKETS,
)
EVICTIONS = Counter(
    "trireme_model_evictions_total", "Models that were unloaded to make room for others.", ["model"]
)
FETCHED_BYTES = Counter(
    "trireme_model_fetched_bytes_total",
    "Bytes of models that came over the network since the start.",
    ["model"],
)
HANGS = Counter(
    "trireme_model_hangs_total",
    "Times that a model was loaded again because it answered nothing, or ignored the end of its stream.",
    ["model"],
)
REPEATS = Counter(
    "trireme_repeated_calls_total",
    "Calls that were sent to a model again, because the process that had them ended or stalled.",
    ["model"],
)
DOUBTED_ANSWERS = Counter(
    "trireme_doubted_answers_total",
    "Answers rejected because a model's process had stalled: they might belong to another request.",
)
FALLBACKS = Counter(
    "trireme_fallbacks_total",
    "Times that shared memory or the fast JPEG decoder could not be used.",
    ["kind"],
)
SHARED_MEMORY_FALLBACKS, JPEG_FALLBACKS = FALLBACKS.labels("shared_memory"), FALLBACKS.labels("jpeg")
SHARED_BYTES = _gauge("trireme_shared_memory_bytes", "Bytes of shared memory held for tensors.")
SHARED_LIMIT = _gauge("trireme_shared_memory_limit_bytes", "Bytes of shared memory that tensors may take.")
DECODED_BYTES = _gauge("trireme_decoded_bytes", "Bytes of memory held for decoded pictures and large JSON.")
DECODED_LIMIT = _gauge("trireme_decoded_limit_bytes", "Bytes of memory that decoding may take.")
CAPTURED = Counter("trireme_captured_total", "Invocations whose payload and answer were stored.")
CAPTURE_DROPPED = Counter(
    "trireme_capture_dropped_total",
    "Invocations in the capture's sample that were not stored, by reason.",
    ["reason"],
)
IN_FLIGHT_LIMIT = _gauge("trireme_in_flight_limit", "Invocations that may run or wait; further ones get 429.")
#: Restarts of workers; the supervisor counts those of the other processes.
WORKER_RESTARTS = Counter(
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


#: The beginning of the name of a client's own metric, so that none is the box's.
CLIENT_PREFIX = "trireme_client_"
#: The label of all models beyond the limit, and of what belongs to none. Triton's own series still separate
#: them.
OTHERS, NO_MODEL = "others", "-"
MODELS = Labels(64)
#: A whole invocation, and the wait in its model's queue.
TOTAL, QUEUE = "total", "queue"
#: The stages; a client may add a few of its own.
STAGES = Labels(16, (TOTAL, QUEUE, "decode", "preprocess", "infer", "postprocess"))


def count_on(folder: Path, sizes: Mapping[str, int]) -> None:
    """Count on in the files of a process that has ended, with the models and stages that it had by name.

    Raises :class:`OSError`: there is no memory for it.
    """
    take_over(folder, sizes)
    for _, _, labels, _ in [*counted("counter"), *counted("histogram")]:
        for label, known in (("model", MODELS), ("stage", STAGES)):
            if labels.get(label, OTHERS) != OTHERS:
                known.of(labels[label])


@lru_cache(maxsize=1024)
def invocations(model: str, status: int) -> Number:
    """Return the count of a model's answers with this status."""
    found: Number = INVOCATIONS.labels(MODELS.of(model), str(status))._value
    return found


@lru_cache(maxsize=1024)
def served(model: str) -> Number:
    """Return the number of a model's invocations that are running."""
    # Create the queue's series too, so that rate() does not lose the first rejection.
    waiting(model)
    rejected(model)
    found: Number = SERVED.labels(MODELS.of(model))._value
    return found


@lru_cache(maxsize=1024)
def waiting(model: str) -> Gauge:
    """Return the gauge of a model's waiting requests."""
    return WAITING.labels(MODELS.of(model))


@lru_cache(maxsize=1024)
def rejected(model: str) -> Counter:
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

    __slots__ = ("_client", "_invocation", "_name", "_span", "_started")

    def __init__(self, client: str, name: str) -> None:
        self._client, self._name = client, name

    def __enter__(self) -> None:
        self._invocation = invocation = current()
        self._span = None
        if invocation is not None and invocation.listener is not None:
            self._span = span(self._name)
            self._span.__enter__()
        self._started = perf_counter()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        seconds = perf_counter() - self._started
        status = 200 if error is None else as_trireme_error(error).status
        series = duration(self._client, self._name, status)
        total, bucket = series._sum, series._buckets[bisect_left(BUCKETS, seconds)]
        with LOCK:  # as observe does, without a call
            total.cell[0] += seconds
            bucket.cell[0] += 1.0
        invocation = self._invocation
        if invocation is not None:
            # Without a lock: if two records of a request end a stage at the same moment, one may be lost.
            stages = invocation.stages
            stages[self._name] = stages.get(self._name, 0.0) + seconds
        if self._span is not None:
            self._span.__exit__(kind, error, trace)
