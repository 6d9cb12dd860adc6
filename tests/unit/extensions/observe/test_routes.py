"""What watches a box may have routes: requests for them go to the control plane, and the document has them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pytest
from flask import Flask

from sm import entry_points
from sm.http.control_paths import ControlPath
from sm.http.openapi import document
from sm.server.observers import Observer
from sm.server.supervisor.nginx import control_values
from trireme_extensions.observe.dashboard import FOLDER, blueprint
from trireme_extensions.observe.observers import DASHBOARD


def test_the_dashboards_routes_are_its_paths_and_the_files_of_its_page() -> None:
    app = Flask("listed", static_folder=None)
    app.register_blueprint(blueprint(lambda _: b""))
    rules = {rule.rule for rule in app.url_map.iter_rules()}
    files = {rule.removeprefix("/page/") for rule in rules if rule.startswith("/page/")}
    assert rules - {f"/page/{file}" for file in files} == {path.rule for path in DASHBOARD.paths}
    loaded = re.findall(r'page/([\w.]+)"', (FOLDER / "dashboard.html").read_text())
    assert {*loaded} - files == {"style.css"}, "the core's"


class Load(Observer):
    """An observer of another distribution."""

    paths = (ControlPath("/load", is_open=True), ControlPath("/load/history"))

    def schema(self) -> Mapping[str, Any]:
        return {"paths": {path.rule: {"get": {"responses": {}}} for path in self.paths}}


def test_the_paths_of_another_observer_go_to_the_control_plane(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entry_points, "load", lambda _: (Load(),))
    patterns = control_values()
    assert re.fullmatch(patterns["open_paths"], "/load")
    assert re.fullmatch(patterns["keyed_paths"], "/load/history")
    assert not re.fullmatch(patterns["control_paths"], "/dashboard")
    assert "get" in document()["paths"]["/load"]
