"""nginx passes exactly the control plane's own routes to it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from flask import Flask

from sm.control import model_routes, pages, routes
from sm.http.control_paths import PATHS
from sm.run_state import Box
from sm.server.supervisor.nginx import control_values

PATTERNS = control_values()


def test_the_table_has_every_route_of_the_control_plane() -> None:
    app = Flask("listed", static_folder=None)
    for blueprint in (
        routes.blueprint(None),  # type: ignore[arg-type]  # the routes are only listed
        routes.execution_parameters(None),  # type: ignore[arg-type]
        pages.blueprint(None),  # type: ignore[arg-type]
        model_routes.loading(None, {}),  # type: ignore[arg-type]
    ):
        app.register_blueprint(blueprint)
    replaced = Flask("listed", static_folder=None)
    replaced.register_blueprint(model_routes.listing(Box("", Path(), Path(), 1, 2, 3, "nginx", 0)))
    rules = {rule.rule for listed in (app, replaced) for rule in listed.url_map.iter_rules()}
    assert rules == {path.rule for path in PATHS}


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("open_paths", "/page/main.js"),
        ("scraped_paths", "/dashboard/data"),
        ("keyed_paths", "/models/"),
        ("keyed_paths", "/models/pets"),
        ("keyed_paths", "/samples/pets/cat.jpg"),
        ("keyed_paths", "/openapi.json"),
        ("control_paths", "/ping"),
    ],
)
def test_a_path_of_the_control_plane_goes_there(name: str, path: str) -> None:
    assert re.fullmatch(PATTERNS[name], path)


OTHERS = ("/models/pets/invoke", "/openapi-json", "/page/a/b", "/invocations", "/pingx", "/v2/models")


@pytest.mark.parametrize("path", OTHERS)
def test_another_path_goes_to_the_workers(path: str) -> None:
    assert not re.fullmatch(PATTERNS["control_paths"], path)
