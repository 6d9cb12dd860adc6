"""A client's own metrics: prometheus_client's counters, gauges and histograms, which it makes in ``setup``.

The box adds the label ``model``. A label's values are declared, so no request can add a series.
"""

from __future__ import annotations

import json
import logging
import math
import re
import sys
import threading
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import product
from typing import Any, Literal, Protocol, Self, TypeVar, cast

from prometheus_client import Counter, Gauge, Histogram
from prometheus_client.metrics import MetricWrapperBase

from sm.errors import ClientFailed, StartError
from sm.metrics import BUCKETS, CLIENT_PREFIX, MODELS, OTHERS
from sm.metrics.files import CLIENT_BYTES, ENTRY_BYTES, counted

log = logging.getLogger(__name__)
#: The value of a gauge over several workers: their sum, lowest, highest or last one.
GaugeMode = Literal["livesum", "livemin", "livemax", "livemostrecent"]
#: Numbers of one client. A histogram has one for each bucket of each series, and two more. Every worker has
#: them, and every scrape reads them.
MAX_NUMBERS = 1000
#: A metric's name; a label's, if it has no meaning to Prometheus or to the log's lines for CloudWatch.
NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]{0,63}")
LABEL = re.compile(r"(?!__|(?i:le|quantile|model|endpoint|level|message)$)[a-zA-Z_][a-zA-Z0-9_]{0,63}")
#: Text that UTF-8 can encode: a lone surrogate would spoil the whole of ``/metrics``.
TEXT, VALUE = re.compile(r"[^\ud800-\udfff]*"), re.compile(r"[^\ud800-\udfff]{1,64}")
#: Bytes of a number beside the name of its series; a bucket's name has its bound.
NUMBER_BYTES = ENTRY_BYTES + len(json.dumps({"le": str(-sys.float_info.max)}))
#: The names of a metric's labels, each with the values that are counted by name.
Labels = Mapping[str, Iterable[object]]
NO_LABELS: Labels = {}


class Named(Protocol):
    """A client."""

    name: str


M = TypeVar("M", bound=MetricWrapperBase)
F = TypeVar("F", bound=Callable[..., Any])


class Labelled:
    """A metric with labels: :meth:`labels` returns the series to count in."""

    def __init__(self, metric: Any, model: str, declared: Mapping[str, Sequence[str]]) -> None:
        self._metric, self._model, self._declared = metric, model, declared

    def labels(self, *values: object, **named: object) -> Any:
        """Return the series with these values; a value that ``setup`` has not declared counts as ``others``.

        Args:
            values: A value for each label, in the order of the declaration.
            named: The same by the labels' names.

        Raises:
            ValueError: These are not the metric's labels.
        """
        given = named or dict(zip(self._declared, values, strict=False))
        if (values and named) or {*given} != {*self._declared} or len(values or named) != len(given):
            raise ValueError(f"the metric takes a value for each label: {', '.join(self._declared)}")
        known = {label: value for label, value in given.items() if str(value) in self._declared[label]}
        return self._metric.labels(**{**dict.fromkeys(given, OTHERS), **known, "model": self._model})


class Uncounted:
    """Takes the calls of a metric that has no room."""

    def __getattr__(self, _: str) -> Callable[..., Self]:
        return lambda *_, **__: self

    def __call__(self, function: F) -> F:
        """Decorate a function, which stays as it is."""
        return function

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...


#: The metrics of this worker by name without prefix, and what clients mean by each. They stay until it ends:
#: a client that is loaded again counts on in the same series, and one that is gone leaves its counts, as sums
#: over workers must not fall.
_METRICS: dict[str, tuple[str, Any]] = {}
_LOCK = threading.Lock()


class Metrics:
    """Makes a client's metrics. Each is made once, in ``setup``, and kept on ``self``.

    Example::

        def setup(self) -> None:
            self.cats = self.metrics.counter(
                "cats_found", "Cats found in pictures.", labels={"size": ("small", "large")}
            )

        def inference(self, payload: ImagePayload) -> int:
            ...
            self.cats.labels(size="small").inc()

    ``/metrics`` shows ``trireme_client_cats_found_total{model="…",size="small"}``, summed over the workers.
    """

    def __init__(self, client: Named) -> None:
        self._client, self._is_open = client, False
        self._numbers: dict[str, int] = {}

    def counter(self, name: str, documentation: str, labels: Labels = NO_LABELS) -> Counter:
        """Make a counter.

        Args:
            name: Letters, digits and underscores. ``/metrics`` adds the prefix and ``_total``.
            documentation: One sentence.
            labels: The names of the labels, each with the values that are counted by name; all others count
                as ``others``.

        Raises:
            StartError: A name, a label or the number of series is not possible, or the name is taken.
        """
        return self._make(Counter, "counter", str(name).removesuffix("_total"), documentation, labels)

    def gauge(
        self,
        name: str,
        documentation: str,
        labels: Labels = NO_LABELS,
        multiprocess_mode: GaugeMode = "livesum",
    ) -> Gauge:
        """Make a gauge.

        Args:
            name: See :meth:`counter`.
            documentation: See :meth:`counter`.
            labels: See :meth:`counter`.
            multiprocess_mode: What ``/metrics`` shows of the workers' values: ``livesum``, ``livemin``,
                ``livemax``, or ``livemostrecent``, the one that was set last.

        Raises:
            StartError: See :meth:`counter`.
        """
        file = f"gauge_{multiprocess_mode}"
        if file not in CLIENT_BYTES:
            raise StartError(f"the gauge {name!r} needs one of the multiprocess_modes of its description.")
        return self._make(Gauge, file, name, documentation, labels, multiprocess_mode=multiprocess_mode)

    def histogram(
        self,
        name: str,
        documentation: str,
        labels: Labels = NO_LABELS,
        buckets: Sequence[float] = BUCKETS,
    ) -> Histogram:
        """Make a histogram.

        Args:
            name: See :meth:`counter`.
            documentation: See :meth:`counter`.
            labels: See :meth:`counter`.
            buckets: Their upper bounds, rising. The default suits seconds, from 1 ms to 60 s.

        Raises:
            StartError: See :meth:`counter`.
        """
        bounds: list[float] = []
        with suppress(TypeError, ValueError):
            bounds = [float(bound) for bound in buckets if bound != math.inf]
        if not bounds or not all(map(math.isfinite, bounds)) or sorted({*bounds}) != bounds:
            raise StartError(f"the histogram {name!r} needs buckets: finite numbers, each above the last.")
        return self._make(Histogram, "histogram", name, documentation, labels, buckets=bounds)

    def _make(
        self, kind: type[M], file: str, name: str, documentation: str, labels: Labels, **detail: Any
    ) -> M:
        if not self._is_open:
            raise ClientFailed(
                f"the client of {self._client.name!r} failed: it makes the metric {name!r} outside of setup, "
                "such as in a request; make it in setup(), keep it on self, and count in it"
            )
        if name in self._numbers:
            raise StartError(f"it makes the metric {name!r} twice.")
        declared = check_declaration(name, documentation, labels)
        numbers = len(detail["buckets"]) + 2 if "buckets" in detail else 1
        self._numbers[name] = numbers * math.prod(len(values) + 1 for values in declared.values())
        if sum(self._numbers.values()) > MAX_NUMBERS:
            raise StartError(
                f"with the metric {name!r} it has {sum(self._numbers.values()):,} series, and "
                f"{MAX_NUMBERS:,} are possible: declare fewer values of labels, or fewer buckets."
            )
        model = MODELS.of(self._client.name)
        rows = product((model,), *((*values, OTHERS) for values in declared.values()))
        series = [dict(zip(("model", *declared), row, strict=True)) for row in rows]
        with _LOCK:
            metric = find_metric(kind, file, name, documentation, (*declared,), detail)
            if not has_room(file, metric, numbers, series):
                log.warning("the metric %r of %r is not on /metrics: it has no room", name, self._client.name)
                return cast(M, Uncounted())
            for labels_of_series in series:
                metric.labels(**labels_of_series)
        return cast(M, Labelled(metric, model, declared)) if declared else metric.labels(model)


def find_metric(
    kind: type[M],
    file: str,
    name: str,
    documentation: str,
    labels: tuple[str, ...],
    detail: Mapping[str, Any],
) -> M:
    """Return the metric of a name; make it if it is new. Raises :class:`StartError` if the name is taken."""
    meaning = f"a {file} with the labels {labels} and {detail}"
    if name not in _METRICS:
        with suppress(ValueError):  # another metric is shown by this name
            metric = kind(CLIENT_PREFIX + name, documentation, ("model", *labels), **detail)
            _METRICS[name] = meaning, metric
    known, found = _METRICS.get(name, ("another metric", None))
    if known != meaning:
        raise StartError(
            f"the metric {name!r} is {meaning}, but its name is taken by {known}: give it another name, or "
            "start the box again if the other is gone."
        )
    return cast(M, found)


def has_room(file: str, metric: MetricWrapperBase, numbers: int, series: Sequence[dict[str, str]]) -> bool:
    """True if this worker's file has room for those series that it does not have yet."""
    room, known = CLIENT_BYTES[file], set()
    for name, text, labels, size in counted(file):
        if name.startswith(CLIENT_PREFIX):
            room -= size
            labels.pop("le", None)
            known.add((name, text, frozenset(labels.items())))
    (shown,) = metric.describe()
    new = {(shown.name, shown.documentation, frozenset(row.items())) for row in series} - known
    names = (json.dumps([name, f"{name}_bucket", dict(labels), text]) for name, text, labels in new)
    return sum(numbers * (len(each) + NUMBER_BYTES) for each in names) <= room


@contextmanager
def setting_up(client: object) -> Generator[None]:
    """Let the client make its metrics."""
    own = getattr(client, "metrics", None)
    if not isinstance(own, Metrics):  # the author uses the name for something else
        yield
        return
    own._numbers, own._is_open = {}, True
    try:
        yield
    finally:
        own._is_open = False


def check_declaration(name: object, documentation: object, labels: object) -> dict[str, tuple[str, ...]]:
    """Return the labels' values as strings. Raises :class:`StartError` for what Prometheus cannot show."""
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise StartError(f"{name!r} is not a name for a metric: up to 64 letters, digits and underscores.")
    if not isinstance(documentation, str) or not TEXT.fullmatch(documentation):
        raise StartError(f"the metric {name!r} needs a sentence that describes it.")
    if not isinstance(labels, Mapping) or any(
        isinstance(values, str) or not isinstance(values, Iterable) for values in labels.values()
    ):
        raise StartError(
            f"the labels of the metric {name!r} must be a dictionary of names and their values, as "
            '{"size": ("small", "large")}.'
        )
    declared = {label: tuple(dict.fromkeys(map(str, values))) for label, values in labels.items()}
    for label, texts in declared.items():
        if not isinstance(label, str) or not LABEL.fullmatch(label):
            raise StartError(
                f"the metric {name!r} has a label {label!r}, which is not a name for one or has a meaning."
            )
        if wrong := [text[:64] for text in texts if not VALUE.fullmatch(text)]:
            raise StartError(
                f"the label {label!r} of the metric {name!r} has the value {wrong[0]!r}: a value has 1 to 64 "
                "characters."
            )
    return {label: tuple(text for text in texts if text != OTHERS) for label, texts in declared.items()}
