"""What ``/models`` says of versions, and the log of who asks for a change."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from flask import Flask
from flask.testing import FlaskClient

from sm.control import model_routes
from sm.errors import BadInput, UnknownModel
from sm.http.responses import handle_errors
from sm.run_state import Box


class FailingLoader:
    """A loader that has nothing to load."""

    def load(self, *_: str) -> object:
        raise UnknownModel("there is no such archive")

    def unload(self, name: str) -> None:
        raise UnknownModel(f"no model {name!r}")


@pytest.fixture
def http_client() -> FlaskClient:
    """Multi-model mode without an archive."""
    loader: Any = FailingLoader()
    app = Flask(__name__)
    handle_errors(app)
    app.register_blueprint(model_routes.loading(loader, {}))
    return app.test_client()


@pytest.mark.parametrize("name", [".", "..", "a/b", "/", "a\nb", "a\0b", "\x7f", "x" * 257])
def test_a_name_that_cannot_be_a_models_is_a_400(http_client: FlaskClient, name: str) -> None:
    response = http_client.post("/models", json={"model_name": name, "url": "/m"})
    assert (response.status_code, response.get_json()["code"]) == (400, "bad_input")


@pytest.mark.parametrize("key", ["alice", ""])
def test_each_request_for_a_change_is_logged_with_its_id_and_the_callers_key(
    http_client: FlaskClient, key: str, caplog: pytest.LogCaptureFixture
) -> None:
    headers = {"X-Request-Id": "one", **({"X-Trireme-Key-Name": key} if key else {})}
    with caplog.at_level(logging.INFO):
        loaded = http_client.post("/models", json={"model_name": "m", "url": "/m"}, headers=headers)
        unloaded = http_client.delete("/models/m", headers=headers)
    assert (loaded.status_code, unloaded.status_code) == (404, 404)
    lines = [record for record in caplog.records if record.name == "sm.control.model_routes"]
    assert len(lines) == 2
    for line in lines:
        assert (vars(line)["model"], vars(line)["request_id"]) == ("m", "one")
        assert vars(line).get("api_key_name", "") == key


class NotedVersions:
    """The versions of a model ``net`` that has a canary, and of a new one that cannot be loaded."""

    failures: ClassVar[dict[str, str]] = {"net": "it is waiting", "new": "it has no weights"}

    def describe(self, name: str) -> dict[str, Any]:
        return {"canary": {"percent": 10}, "version_error": self.failures[name]} if name == "net" else {}


def test_the_versions_of_a_model_are_in_the_row_of_its_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = {"modelName": "shop", "models": ["net"], "ready": True}
    monkeypatch.setattr(model_routes, "list_served", lambda _: [dict(row)])
    app = Flask("models")
    box = Box("id", tmp_path, tmp_path, 1, 2, 3, "nginx", 0)
    app.register_blueprint(model_routes.listing(box, NotedVersions()))  # type: ignore[arg-type]
    shop, new = app.test_client().get("/models").get_json()["models"]
    assert app.test_client().get("/models/net").get_json() == shop
    assert shop == {**row, "canary": {"percent": 10}, "version_error": "it is waiting"}
    assert (new["modelName"], new["ready"], new["reason"]) == ("new", False, "it has no weights")


def test_a_long_list_has_pages_of_100_by_name() -> None:
    names = [f"m{number:03}" for number in range(150)]
    records = [SimpleNamespace(name=name, url=f"/{name}") for name in reversed(names)]
    loader: Any = SimpleNamespace(
        records=SimpleNamespace(read=lambda: SimpleNamespace(loaded=lambda: records))
    )
    first = model_routes.page(loader, {})
    second = model_routes.page(loader, {"next_page_token": first["nextPageToken"]})
    assert [len(first["models"]), len(second["models"]), "nextPageToken" in second] == [100, 50, False]
    rows = [*first["models"], *second["models"]]
    assert rows == [{"modelName": name, "modelUrl": f"/{name}"} for name in names]
    for limit in ("0", "no", "+5", "1_0", "\u0665", "9" * 5000):
        with pytest.raises(BadInput):
            model_routes.page(loader, {"limit": limit})
