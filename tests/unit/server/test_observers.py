"""What watches the box is asked for by variables; the start says so where nothing that is installed serves one."""

from __future__ import annotations

from importlib.metadata import entry_points as installed

import pytest

from sm.errors import StartError
from sm.server import observers
from sm.server.observers import ASKING, Observer

COLLECTOR = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}


class Quiet(Observer):
    variables = ("TRIREME_CAPTURE",)


class Loud(Observer):
    def describe(self) -> tuple[str, str]:
        return "info", "somebody watches"


def test_every_variable_that_asks_for_an_observer_has_one_among_the_extensions() -> None:
    rows = [
        row.load() for row in installed(group=observers.GROUP) if row.value.startswith("trireme_extensions")
    ]
    assert {variable for row in rows for variable in row.variables} == {*ASKING}


@pytest.mark.parametrize("rows", [(), (Loud(),)])
def test_a_setting_that_nothing_serves_stops_the_start(
    rows: tuple[Observer, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observers, "load", lambda: rows)
    with pytest.raises(StartError, match=r"TRIREME_CAPTURE.*trireme-serving\[extensions\]"):
        list(observers.describe({"TRIREME_CAPTURE": "/captures"}))
    assert list(observers.describe({"TRIREME_CAPTURE": ""})) == [row.describe() for row in rows]


def test_a_standard_variable_that_nothing_serves_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observers, "load", lambda: (Quiet(), Loud()))
    (level, text), last = observers.describe({**COLLECTOR, "TRIREME_CAPTURE": "/captures"})
    assert (level, last) == ("warning", ("info", "somebody watches"))
    assert next(iter(COLLECTOR)) in text and "[extensions,otel]" in text
