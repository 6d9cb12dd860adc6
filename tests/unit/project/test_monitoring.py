"""The monitoring example's dashboard, compose file and alerts are consistent and documented."""

from __future__ import annotations

import re
from typing import Any

import yaml

from sm.settings import HERE

EXAMPLE = HERE / "examples" / "monitoring"
COMPOSE: dict[str, Any] = yaml.safe_load((EXAMPLE / "compose.yaml").read_text())
PAGE = (HERE / "docs/run/metrics.md").read_text()


def test_the_compose_file_mounts_existing_files_where_they_are_read() -> None:
    mounts = {}
    for name, service in COMPOSE["services"].items():
        for volume in service["volumes"]:
            source, target = volume.removesuffix(":ro").rsplit(":", 1)
            mounts[target] = source
            if source.startswith("."):
                assert (EXAMPLE / source).exists(), volume
                assert volume.endswith(":ro")
            elif not source.startswith("${"):
                assert source in COMPOSE["volumes"], name
    config = yaml.safe_load((EXAMPLE / "prometheus.yml").read_text())
    for file in config["rule_files"]:
        assert mounts[f"/etc/prometheus/{file}"] == f"./{file}"
    [provider] = yaml.safe_load((EXAMPLE / "grafana/provisioning/dashboards/trireme.yml").read_text())[
        "providers"
    ]
    assert provider["options"]["path"] in mounts
    home_dashboard = COMPOSE["services"]["grafana"]["environment"][
        "GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"
    ]
    assert (EXAMPLE / mounts[provider["options"]["path"]] / home_dashboard.rpartition("/")[2]).is_file()


def test_the_services_address_each_other_by_name_and_port() -> None:
    config = yaml.safe_load((EXAMPLE / "prometheus.yml").read_text())
    targets = [
        target
        for job in config["scrape_configs"]
        for static_config in job["static_configs"]
        for target in static_config["targets"]
    ]
    [source] = yaml.safe_load((EXAMPLE / "grafana/provisioning/datasources/prometheus.yml").read_text())[
        "datasources"
    ]
    addresses = [*targets, source["url"].removeprefix("http://")]
    published = {
        f"{name}:{port.rpartition(':')[2]}"
        for name, service in COMPOSE["services"].items()
        for port in service["ports"]
    }
    assert set(addresses) < published


def test_ports_are_published_on_loopback_only() -> None:
    for service in COMPOSE["services"].values():
        assert all(port.startswith("127.0.0.1:") for port in service["ports"])


def test_the_page_lists_every_alert() -> None:
    [group] = yaml.safe_load((EXAMPLE / "alerts.yml").read_text())["groups"]
    alerts = [rule["alert"] for rule in group["rules"]]
    assert re.findall(r"^\| `(Trireme\w+)` \|", PAGE, re.MULTILINE) == alerts
