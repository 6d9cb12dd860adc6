"""A client's own metrics: what can be declared, what counts, and that neither requests nor loads add series."""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sm.client.base import Client
from sm.client.own_metrics import MAX_NUMBERS, Metrics, setting_up
from sm.errors import ClientFailed, StartError
from sm.plugins import discovery
from tests.support import series
from tests.support.client_sources import EmptyTriton, write_client


class Counting(Client):
    """Makes what the test says."""

    make: Callable[[Metrics], Any]
    made: Any

    def setup(self) -> None:
        self.made = self.make(self.metrics)

    def inference(self, payload: object) -> object:
        return payload


def client(make: Callable[[Metrics], Any], name: str = "counting") -> Counting:
    """Return a client after its setup."""
    counting = Counting(EmptyTriton(), Path(), Path())
    counting.name, counting.make = name, make
    with setting_up(counting):
        counting.setup()
    return counting


@pytest.fixture
def name() -> str:
    """A name that no other test takes: metrics stay until the process ends."""
    return f"m_{uuid.uuid4().hex}"


def value(metric: Any) -> float:
    return series.value(metric._series)


def test_a_value_that_is_not_declared_counts_as_others(name: str) -> None:
    counter = client(lambda m: m.counter(name, "x", {"animal": ("cat", 7), "size": ("s", "l")})).made
    counter.labels("cat", "s").inc()
    counter.labels(size="l", animal="7").inc(2)
    for animal in ("dog", None, "x" * 10_000, "\ud800", "others"):
        counter.labels(animal, "s").inc()
    assert value(counter.labels("cat", "s")) == 1
    assert value(counter.labels(7, "l")) == 2
    assert value(counter.labels("wolf", "s")) == 5


@pytest.mark.parametrize(
    "call",
    [
        lambda counter: counter.inc(),
        lambda counter: counter.labels(),
        lambda counter: counter.labels("cat", "s"),
        lambda counter: counter.labels(size="s"),
        lambda counter: counter.labels("cat", animal="cat"),
    ],
)
def test_labels_that_the_metric_does_not_have_are_refused(call: Callable[[Any], object], name: str) -> None:
    counter = client(lambda m: m.counter(name, "x", {"animal": ("cat",)})).made
    with pytest.raises(ValueError, match="animal"):
        call(counter)


@pytest.mark.parametrize("amount", [-1, math.nan, math.inf, -math.inf])
def test_a_number_that_would_spoil_the_sum_is_refused(amount: float, name: str) -> None:
    counter = client(lambda m: m.counter(name, "x")).made
    gauge = client(lambda m: m.gauge(f"{name}_g", "x")).made
    histogram = client(lambda m: m.histogram(f"{name}_h", "x", buckets=(1, 2))).made
    with pytest.raises(ValueError, match=name):
        counter.inc(amount)
    if amount != -1:
        for call in (gauge.set, gauge.inc, gauge.dec, histogram.observe):
            with pytest.raises(ValueError, match=name):
                call(amount)
    assert (value(counter), value(gauge), value(histogram)) == (0, 0, 0)


def test_a_gauge_goes_up_and_down(name: str) -> None:
    gauge = client(lambda m: m.gauge(name, "x", {"of": ("a",)}, multiprocess_mode="livemin")).made.labels("a")
    gauge.set(5)
    gauge.inc()
    gauge.dec(2.5)
    assert value(gauge) == 3.5


@pytest.mark.parametrize(
    "make",
    [
        lambda m, name: m.counter("", "x"),
        lambda m, name: m.counter("cats-found", "x"),
        lambda m, name: m.counter("1st", "x"),
        lambda m, name: m.counter("cats:found", "x"),
        lambda m, name: m.counter("kätzchen", "x"),
        lambda m, name: m.counter("n" * 100, "x"),
        lambda m, name: m.counter(7, "x"),
        lambda m, name: m.counter(name, "\ud800"),
        lambda m, name: m.counter(name, None),
        lambda m, name: m.counter(name, "x", ("animal",)),
        lambda m, name: m.counter(name, "x", {"animal": "cat"}),
        lambda m, name: m.counter(name, "x", {"animal": None}),
        lambda m, name: m.counter(name, "x", {"animal": ("",)}),
        lambda m, name: m.counter(name, "x", {"animal": ("\ud800",)}),
        lambda m, name: m.counter(name, "x", {"animal": ("c" * 100,)}),
        lambda m, name: m.counter(name, "x", {"the animal": ("cat",)}),
        lambda m, name: m.counter(name, "x", {"__animal": ("cat",)}),
        lambda m, name: m.counter(name, "x", {"model": ("cat",)}),
        lambda m, name: m.counter(name, "x", {"Level": ("cat",)}),
        lambda m, name: m.histogram(name, "x", {"le": ("1",)}),
        lambda m, name: m.histogram(name, "x", buckets=()),
        lambda m, name: m.histogram(name, "x", buckets=(2, 1)),
        lambda m, name: m.histogram(name, "x", buckets=(1, 1)),
        lambda m, name: m.histogram(name, "x", buckets=(1, math.nan)),
        lambda m, name: m.histogram(name, "x", buckets=("one",)),
        lambda m, name: m.histogram(name, "x", buckets=5),
        lambda m, name: m.gauge(name, "x", multiprocess_mode="all"),
        lambda m, name: m.counter(name, "x", {"number": range(MAX_NUMBERS)}),
        lambda m, name: m.histogram(name, "x", {"a": range(20), "b": range(20)}),
        lambda m, name: [m.counter(f"{name}_{number}", "x") for number in range(MAX_NUMBERS + 1)],
        lambda m, name: [m.counter(name, "x"), m.counter(name, "x")],
        lambda m, name: [m.counter(name, "x"), m.counter(f"{name}_total", "x")],
        lambda m, name: [m.counter(name, "x"), m.gauge(f"{name}_total", "x")],
        lambda m, name: [m.histogram(name, "x"), m.gauge(f"{name}_count", "x")],
        lambda m, name: [m.gauge(f"{name}_sum", "x"), m.histogram(name, "x")],
    ],
)
def test_what_cannot_be_a_metric_is_an_error_at_start(make: Callable[[Any, str], Any], name: str) -> None:
    with pytest.raises(StartError):
        client(lambda m: make(m, name))


def test_a_client_that_is_loaded_again_counts_on_in_the_same_series(name: str) -> None:
    old = client(lambda m: m.counter(name, "x", {"animal": ("cat",)}))
    old.made.labels("cat").inc()
    new = client(lambda m: m.counter(name, "Said better.", {"animal": ("cat", "dog")}))
    new.made.labels("cat").inc()
    old.made.labels("cat").inc()
    assert value(new.made.labels("cat")) == 3
    assert value(new.made.labels("dog")) == 0


def test_two_clients_with_a_metric_of_one_name_differ_by_their_model(name: str) -> None:
    cats, dogs = (client(lambda m: m.counter(name, "x"), model) for model in ("cats", "dogs"))
    cats.made.inc()
    assert (value(cats.made), value(dogs.made)) == (1, 0)


@pytest.mark.parametrize(
    "make",
    [
        lambda m, name: m.gauge(name, "x"),
        lambda m, name: m.histogram(name, "x"),
        lambda m, name: m.counter(name, "x", {"animal": ("cat",)}),
    ],
)
def test_two_clients_must_mean_the_same_by_one_name(make: Callable[[Any, str], Any], name: str) -> None:
    client(lambda m: m.counter(name, "x"), "cats")
    with pytest.raises(StartError, match=name):
        client(lambda m: make(m, name), "dogs")


def test_a_metric_is_made_in_setup_and_nowhere_else(name: str) -> None:
    counting = client(lambda m: None)
    with pytest.raises(ClientFailed, match=name):
        counting.metrics.counter(name, "x")


METRIC_IN_INIT = """
from sm.client import Client

class Early(Client):
    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.metrics.counter("early", "x")

    def inference(self, payload):
        return 1
"""
OWN_ATTRIBUTE = """
from sm.client import Client

class Other(Client):
    def setup(self):
        self.metrics = {"loss": 1}

    def inference(self, payload):
        return self.metrics["loss"]
"""


def test_a_metric_that_is_made_before_setup_is_an_error_at_start(tmp_path: Path) -> None:
    write_client(tmp_path, "early", METRIC_IN_INIT)
    with pytest.raises(StartError, match="'early'"):
        discovery.find_clients((tmp_path,), EmptyTriton(), Path("/nowhere"))


def test_a_client_may_use_the_attribute_for_something_else(tmp_path: Path) -> None:
    write_client(tmp_path, "other", OWN_ATTRIBUTE)
    clients = discovery.find_clients((tmp_path,), EmptyTriton(), Path("/nowhere")).clients
    assert clients["other"].inference(None) == 1
