"""A client's own metrics: counters, gauges and histograms that it makes in ``setup``.

They have the form of prometheus_client's. A label's values are declared, so no request can add a series.
"""

from __future__ import annotations

import logging
import math
import re
import threading
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any, Generic, Literal, Protocol, Self, TypeVar

from sm import metrics
from sm.errors import ClientFailed, StartError
from sm.metrics import BUCKETS, CLIENT_PREFIX, FILES, MODELS, OTHERS, Counters, Gauges, Histograms, Number

log = logging.getLogger(__name__)
#: What the gauges of several workers become: their sum, lowest, highest or last value.
GaugeMode = Literal["livesum", "livemin", "livemax", "livemostrecent"]
MODES: tuple[GaugeMode, ...] = ("livesum", "livemin", "livemax", "livemostrecent")
#: Numbers of one client. A histogram has one for each bucket of each series, and two more. Every worker has
#: them, and every scrape reads them.
MAX_NUMBERS = 1000
#: Bytes of all clients' series of one kind in a worker: of more than 65 models with :data:`MAX_NUMBERS`.
MAX_FILE_BYTES = 2**24
#: Characters of a metric's name, of a label's name and of a label's value.
MAX_CHARACTERS = 64
NAME, LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*"), re.compile(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*")
#: Label names with a meaning of their own to Prometheus, or to the log's lines for CloudWatch.
RESERVED_LABELS = frozenset(("le", "quantile", "model", "endpoint", "level", "message"))
#: Endings of the names in which Prometheus shows each kind of metric.
ENDINGS = {
    "counter": ("", "_total", "_created"),
    "histogram": ("", "_bucket", "_sum", "_count", "_created"),
    "gauge": ("",),
}

Series = TypeVar("Series", Number, metrics.Histogram)
#: The names of a metric's labels, each with the values that are counted by name.
Labels = Mapping[str, Iterable[object]]
NO_LABELS: Labels = {}


class Named(Protocol):
    """A client."""

    name: str


@dataclass(frozen=True)
class Shape:
    """What all clients with a metric of one name must have in common."""

    kind: str
    labels: tuple[str, ...]
    #: A gauge's mode, or a histogram's buckets.
    detail: tuple[object, ...] = ()

    def __str__(self) -> str:
        labels = f"the labels {', '.join(self.labels)}" if self.labels else "no labels"
        detail = f" and {', '.join(map(str, self.detail))}" if self.detail else ""
        return f"a {self.kind} with {labels}{detail}"


#: The metrics of this worker, by name without prefix. They stay until it ends: a client that is loaded again
#: counts on in the same series, and one that is gone leaves its counts, as sums over workers must not fall.
_METRICS: dict[str, tuple[Shape, metrics.Family[Any]]] = {}
_LOCK = threading.Lock()


class Metric(Generic[Series]):
    """A metric. If it has labels, :meth:`labels` returns the series to count in."""

    def __init__(
        self, name: str, labels: Mapping[str, tuple[str, ...]], series: Mapping[tuple[str, ...], Series]
    ) -> None:
        self.name, self._labels = name, labels
        self._by_values: Mapping[tuple[str, ...], Series] = series

    def labels(self, *values: object, **named: object) -> Self:
        """Return the series with these values; a value that ``setup`` has not declared counts as ``others``.

        Args:
            values: A value for each label, in the order of the declaration.
            named: The same by the labels' names.

        Raises:
            ValueError: These are not the metric's labels.
        """
        if (values and named) or {*named} - {*self._labels} or len(values or named) != len(self._labels):
            raise ValueError(f"{self.name} takes a value for each label: {', '.join(self._labels) or 'none'}")
        given = map(str, values or (named[label] for label in self._labels))
        known = zip(given, self._labels.values(), strict=True)
        key = tuple(value if value in declared else OTHERS for value, declared in known)
        return type(self)(self.name, {}, {(): self._by_values[key]})

    @property
    def _series(self) -> Series:
        if self._labels:
            raise ValueError(f"{self.name} has labels: call labels({', '.join(self._labels)}) first")
        series: Series = self._by_values[()]
        return series

    def _checked(self, amount: float, at_least: float = -math.inf) -> float:
        """Return the number; one that is not finite would spoil every later sum."""
        number = float(amount)
        if not math.isfinite(number) or number < at_least:
            expected = "a number from 0" if at_least == 0 else "a finite number"
            raise ValueError(f"{self.name} takes {expected}, not {number}")
        return number


class Counter(Metric[Number]):
    """A count of what has happened; it only grows."""

    def inc(self, amount: float = 1.0) -> None:
        """Add ``amount``. Raises :class:`ValueError` if it is negative or not finite."""
        self._series.inc(self._checked(amount, at_least=0))


class Histogram(Metric[metrics.Histogram]):
    """How numbers are spread, such as sizes or seconds."""

    def observe(self, amount: float) -> None:
        """Count ``amount`` in its bucket. Raises :class:`ValueError` if it is not finite."""
        self._series.observe(self._checked(amount))


class Gauge(Metric[Number]):
    """A value that goes up and down."""

    def set(self, value: float) -> None:
        """Set the value of this worker. Raises :class:`ValueError` if it is not finite."""
        self._series.set(self._checked(value))
        self._series.stamp(time.time())

    def inc(self, amount: float = 1.0) -> None:
        """Add to the value of this worker."""
        self._series.inc(self._checked(amount))
        self._series.stamp(time.time())

    def dec(self, amount: float = 1.0) -> None:
        """Subtract from the value of this worker."""
        self.inc(-amount)


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
        name = str(name).removesuffix("_total")
        return Counter(name, *self._make("counter", name, documentation, labels, Counters, "_total"))

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
        if multiprocess_mode not in MODES:
            raise StartError(
                f"the gauge {name!r} has a multiprocess_mode that is none of {', '.join(MODES)}."
            )
        detail = (multiprocess_mode,)
        return Gauge(name, *self._make("gauge", name, documentation, labels, Gauges, detail=detail))

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
        try:
            bounds = tuple(float(bound) for bound in buckets)
        except (TypeError, ValueError):
            bounds = ()
        bounds = bounds[:-1] if bounds[-1:] == (math.inf,) else bounds
        if not bounds or not all(map(math.isfinite, bounds)) or sorted({*bounds}) != [*bounds]:
            raise StartError(f"the histogram {name!r} needs buckets: finite numbers, each above the last.")
        made = self._make("histogram", name, documentation, labels, Histograms, detail=bounds)
        return Histogram(name, *made)

    def _make(
        self,
        kind: str,
        name: str,
        documentation: str,
        labels: Labels,
        create: Callable[..., metrics.Family[Any]],
        ending: str = "",
        detail: tuple[Any, ...] = (),
    ) -> tuple[Mapping[str, tuple[str, ...]], dict[tuple[str, ...], Any]]:
        """Return the labels, and all series that there will ever be, by their labels' values."""
        if not self._is_open:
            raise ClientFailed(
                f"the client of {self._client.name!r} failed: it makes the metric {name!r} outside of setup, "
                "such as in a request; make it in setup(), keep it on self, and count in it"
            )
        if name in self._numbers:
            raise StartError(f"it makes the metric {name!r} twice.")
        declared = check_declaration(name, documentation, labels)
        is_histogram = kind == "histogram"
        series = math.prod(len(values) + 1 for values in declared.values())
        self._numbers[name] = series * (len(detail) + 2 if is_histogram else 1)
        if sum(self._numbers.values()) > MAX_NUMBERS:
            raise StartError(
                f"with the metric {name!r} it has {sum(self._numbers.values()):,} series, and "
                f"{MAX_NUMBERS:,} are possible: declare fewer values of labels, or fewer buckets."
            )
        combinations = list(product(*((*values, OTHERS) for values in declared.values())))
        model = MODELS.of(self._client.name)
        with _LOCK:
            check_name(name, shape := Shape(kind, (*declared,), detail))
            file = f"gauge_{detail[0]}_clients" if kind == "gauge" else f"{kind}_clients"
            options = {"bounds": detail} if is_histogram else {}
            full_name = f"{CLIENT_PREFIX}{name}{ending}"
            create = partial(create, full_name, documentation, ("model", *declared), **options)
            if name not in _METRICS:
                _METRICS[name] = shape, create(kind=file)
            family = _METRICS[name][1]
            new = [values for values in combinations if (model, *values) not in family]
            size = sum(family.bytes_of((model, *values)) for values in new)
            if new and not FILES.make_room(file, size, MAX_FILE_BYTES):
                log.warning(
                    "the metric %r of the client %r is not on /metrics: there is no room for its series",
                    name,
                    self._client.name,
                )
                family = create(kind=metrics.UNWRITTEN)
            return declared, {values: family.labels(model, *values) for values in combinations}


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


def check_declaration(name: str, documentation: str, labels: Labels) -> Mapping[str, tuple[str, ...]]:
    """Return the labels' values as strings. Raises :class:`StartError` for what Prometheus cannot show."""
    if not isinstance(name, str) or not NAME.fullmatch(name) or len(name) > MAX_CHARACTERS:
        raise StartError(
            f"{name!r} is not a name for a metric: up to {MAX_CHARACTERS} letters, digits and underscores."
        )
    if not isinstance(labels, Mapping) or any(
        isinstance(values, str) or not isinstance(values, Iterable) for values in labels.values()
    ):
        raise StartError(
            f"the labels of the metric {name!r} must be a dictionary of names and their values, as "
            '{"size": ("small", "large")}.'
        )
    declared = {}
    for label, values in labels.items():
        if not isinstance(label, str) or not LABEL.fullmatch(label) or len(label) > MAX_CHARACTERS:
            raise StartError(f"the metric {name!r} has a label {label!r}, which is not a name for one.")
        if label.lower() in RESERVED_LABELS:
            raise StartError(f"the metric {name!r} has a label {label!r}, which has a meaning already.")
        texts = (str(value) for value in values)
        declared[label] = tuple(dict.fromkeys(text for text in texts if text != OTHERS))
        for text in declared[label]:
            if not 0 < len(text) <= MAX_CHARACTERS or not is_text(text):
                raise StartError(
                    f"the label {label!r} of the metric {name!r} has the value {text[:MAX_CHARACTERS]!r}: a "
                    f"value has 1 to {MAX_CHARACTERS} characters."
                )
    if not isinstance(documentation, str) or not is_text(documentation):
        raise StartError(f"the metric {name!r} needs a sentence that describes it.")
    return declared


def is_text(value: str) -> bool:
    """True if UTF-8 can encode it: a lone surrogate would spoil the whole of ``/metrics``."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def check_name(name: str, shape: Shape) -> None:
    """Raise :class:`StartError` if a metric of another shape is called so, or is shown by the same name."""
    for other, (other_shape, _) in _METRICS.items():
        if other == name and other_shape == shape:
            return
        shown = {f"{other}{ending}" for ending in ENDINGS[other_shape.kind]}
        if shown & {f"{name}{ending}" for ending in ENDINGS[shape.kind]}:
            raise StartError(
                f"the metric {name!r} is {shape}, but there is a metric {other!r} already, {other_shape}: "
                "give it another name, or start the box again if the other is gone."
            )
