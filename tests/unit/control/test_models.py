"""The log says who asks for a change of the models."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from flask import Flask

from sm.control import routes
from sm.errors import UnknownModel
from sm.http.responses import handle_errors


class FailingLoader:
    """A loader that has nothing to load."""

    def load(self, *_: str) -> object:
        raise UnknownModel("there is no such archive")

    def unload(self, name: str) -> None:
        raise UnknownModel(f"no model {name!r}")


@pytest.mark.parametrize("key", ["alice", ""])
def test_each_request_for_a_change_is_logged_with_its_id_and_the_callers_key(
    key: str, caplog: pytest.LogCaptureFixture
) -> None:
    loader: Any = FailingLoader()
    app = Flask(__name__)
    handle_errors(app)
    app.register_blueprint(routes.loading(loader, {}))
    headers = {"X-Request-Id": "one", **({"X-Trireme-Key-Name": key} if key else {})}
    with caplog.at_level(logging.INFO):
        loaded = app.test_client().post("/models", json={"model_name": "m", "url": "/m"}, headers=headers)
        unloaded = app.test_client().delete("/models/m", headers=headers)
    assert (loaded.status_code, unloaded.status_code) == (404, 404)
    lines = [record for record in caplog.records if record.name == "sm.control.routes"]
    assert [line.getMessage() for line in lines] == ["load requested", "unload requested"]
    for line in lines:
        assert (vars(line)["model"], vars(line)["request_id"]) == ("m", "one")
        assert vars(line).get("api_key_name", "") == key
