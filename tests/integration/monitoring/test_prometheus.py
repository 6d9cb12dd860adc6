"""A real Prometheus scrapes a box under load and has every series that page, alerts and dashboard use."""

from __future__ import annotations

import base64
import json
import math
import os
import re
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sm.settings import HERE
from tests.support.box_fixture import Boxes
from tests.support.boxes import RunningBox, wait_until
from tests.support.load import Load, dispatch_body
from tests.support.prometheus import DASHBOARD, Prometheus, alert_rules, panels, running_prometheus

pytestmark = pytest.mark.exhaustive

#: Load before the first query: a rate needs a few scrapes.
LOAD_S = 15
PAGE = (HERE / "docs/run/metrics.md").read_text()
DOCUMENTED = dict(re.findall(r"^\| `(trireme_[a-z_]+)` \|([^|]*)\|", PAGE, re.MULTILINE))
#: Series of boxes whose models come and go; tests/integration/models has those boxes.
OF_OTHER_BOXES = {
    "trireme_model_evictions_total",
    "trireme_model_fetched_bytes_total",
    "trireme_model_load_seconds_total",
    "trireme_model_loads_total",
    "trireme_model_versions_total",
    "trireme_variant_duration_seconds",
}
#: Each kind of request of the load, and what its box counts of it.
COUNTED = {
    "good": 'invocations_total{model="resnet", status="200"}',
    "wrong": 'invocations_total{model="resnet", status="422"}',
    "refused": 'invocations_total{model="slow", status="429"}',
    "failed": 'invocations_total{model="fragile", status="500"}',
    "refused, by model": 'model_rejected_total{model="slow"}',
    "of a worker that died": 'restarts_total{process="worker"}',
    "waiting": 'invocation_duration_seconds_count{model="slow", stage="queue"}',
    "of a stage": 'invocation_duration_seconds_sum{model="resnet", stage="infer", status="2xx"}',
}
THRESHOLD = re.compile(r" (?:>|<|==) [0-9.]+\s*\Z")
#: Those of the dashboard, of the alerts without their thresholds, and of the load.
QUERIES = [
    *((panel["title"], target["expr"]) for panel in panels() for target in panel.get("targets", ())),
    *((rule["alert"], THRESHOLD.sub("", rule["expr"])) for rule in alert_rules()),
    *((kind, f"trireme_{series} > 0") for kind, series in COUNTED.items()),
]


@pytest.fixture(scope="module")
def busy_box(
    boxes: Boxes, demo: Path, cat: bytes, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningBox]:
    """A box that keeps payloads, whose callers get 200, 422, 429 and 500, and one of whose workers dies."""
    if shutil.which("prometheus") is None:
        pytest.skip("promtool is not installed")
    with boxes.own(
        demo,
        ("box",),
        SAGEMAKER_MODEL_SERVER_WORKERS="2",
        TRIREME_THREADS="2",
        TRIREME_QUEUE="2",
        TRIREME_CAPTURE=str(tmp_path_factory.mktemp("captures")),
    ) as box:
        picture = base64.b64encode(cat).decode()
        loads = [
            Load(box.port, dispatch_body("resnet", picture)).start(callers=1),
            Load(box.port, dispatch_body("bert_base", "A [MASK] sat on the mat.")).start(callers=1),
            Load(box.port, dispatch_body("resnet", {"no": "picture"}), retry_delay_s=0.1).start(callers=1),
            Load(box.port, dispatch_body("fragile", {}), retry_delay_s=0.1).start(callers=1),
            Load(box.port, dispatch_body("slow", {"seconds": 0.5}), retry_delay_s=0.2).start(callers=16),
        ]
        try:
            yield box
        finally:
            for load in loads:
                load.stop()


@pytest.fixture(scope="module")
def prometheus(busy_box: RunningBox, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    with running_prometheus(tmp_path_factory.mktemp("prometheus"), busy_box.port) as server:
        time.sleep(LOAD_S / 2)
        os.kill(busy_box.workers()[0], signal.SIGKILL)
        time.sleep(LOAD_S / 2)
        yield server


def query_values(prometheus: Prometheus, expression: str) -> list[float]:
    """The values of a dashboard's expression, with its variables filled in as Grafana does."""
    for variable, value in (("$__rate_interval", "10s"), ("$instance", ".*"), ("$model", ".*")):
        expression = expression.replace(variable, value)
    return [float(sample["value"][1]) for sample in prometheus.query(expression)]


def test_exactly_the_documented_series_are_there_with_their_labels(prometheus: Prometheus) -> None:
    found = {}
    for sample in prometheus.query('{__name__=~"trireme_.+"}'):
        name = re.sub(r"_(bucket|sum|count)$", "", sample["metric"]["__name__"])
        found[name] = sample["metric"].keys() - {"__name__", "instance", "job", "le"}
        assert not math.isnan(float(sample["value"][1]))
    names = DOCUMENTED.keys() - OF_OTHER_BOXES
    assert found == {name: {*re.findall(r"`(\w+)`", DOCUMENTED[name])} for name in names}


@pytest.mark.parametrize("title, expression", QUERIES)
def test_every_query_has_data(prometheus: Prometheus, title: str, expression: str) -> None:
    values = query_values(prometheus, expression)
    assert [value for value in values if not math.isnan(value)], f"{title}: {values}"


def test_the_dashboards_variables_have_values(prometheus: Prometheus, busy_box: RunningBox) -> None:
    values_by_variable = {}
    for variable in json.loads(DASHBOARD.read_text())["templating"]["list"]:
        if variable["type"] == "query":
            match = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"]["query"])
            assert match
            series = match[1].replace("$instance", ".*")
            values_by_variable[variable["name"]] = prometheus.get(
                f"label/{match[2]}/values", **{"match[]": series}
            )
    assert values_by_variable["instance"] == [f"127.0.0.1:{busy_box.port}"]
    assert {"resnet", "bert_base", "slow"} <= set(values_by_variable["model"])


def test_a_restart_fires_its_alert(prometheus: Prometheus) -> None:
    """Its series was there, at zero, before the restart. ``test_rules.py`` has what fires each of the others."""

    def state() -> str:
        rules = [rule for group in prometheus.get("rules")["groups"] for rule in group["rules"]]
        assert {rule["health"] for rule in rules} == {"ok"}
        return str({rule["name"]: rule["state"] for rule in rules}["TriremeProcessRestarted"])

    wait_until(lambda: state() == "firing", description="the alert of the restart")
