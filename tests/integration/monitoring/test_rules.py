"""promtool accepts the files, and each alert fires for its fault and for nothing else."""

from __future__ import annotations

import pytest

from tests.support.prometheus import promtool


@pytest.mark.parametrize(
    "arguments", [("check", "config", "prometheus.yml"), ("test", "rules", "alerts_test.yml")]
)
def test_promtool_accepts_the_files(arguments: tuple[str, ...]) -> None:
    completed = promtool(*arguments)
    assert completed.returncode == 0, completed.stdout + completed.stderr
