"""A client's own metrics: what can be declared, what counts, and that neither requests nor loads add series."""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import Counter, Gauge, Histogram

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


def made(make: Callable[[Metrics], Any], name: str = "counting") -> Any:
    """Return what a client makes in its setup."""
    counting = Counting(EmptyTriton(), Path(), Path())
    counting.name, counting.make = name, make
    with setting_up(counting):
        counting.setup()
    return counting.made


@pytest.fixture
def name() -> str:
    """A name that no other test takes, as metrics stay until the process ends."""
    return f"m_{uuid.uuid4().hex}"


def value(metric: Any) -> float:
    return series.value(metric)


def test_a_value_that_is_not_declared_counts_as_others(name: str) -> None:
    counter = made(lambda m: m.counter(name, "x", {"animal": ("cat", 7), "size": ("s", "l")}))
    counter.labels("cat", "s").inc()
    counter.labels(size="l", animal="7").inc(2)
    for animal in ("dog", None, "x" * 10_000, "\ud800", "others"):
        counter.labels(animal, "s").inc()
    labels = (("cat", "s"), (7, "l"), ("wolf", "s"))
    assert [value(counter.labels(*each)) for each in labels] == [1, 2, 5]


@pytest.mark.parametrize(
    "call",
    [
        lambda counter: counter.labels(),
        lambda counter: counter.labels("cat", "s"),
        lambda counter: counter.labels(size="s"),
        lambda counter: counter.labels("cat", animal="cat"),
    ],
)
def test_labels_that_the_metric_does_not_have_are_refused(call: Callable[[Any], object], name: str) -> None:
    counter = made(lambda m: m.counter(name, "x", {"animal": ("cat",)}))
    with pytest.raises(ValueError, match="animal"):
        call(counter)


def test_what_is_made_is_the_librarys_own(name: str) -> None:
    counter = made(lambda m: m.counter(name, "x", {"animal": ("cat",)})).labels("cat")
    gauge = made(lambda m: m.gauge(f"{name}_g", "x"))
    histogram = made(lambda m: m.histogram(f"{name}_h", "x", buckets=(1, 2, math.inf)))
    assert [type(each) for each in (counter, gauge, histogram)] == [Counter, Gauge, Histogram]
    with pytest.raises(ValueError):
        counter.inc(-1)
    with gauge.track_inprogress(), histogram.time():
        assert value(gauge) == 1
    assert (value(counter), value(gauge), value(histogram)) == (0, 0, 1)


def test_what_has_no_room_is_not_counted_and_its_client_serves(name: str) -> None:
    """The text of each series has the description, so 900 of these need more than a worker has."""
    metrics = made(lambda m: m.counter(name, "x" * 1000, {"number": range(900)}))
    assert metrics.labels(number=7).inc() is not None
    with metrics.labels(number=7).count_exceptions(), metrics.time() as timer:
        timer.labels("later")

    for decorate in (metrics.labels(number=7).count_exceptions(ValueError), metrics.time()):
        assert decorate(abs)(-4) == 4
    again = made(lambda m: m.counter(name, "x", {"number": range(90)})).labels(number=7)
    again.inc()
    assert value(again) == 1


@pytest.mark.parametrize(
    "make",
    [
        *(
            lambda m, _, wrong=wrong: m.counter(wrong, "x")
            for wrong in ("", "a-b", "1st", "a:b", "ä", "n" * 100, 7)
        ),
        *(lambda m, name, wrong=wrong: m.counter(name, wrong) for wrong in ("\ud800", None)),
        *(
            lambda m, name, wrong=wrong: m.counter(name, "x", {"animal": wrong})
            for wrong in ("cat", None, ("",), ("\ud800",), ("c" * 100,), range(MAX_NUMBERS))
        ),
        *(
            lambda m, name, wrong=wrong: m.counter(name, "x", {wrong: ("cat",)})
            for wrong in ("the animal", "__animal", "model", "Level")
        ),
        *(
            lambda m, name, wrong=wrong: m.histogram(name, "x", buckets=wrong)
            for wrong in ((), (2, 1), (1, 1), (1, math.nan), ("one",), 5)
        ),
        lambda m, name: m.counter(name, "x", ("animal",)),
        lambda m, name: m.histogram(name, "x", {"le": ("1",)}),
        lambda m, name: m.gauge(name, "x", multiprocess_mode="all"),
        lambda m, name: m.histogram(name, "x", {"a": range(20), "b": range(20)}),
        lambda m, name: [m.counter(f"{name}_{number}", "x") for number in range(MAX_NUMBERS + 1)],
        lambda m, name: [m.counter(name, "x"), m.counter(name, "x")],
        lambda m, name: [m.counter(name, "x"), m.gauge(f"{name}_total", "x")],
        lambda m, name: [m.histogram(name, "x"), m.gauge(f"{name}_count", "x")],
        lambda m, name: [m.gauge(f"{name}_sum", "x"), m.histogram(name, "x")],
    ],
)
def test_what_cannot_be_a_metric_is_an_error_at_start(make: Callable[[Any, str], Any], name: str) -> None:
    with pytest.raises(StartError):
        made(lambda m: make(m, name))


def test_a_client_that_is_loaded_again_counts_on_in_the_same_series(name: str) -> None:
    old = made(lambda m: m.counter(name, "x", {"animal": ("cat",)}))
    old.labels("cat").inc()
    new = made(lambda m: m.counter(name, "Said better.", {"animal": ("cat", "dog")}))
    new.labels("cat").inc()
    old.labels("cat").inc()
    assert (value(new.labels("cat")), value(new.labels("dog"))) == (3, 0)


def test_two_clients_mean_the_same_by_one_name_and_differ_by_their_model(name: str) -> None:
    cats, dogs = (made(lambda m: m.counter(name, "x"), model) for model in ("cats", "dogs"))
    cats.inc()
    assert (value(cats), value(dogs)) == (1, 0)
    for make in (lambda m: m.gauge(name, "x"), lambda m: m.counter(name, "x", {"animal": ("cat",)})):
        with pytest.raises(StartError, match=name):
            made(make, "dogs")


EARLY = """
from sm.client import Client

class Early(Client):
    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.metrics.counter("early", "x")
    def inference(self, payload): ...
"""


def test_a_metric_is_made_in_setup_and_nowhere_else(name: str, tmp_path: Path) -> None:
    metrics = made(lambda m: m)
    with pytest.raises(ClientFailed, match=name):
        metrics.counter(name, "x")
    write_client(tmp_path, "early", EARLY)
    with pytest.raises(StartError, match="'early'"):
        discovery.find_clients((tmp_path,), EmptyTriton(), Path("/nowhere"))
