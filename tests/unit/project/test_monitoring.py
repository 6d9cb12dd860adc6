"""The monitoring example's dashboard, compose file and alerts are consistent and documented."""

from __future__ import annotations

import re
from typing import Any

import yaml

from sm.settings import HERE

EXAMPLE = HERE / "examples" / "monitoring"
COMPOSE: dict[str, Any] = yaml.safe_load((EXAMPLE / "compose.yaml").read_text())
PAGE = (HERE / "docs/run/metrics.md").read_text()


def test_ports_are_published_on_loopback_only() -> None:
    for service in COMPOSE["services"].values():
        assert all(port.startswith("127.0.0.1:") for port in service["ports"])


def test_the_page_lists_every_alert() -> None:
    [group] = yaml.safe_load((EXAMPLE / "alerts.yml").read_text())["groups"]
    alerts = [rule["alert"] for rule in group["rules"]]
    assert re.findall(r"^\| `(Trireme\w+)` \|", PAGE, re.MULTILINE) == alerts
