"""promtool accepts the rules, and each alert fires for its fault and for nothing else."""

from __future__ import annotations

import pytest

from tests.support.prometheus import promtool


@pytest.mark.parametrize("arguments", [("rules", "alerts.yml"), ("config", "prometheus.yml")])
def test_promtool_accepts_the_files(arguments: tuple[str, str]) -> None:
    completed = promtool("check", *arguments)
    assert completed.returncode == 0, completed.stdout + completed.stderr


def test_each_alert_fires_for_its_fault_and_for_nothing_else() -> None:
    completed = promtool("test", "rules", "alerts_test.yml")
    assert completed.returncode == 0, completed.stdout + completed.stderr
