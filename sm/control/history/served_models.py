"""The models of a box with their versions and their state, as Triton reports them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sm.control.routes import describe_served, read_index, readiness
from sm.multimodel.load_records import Records
from sm.run_state import Box, read_engines

READY, NOT_READY, UNKNOWN = "ready", "not ready", "unknown"


class ServedModels:
    """Reads the models from Triton. While Triton does not answer, it returns the last ones as ``unknown``."""

    def __init__(self, box: Box) -> None:
        self._box, self._records = box, Records(box.models_file)
        self._rows: list[dict[str, Any]] = []

    def find(self) -> tuple[list[dict[str, Any]], bool]:
        """Return the models, and whether Triton answered.

        If Triton's model-repository API is restricted, there are none: everybody may read the dashboard.
        """
        if self._box.repository_keys:
            return [], False
        index = read_index(self._box)
        if index is None:
            unknown = {"state": UNKNOWN, "reason": "Triton does not answer"}
            return [{**row, **unknown} for row in self._rows], False
        self._rows = self._archives(index) if self._box.multi_model else self._clients(index)
        return self._rows, True

    def _clients(self, index: list[dict[str, Any]]) -> list[dict[str, Any]]:
        rows = []
        for row in describe_served(self._box, index):
            rows.append(_describe(row["modelName"], row["client"], row))
        return rows

    def _archives(self, index: list[dict[str, Any]]) -> list[dict[str, Any]]:
        rows, engines = [], read_engines(self._box)
        for record in self._records.read().loaded():
            models = set(record.models.values())
            entries = [entry for entry in index if entry["name"] in models]
            client = record.client and record.client.rpartition("/")[2]
            rows.append(_describe(record.name, client, readiness(entries, models, engines)))
        return rows


def _describe(name: str, client: str | None, state: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "name": name,
        "client": client or None,
        "engine": ", ".join(f"{each['engine']} {each['precision']}" for each in state["engines"]),
        "versions": state["versions"],
        "state": READY if state["ready"] else NOT_READY,
        "reason": (state["reason"] or "")[:200],
    }
