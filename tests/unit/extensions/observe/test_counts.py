"""A point of the history is the difference between two readings of the metrics, and stays small."""

from __future__ import annotations

import math
import zlib

import pytest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from sm.metrics import MODELS
from sm.router.answers import dumps
from trireme_extensions.observe.counts import MAX_STAGES, Counts, describe, describe_own
from trireme_extensions.observe.history import MAX_POINTS

BOUNDS = {0.01: 10.0, 0.1: 90.0, 1.0: 100.0, math.inf: 100.0}


def make_counts(at: float, models: dict[str, int], stages: int = 1) -> Counts:
    """Return a reading in which each model has this many answers, one in ten of them with status 422."""
    found = Counts(at, threads=dict.fromkeys(models, 1.0), queues=dict.fromkeys(models, 2.0), in_flight=3.0)
    for name, answers in models.items():
        found.answers.update({(name, "200"): 0.9 * answers, (name, "422"): 0.1 * answers})
        found.durations[name, "2xx"] = {bound: answers * part / 100 for bound, part in BOUNDS.items()}
        found.stages.update(
            {(name, f"stage-{index}"): answers * (index + 1) / 1e3 for index in range(stages)}
        )
    return found


def test_a_point_counts_only_what_happened_between_the_readings() -> None:
    before, after = {"a": 100, "idle": 50}, {"a": 200, "idle": 50, "new": 10}
    point = describe(make_counts(100.0, before), make_counts(105.0, after))
    assert (point["at"], point["seconds"]) == (105.0, 5.0)
    assert point["all"]["answers"] == {"2xx": 99, "4xx": 11}
    assert point["models"]["a"]["answers"] == {"2xx": 90, "4xx": 10}
    assert point["models"]["new"]["answers"] == {"2xx": 9, "4xx": 1}
    assert point["models"]["a"]["p50_ms"] == pytest.approx(55)
    assert point["models"]["a"]["stages_ms"] == {"stage-0": 100.0}


def test_a_model_with_only_a_queue_is_in_the_point_and_an_idle_one_is_not() -> None:
    before = Counts(0.0, queues={"stuck": 0.0, "idle": 0.0})
    point = describe(before, Counts(5.0, queues={"stuck": 7.0, "idle": 0.0}))
    assert point["models"].keys() == {"stuck"}
    assert point["models"]["stuck"]["queue"] == point["all"]["queue"] == 7


def test_an_hour_of_the_most_models_takes_a_few_megabytes_as_only_the_longest_stages_are_kept() -> None:
    """Models beyond the limit share one series."""
    names = {
        f"a-model-with-a-rather-long-name-{index}": 100 + index for index in range(MODELS._max_values + 1)
    }
    point = describe(Counts(0.0), make_counts(5.0, names, stages=40))
    stages = next(iter(point["models"].values()))["stages_ms"]
    assert list(stages) == [f"stage-{index}" for index in range(39, 39 - MAX_STAGES, -1)]
    assert len(zlib.compress(dumps(point))) * MAX_POINTS < 4e6


def test_counts_are_read_from_the_metrics_by_their_labels() -> None:
    answers = CounterMetricFamily("trireme_invocations", "x", labels=["model", "status"])
    answers.add_metric(["m", "200"], 4)
    name = "trireme_invocation_duration_seconds"
    durations = HistogramMetricFamily(name, "x", labels=["model", "stage", "status"])
    durations.add_metric(["m", "total", "2xx"], [("0.1", 2), ("+Inf", 4)], 1.5)
    durations.add_metric(["m", "infer", "2xx"], [("0.1", 3), ("+Inf", 6)], 1.25)
    queue = GaugeMetricFamily("trireme_model_queue_length", "x", labels=["model"])
    queue.add_metric(["m"], 2)
    others = [GaugeMetricFamily(name, "x", value=5) for name in ("trireme_in_flight", "another")]
    counts = Counts.from_families([answers, durations, queue, *others], 7.0)
    assert counts.answers == {("m", "200"): 4}
    assert counts.durations == {("m", "2xx"): {0.1: 2, math.inf: 4}}
    assert (counts.seconds, counts.stages) == ({("m", "2xx"): 1.5}, {("m", "infer"): 1.25})
    assert (counts.in_flight, counts.queues, counts.at) == (5, {"m": 2}, 7.0)


def test_the_clients_own_metrics_are_described_by_what_happened_between_two_moments() -> None:
    def read(cats: float, size: float, number: float, words: float) -> Counts:
        counter = CounterMetricFamily("trireme_client_cats", "x", labels=["model", "size"])
        counter.add_metric(["a", "small"], cats)
        counter.add_metric(["a", "others"], 0)
        histogram = HistogramMetricFamily("trireme_client_bytes", "x", labels=["model"])
        histogram.add_metric(["a"], [("10", number - 1), ("+Inf", number)], size)
        gauge = GaugeMetricFamily("trireme_client_words", "x", labels=["model"])
        gauge.add_metric(["a"], words)
        return Counts.from_families([counter, histogram, gauge], 0.0)

    columns = ("name", "kind", "labels", "value", "last_minute", "mean")
    rows = describe_own(read(2, 100, 4, 7), read(5, 160, 6, 0))
    assert [tuple(row[column] for column in columns) for row in rows] == [
        ("bytes", "histogram", {}, 6, 2, 30),
        ("cats", "counter", {"size": "small"}, 5, 3, None),
        ("words", "gauge", {}, 0, None, None),
    ]
