"""promtool accepts the rules, and each alert fires for its fault and for nothing else."""

from __future__ import annotations

import pytest
import yaml

from tests.support.prometheus import MONITORING, alert_rules, promtool

TESTS = yaml.safe_load((MONITORING / "alerts_test.yml").read_text())["tests"]


@pytest.mark.parametrize("arguments", [("rules", "alerts.yml"), ("config", "prometheus.yml")])
def test_promtool_accepts_the_files(arguments: tuple[str, str]) -> None:
    completed = promtool("check", *arguments)
    assert completed.returncode == 0, completed.stdout + completed.stderr


def test_each_alert_fires_for_its_fault_and_for_nothing_else() -> None:
    completed = promtool("test", "rules", "alerts_test.yml")
    assert completed.returncode == 0, completed.stdout + completed.stderr


@pytest.mark.parametrize("alert", [rule["alert"] for rule in alert_rules()])
def test_each_alerts_test_has_a_series_that_fires_and_one_that_does_not(alert: str) -> None:
    """promtool compares all alerts with the expected ones, so a series that is not among them did not fire."""
    [test] = [test for test in TESTS if {entry["alertname"] for entry in test["alert_rule_test"]} == {alert}]
    firing = max(len(entry.get("exp_alerts", ())) for entry in test["alert_rule_test"])
    subjects = {
        part
        for entry in test["input_series"]
        for part in entry["series"].split('"')
        if part.endswith(":8080") or part in ("worker", "triton", "flooded", "burst", "quiet", "slow", "fast")
    }
    assert 0 < firing < len(subjects)
