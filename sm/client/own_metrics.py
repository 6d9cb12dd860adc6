"""A client's own metrics: counters, gauges and histograms that it makes in ``setup``.

They have the form of prometheus_client's. A label's values are declared, so no request can add a series.
"""

from __future__ import annotations

import logging
import math
import re
import sys
import threading
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import product
from typing import Any, Literal, Protocol, Self

import prometheus_client
from prometheus_client.mmap_dict import mmap_key

from sm.errors import ClientFailed, StartError
from sm.metrics import BUCKETS, CLIENT_PREFIX, MODELS, OTHERS
from sm.metrics.files import ENTRY_BYTES, make_room

log = logging.getLogger(__name__)
#: What the gauges of several workers become: their sum, lowest, highest or last value.
GaugeMode = Literal["livesum", "livemin", "livemax", "livemostrecent"]
MODES: tuple[GaugeMode, ...] = ("livesum", "livemin", "livemax", "livemostrecent")
#: Numbers of one client. A histogram has one for each bucket of each series, and two more. Every worker has
#: them, and every scrape reads them.
MAX_NUMBERS = 1000
#: Characters of a metric's name, of a label's name and of a label's value.
MAX_CHARACTERS = 64
NAME, LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*"), re.compile(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*")
#: As long as the bound of a bucket can be in a file.
LONG_BOUND = str(-sys.float_info.max)
#: Label names with a meaning of their own to Prometheus, or to the log's lines for CloudWatch.
RESERVED_LABELS = frozenset(("le", "quantile", "model", "endpoint", "level", "message"))
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
    detail: tuple[Any, ...] = ()

    @property
    def numbers(self) -> int:
        """How many numbers a series has: a histogram's sum, its buckets, and that of all that is larger."""
        return len(self.detail) + 2 if self.kind == "histogram" else 1

    def __str__(self) -> str:
        labels = f"the labels {', '.join(self.labels)}" if self.labels else "no labels"
        detail = f" and {', '.join(map(str, self.detail))}" if self.detail else ""
        return f"a {self.kind} with {labels}{detail}"


@dataclass(frozen=True)
class Family:
    """A metric of all clients that have one of its name."""

    shape: Shape
    #: prometheus_client's metric.
    metric: Any
    #: The label values, ``model`` first, of the series that have room in this worker's file.
    series: set[tuple[str, ...]] = field(default_factory=set)


#: The metrics of this worker, by name without prefix. They stay until it ends: a client that is loaded again
#: counts on in the same series, and one that is gone leaves its counts, as sums over workers must not fall.
_METRICS: dict[str, Family] = {}
_LOCK = threading.Lock()


class Unwritten:
    """Takes the counts of a metric for whose series there is no room."""

    def labels(self, *_: str) -> Self:
        return self

    def inc(self, amount: float) -> None:
        """Forget a number."""

    set = observe = inc


class Metric:
    """A metric. If it has labels, :meth:`labels` returns the series to count in."""

    def __init__(
        self, name: str, labels: Mapping[str, tuple[str, ...]], metric: Any, values: tuple[str, ...]
    ) -> None:
        self.name, self._labels = name, labels
        #: prometheus_client's metric, and the values of its first labels.
        self._metric, self._values = metric, values

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
        return type(self)(self.name, {}, self._metric, (*self._values, *key))

    @property
    def _series(self) -> Any:
        if self._labels:
            raise ValueError(f"{self.name} has labels: call labels({', '.join(self._labels)}) first")
        return self._metric.labels(*self._values)

    def _checked(self, amount: float, at_least: float = -math.inf) -> float:
        """Return the number; one that is not finite would spoil every later sum."""
        number = float(amount)
        if not math.isfinite(number) or number < at_least:
            expected = "a number from 0" if at_least == 0 else "a finite number"
            raise ValueError(f"{self.name} takes {expected}, not {number}")
        return number


class Counter(Metric):
    """A count of what has happened; it only grows."""

    def inc(self, amount: float = 1.0) -> None:
        """Add ``amount``. Raises :class:`ValueError` if it is negative or not finite."""
        self._series.inc(self._checked(amount, at_least=0))


class Histogram(Metric):
    """How numbers are spread, such as sizes or seconds."""

    def observe(self, amount: float) -> None:
        """Count ``amount`` in its bucket. Raises :class:`ValueError` if it is not finite."""
        self._series.observe(self._checked(amount))


class Gauge(Metric):
    """A value that goes up and down."""

    def set(self, value: float) -> None:
        """Set the value of this worker. Raises :class:`ValueError` if it is not finite."""
        self._series.set(self._checked(value))

    def inc(self, amount: float = 1.0) -> None:
        """Add to the value of this worker."""
        series, number = self._series, self._checked(amount)
        try:
            series.inc(number)
        except RuntimeError:  # the library has no such call in the mode livemostrecent
            with _LOCK:
                (family,) = series.collect()
                series.set(family.samples[0].value + number)

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
        return Counter(name, *self._make("counter", name, documentation, labels))

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
        return Gauge(name, *self._make("gauge", name, documentation, labels, (multiprocess_mode,)))

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
        return Histogram(name, *self._make("histogram", name, documentation, labels, bounds))

    def _make(
        self, kind: str, name: str, documentation: str, labels: Labels, detail: tuple[Any, ...] = ()
    ) -> tuple[Mapping[str, tuple[str, ...]], Any, tuple[str, ...]]:
        """Return the declared labels, prometheus_client's metric, and the value of its label ``model``."""
        if not self._is_open:
            raise ClientFailed(
                f"the client of {self._client.name!r} failed: it makes the metric {name!r} outside of setup, "
                "such as in a request; make it in setup(), keep it on self, and count in it"
            )
        if name in self._numbers:
            raise StartError(f"it makes the metric {name!r} twice.")
        declared = check_declaration(name, documentation, labels)
        shape = Shape(kind, (*declared,), detail)
        series = math.prod(len(values) + 1 for values in declared.values())
        self._numbers[name] = series * shape.numbers
        if sum(self._numbers.values()) > MAX_NUMBERS:
            raise StartError(
                f"with the metric {name!r} it has {sum(self._numbers.values()):,} series, and "
                f"{MAX_NUMBERS:,} are possible: declare fewer values of labels, or fewer buckets."
            )
        model = MODELS.of(self._client.name)
        combinations = [
            (model, *values) for values in product(*((*each, OTHERS) for each in declared.values()))
        ]
        with _LOCK:
            family = find_family(name, shape, documentation)
            new = [values for values in combinations if values not in family.series]
            if new and not reserve_room(name, shape, documentation, new):
                log.warning(
                    "the metric %r of the client %r is not on /metrics: there is no room for its series",
                    name,
                    self._client.name,
                )
                return declared, Unwritten(), (model,)
            family.series.update(new)
        if detail[:1] not in (("livemin",), ("livemax",)):  # a zero could be the lowest value, or the highest
            for values in new:
                family.metric.labels(*values)
        return declared, family.metric, (model,)


def find_family(name: str, shape: Shape, documentation: str) -> Family:
    """Return the metric of a name; make it if it is new. Raises :class:`StartError` if the name is taken."""
    family = _METRICS.get(name)
    if family is None:
        names = CLIENT_PREFIX + name, documentation, ("model", *shape.labels)
        with suppress(ValueError):  # another metric is shown by this name
            family = _METRICS[name] = Family(shape, create_metric(shape, *names))
    if family is None or family.shape != shape:
        taken = f", {family.shape}" if family else ""
        raise StartError(
            f"the metric {name!r} is {shape}, but there is another by this name already{taken}: give it "
            "another name, or start the box again if the other is gone."
        )
    return family


def create_metric(shape: Shape, name: str, documentation: str, labels: Sequence[str]) -> Any:
    """Create prometheus_client's metric. Raises :class:`ValueError` if the name is taken."""
    if shape.kind == "counter":
        return prometheus_client.Counter(name, documentation, labels)
    if shape.kind == "gauge":
        return prometheus_client.Gauge(name, documentation, labels, multiprocess_mode=shape.detail[0])
    return prometheus_client.Histogram(name, documentation, labels, buckets=shape.detail)


def reserve_room(name: str, shape: Shape, documentation: str, series: Iterable[tuple[str, ...]]) -> bool:
    """Reserve disk space for new series. Returns False if there is none."""
    names = CLIENT_PREFIX + name, CLIENT_PREFIX + name + "_bucket", ["model", *shape.labels, "le"]
    sizes = [len(mmap_key(*names, [*values, LONG_BOUND], documentation)) + ENTRY_BYTES for values in series]
    kind = f"gauge_{shape.detail[0]}" if shape.kind == "gauge" else shape.kind
    return make_room(kind, shape.numbers * sum(sizes))


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
