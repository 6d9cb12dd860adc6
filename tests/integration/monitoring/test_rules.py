"""promtool takes the rules, and each alert fires for its fault and for nothing else."""

from __future__ import annotations

import pytest
import yaml  # type: ignore[import-untyped]

from tests.support.prometheus import MONITORING, alert_rules, promtool

TESTS = yaml.safe_load((MONITORING / "alerts_test.yml").read_text())["tests"]


@pytest.mark.parametrize("arguments", [("rules", "alerts.yml"), ("config", "prometheus.yml")])
def test_promtool_takes_the_files(arguments: tuple[str, str]) -> None:
    done = promtool("check", *arguments)
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_fires_for_its_fault_and_for_nothing_else() -> None:
    done = promtool("test", "rules", "alerts_test.yml")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("alert", [rule["alert"] for rule in alert_rules()])
def test_there_is_a_case_in_which_the_alert_fires_beside_one_in_which_it_does_not(alert: str) -> None:
    """promtool compares the alerts with those listed, so a series without one among them does not fire."""
    [case] = [case for case in TESTS if {row["alertname"] for row in case["alert_rule_test"]} == {alert}]
    firing = max(len(row.get("exp_alerts", ())) for row in case["alert_rule_test"])
    subjects = {
        part
        for row in case["input_series"]
        for part in row["series"].split('"')
        if part.endswith(":8080") or part in ("worker", "triton", "flooded", "burst", "quiet", "slow", "fast")
    }
    assert 0 < firing < len(subjects)
