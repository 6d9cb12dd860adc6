"""The example's dashboard and compose file have the form that Grafana and Compose take, and are documented."""

from __future__ import annotations

import json
import re
from typing import Any

import yaml  # type: ignore[import-untyped]

from sm.settings import HERE

FOLDER = HERE / "examples" / "monitoring"
DASHBOARD: dict[str, Any] = json.loads((FOLDER / "grafana/dashboards/trireme.json").read_text())
PANELS: list[dict[str, Any]] = DASHBOARD["panels"]
COMPOSE: dict[str, Any] = yaml.safe_load((FOLDER / "compose.yaml").read_text())
PAGE = (HERE / "docs/run/metrics.md").read_text()
#: Columns of Grafana's grid.
GRID = 24


def test_no_two_panels_have_one_number_or_lie_on_each_other() -> None:
    assert len({panel["id"] for panel in PANELS}) == len(PANELS) > 20
    taken: set[tuple[int, int]] = set()
    for panel in PANELS:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= GRID
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells


def test_every_query_goes_to_the_chosen_data_source_and_can_be_narrowed_to_a_box() -> None:
    for panel in PANELS:
        if panel["type"] == "row":
            continue
        assert panel["type"] in {"timeseries", "stat", "heatmap"}
        assert panel["description"]
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])
        for source in (panel, *panel["targets"]):
            assert source["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        for target in panel["targets"]:
            selectors = re.findall(r"\{[^{}]*=[^{}]*\}", target["expr"])
            assert selectors
            assert all('instance=~"$instance"' in selector for selector in selectors), panel["title"]


def test_the_variables_are_those_that_the_queries_use() -> None:
    names = {variable["name"] for variable in DASHBOARD["templating"]["list"]}
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(PANELS))) - {"__rate_interval"}
    assert names == used == {"datasource", "instance", "model"}


def test_the_compose_file_mounts_files_that_there_are_where_they_are_looked_for() -> None:
    mounts = {}
    for name, service in COMPOSE["services"].items():
        for volume in service["volumes"]:
            source, target = volume.removesuffix(":ro").rsplit(":", 1)
            mounts[target] = source
            if source.startswith("."):
                assert (FOLDER / source).exists(), volume
                assert volume.endswith(":ro")
            elif not source.startswith("${"):
                assert source in COMPOSE["volumes"], name
    config = yaml.safe_load((FOLDER / "prometheus.yml").read_text())
    for file in config["rule_files"]:
        assert mounts[f"/etc/prometheus/{file}"] == f"./{file}"
    [provider] = yaml.safe_load((FOLDER / "grafana/provisioning/dashboards/trireme.yml").read_text())[
        "providers"
    ]
    assert provider["options"]["path"] in mounts
    home = COMPOSE["services"]["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert (FOLDER / mounts[provider["options"]["path"]] / home.rpartition("/")[2]).is_file()


def test_the_services_find_each_other_by_name_and_port() -> None:
    config = yaml.safe_load((FOLDER / "prometheus.yml").read_text())
    targets = [
        target
        for job in config["scrape_configs"]
        for row in job["static_configs"]
        for target in row["targets"]
    ]
    [source] = yaml.safe_load((FOLDER / "grafana/provisioning/datasources/prometheus.yml").read_text())[
        "datasources"
    ]
    addresses = [*targets, source["url"].removeprefix("http://")]
    published = {
        f"{name}:{port.rpartition(':')[2]}"
        for name, service in COMPOSE["services"].items()
        for port in service["ports"]
    }
    assert set(addresses) < published


def test_nothing_is_published_beyond_this_machine() -> None:
    for service in COMPOSE["services"].values():
        assert all(port.startswith("127.0.0.1:") for port in service["ports"])


def test_every_alert_is_on_the_page() -> None:
    [group] = yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"]
    alerts = [rule["alert"] for rule in group["rules"]]
    assert re.findall(r"^\| `(Trireme\w+)` \|", PAGE, re.MULTILINE) == alerts
