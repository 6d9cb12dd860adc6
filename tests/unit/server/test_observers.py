"""What watches the box is asked for by variables; the start says so where nothing that is installed serves one."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import entry_points as installed
from pathlib import Path
from typing import Any

import pytest

from sm.entry_points import OBSERVERS
from sm.errors import StartError
from sm.run_state import Box
from sm.server import observers
from sm.server.control_plane import ControlPlane
from sm.server.observers import ASKING, ObservedProcess, Observer
from sm.settings import Settings

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
    for unasked in ({"TRIREME_CAPTURE": ""}, {"TRIREME_EMF": "auto"}, {"TRIREME_EMF": "off"}):
        assert list(observers.describe(unasked)) == [row.describe() for row in rows]


def test_a_standard_variable_that_nothing_serves_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observers, "load", lambda: (Quiet(), Loud()))
    (level, text), last = observers.describe({**COLLECTOR, "TRIREME_CAPTURE": "/captures"})
    assert (level, last) == ("warning", ("info", "somebody watches"))
    assert next(iter(COLLECTOR)) in text and "[extensions,otel]" in text
