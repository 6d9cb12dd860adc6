"""Run a real Prometheus that scrapes a box, and run promtool. Both are in Debian's package ``prometheus``."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import requests
import yaml

from sm.settings import HERE
from tests.support.boxes import free_port, wait_until

MONITORING = HERE / "examples" / "monitoring"
DASHBOARD = MONITORING / "grafana" / "dashboards" / "trireme.json"


def promtool(*arguments: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run promtool in the example's folder. The test is skipped if it is not installed."""
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed")
    return subprocess.run(
        ["promtool", *arguments], cwd=MONITORING, input=text, capture_output=True, text=True, timeout=60
    )


def alert_rules() -> list[dict[str, Any]]:
    """Return the rules of the example."""
    groups = yaml.safe_load((MONITORING / "alerts.yml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def panels() -> list[dict[str, Any]]:
    """Return the dashboard's panels."""
    return list(json.loads(DASHBOARD.read_text())["panels"])


@dataclass
class Prometheus:
    """A running Prometheus."""

    port: int
    log: Path

    def get(self, path: str, **parameters: str) -> Any:
        """Call Prometheus's API and return the data. AssertionError with Prometheus's message if it fails."""
        answer = requests.get(f"http://127.0.0.1:{self.port}/api/v1/{path}", params=parameters, timeout=10)
        body = answer.json()
        assert body["status"] == "success", f"{parameters}: {body.get('error')}"
        return body["data"]

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Return the series of an expression, each with its labels and value now."""
        data = self.get("query", query=expression)
        assert data["resultType"] == "vector", expression
        return list(data["result"])


@contextmanager
def running_prometheus(folder: Path, port: int) -> Iterator[Prometheus]:
    """Run Prometheus with the example's configuration and rules; it scrapes the box at ``port`` every second."""
    config = yaml.safe_load((MONITORING / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    [job] = config["scrape_configs"]
    assert job["static_configs"] == [{"targets": ["box:8080"]}]
    job["static_configs"] = [{"targets": [f"127.0.0.1:{port}"]}]
    config["rule_files"] = [str(MONITORING / name) for name in config["rule_files"]]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    server = Prometheus(free_port(), folder / "prometheus.log")
    command = [
        "prometheus",
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{server.port}",
    ]
    with server.log.open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        wait_until(lambda: b"Server is ready" in server.log.read_bytes(), description="Prometheus")
        yield server
    finally:
        process.terminate()
        process.wait(30)
