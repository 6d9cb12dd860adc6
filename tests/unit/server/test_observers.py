"""What watches the box is asked for by variables; the start says so where nothing that is installed serves one."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points as installed
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from flask import Blueprint, Flask

from sm import entry_points
from sm.control.app import create
from sm.entry_points import OBSERVERS, Shielded
from sm.errors import StartError
from sm.http.control_paths import ControlPath
from sm.http.openapi import document
from sm.run_state import Box
from sm.server import observers
from sm.server.control_plane import ControlPlane
from sm.server.observers import ASKING, ObservedProcess, Observer
from sm.server.plane import Plane
from sm.server.supervisor.processes import Probes
from sm.server.worker import DataPlane
from sm.settings import Settings

if TYPE_CHECKING:
    pass

COLLECTOR = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}


class Quiet(Observer):
    variables = ("TRIREME_CAPTURE",)


class Loud(Observer):
    def describe(self) -> tuple[str, str]:
        return "info", "somebody watches"


class Noting(Observer):
    """Notes what it is told; it hears of requests with the header ``x``."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def open(self, process: ObservedProcess) -> None:
        self.told.append((process.name, process.box.id, process.clients))

    def listen(self, headers: Mapping[str, str]) -> Any:
        return self if "x" in headers else None

    def close(self) -> None:
        self.told.append("closed")


def test_a_process_opens_and_closes_its_observers_and_asks_each_whether_it_listens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    noting, box = Noting(), Box("id", tmp_path, tmp_path, 1, 2, 3, "nginx", 0)
    monkeypatch.setattr(observers, "load", lambda: (Quiet(), noting))
    plane = ControlPlane(Settings(), box)
    plane.observe("control")
    listening: list[object] = [plane.listen({"x": "1"}), plane.listen({})]
    assert listening == [noting, None]
    plane.on_worker_exit(None, None)
    assert noting.told == [("control", "id", None), "closed"]


METHODS = ("describe", "open", "listen", "routes", "wrap", "write_span", "schema", "hear", "close")


def fail(*_: object) -> None:
    raise RuntimeError("a payload")


#: Fails in every method, with a text that nobody may read.
Failing: type[Observer] = type("Failing", (Observer,), dict.fromkeys(METHODS, fail))


def install(monkeypatch: pytest.MonkeyPatch, *rows: Observer) -> None:
    monkeypatch.setattr(entry_points, "observers", lambda: tuple(map(Shielded, rows)))


def test_a_row_that_fails_fails_nothing_that_it_watches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    noting, box = Noting(), Box("id", tmp_path, tmp_path, 1, 2, 3, "nginx", 0)
    install(monkeypatch, Failing(), noting)
    [(level, text)] = observers.describe({})
    assert level == "error" and "Failing" in text and "a payload" not in text
    plane = ControlPlane(Settings(), box)
    plane.observe("control")
    listening: object = plane.listen({"x": "1"})
    assert listening is noting
    app = Flask(__name__)
    for observer in plane.observers:
        assert observer.routes(dict) is None
        assert observer.wrap(app.wsgi_app) == app.wsgi_app
        observer.write_span("fetch", 1, {})
    assert "/ping" in document()["paths"]
    hear = plane.observers[0].hear
    assert hear and hear("echo", None, None, None) is None
    plane.on_worker_exit(None, None)
    assert noting.told == [("control", "id", None), "closed"]
    failed = [record.getMessage() for record in caplog.records if "Failing failed" in record.getMessage()]
    assert [message.split(": ")[1] for message in failed] == [*METHODS[1:]]
    assert "a payload" not in caplog.text


def test_routes_that_cannot_be_added_keep_no_other_route_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Routing(Observer):
        def __init__(self, path: str) -> None:
            self.paths = (ControlPath(path),)

        def routes(self, failures: Callable[[], Mapping[str, str]]) -> Blueprint:
            added = Blueprint("one-name", __name__)
            added.add_url_rule(self.paths[0].rule, "answer", lambda: "an answer")
            return added

        def schema(self) -> Mapping[str, Any]:
            return {"paths": {self.paths[0].rule: {"get": {"summary": "Says no more."}}}}

    install(monkeypatch, Routing("/first"), Routing("/second"))
    app = create(Settings(), Box("id", tmp_path, tmp_path, 1, 2, 3, "nginx", 0))
    statuses = [app.test_client().get(path).status_code for path in ("/first", "/second", "/page/main.js")]
    assert statuses == [200, 404, 200]
    assert "Routing failed: routes: ValueError" in caplog.text
    described = document()["paths"]
    assert {"/first", "/second", "/ping"} <= described.keys() and described["/first"]["get"]["responses"]


@pytest.mark.parametrize("plane", [ControlPlane, DataPlane])
def test_a_start_error_of_a_row_ends_the_start_with_its_sentence(
    plane: type[Plane], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Refusing(Observer):
        def open(self, process: ObservedProcess) -> None:
            raise StartError("the bucket is not there")

    install(monkeypatch, Refusing())
    monkeypatch.setenv("TRIREME_LISTENER", "3")
    box = Box("id", tmp_path, tmp_path, 1, 2, 3, "nginx", 0)
    with pytest.raises(SystemExit):
        plane(Settings(), box).observe("7")
    assert box.start_error_file.read_text() == "the bucket is not there"
    assert Probes(box, 0).failure("control") == Probes(box, 0).failure("data") == "the bucket is not there"


@pytest.mark.parametrize(
    "path",
    (
        *("/ping", "/", "/metrics", "/invocations", "/v2", "/models/<name>", "/models/a", "/page/x"),
        *("mine", "/mine/", "/mine own", "/mine;", "/mine$", "/<name>", "/taken"),
    ),
)
def test_a_row_has_paths_of_its_own_alone(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class First(Observer):
        paths = (ControlPath("/taken"), ControlPath("/taken/data", is_scraped=True))

    class Second(Observer):
        paths = (ControlPath(path),)

    install(monkeypatch, First(), Second())
    with pytest.raises(StartError, match=f"Second has the path {re.escape(repr(path))}"):
        list(observers.describe({}))


def test_every_variable_that_asks_for_an_observer_has_one_among_the_extensions() -> None:
    rows = [row.load() for row in installed(group=OBSERVERS) if row.value.startswith("trireme_extensions")]
    assert {variable for row in rows for variable in row.variables} == {*ASKING}


@pytest.mark.parametrize("rows", [(), (Loud(),)])
def test_a_setting_that_nothing_serves_stops_the_start(
    rows: tuple[Observer, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observers, "load", lambda: rows)
    with pytest.raises(StartError, match=r"TRIREME_CAPTURE.*trireme-serving\[extensions\]"):
        list(observers.describe({"TRIREME_CAPTURE": "/captures"}))
    with pytest.raises(StartError, match=r"TRIREME_EMF.*trireme-serving\[extensions\]"):
        list(observers.describe({"TRIREME_EMF": "on"}))
    for unasked in (
        {"TRIREME_CAPTURE": ""},
        *({"TRIREME_EMF": word} for word in ("auto", "off", "OFF ", "Auto")),
    ):
        assert list(observers.describe(unasked)) == [row.describe() for row in rows]


def test_a_standard_variable_that_nothing_serves_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observers, "load", lambda: (Quiet(), Loud()))
    (level, text), last = observers.describe({**COLLECTOR, "TRIREME_CAPTURE": "/captures"})
    assert (level, last) == ("warning", ("info", "somebody watches"))
    assert next(iter(COLLECTOR)) in text and "[extensions,otel]" in text
