"""The models and GPUs of a box, as the dashboard shows them."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sm.control.state import MAX_REASON, ModelStates, describe_served, read_index, triton_metrics
from sm.models.fetch.addresses import shown
from sm.models.load_records import LoadRecord, LoadRecords
from sm.models.model_leases import last_used
from sm.run_state import Box

READY, NOT_READY, UNKNOWN = "ready", "not ready", "unknown"
#: The state of a model that is being loaded or unloaded.
CHANGING = "loading"
#: Triton's series of a GPU, by the dashboard's names: a share from 0 to 1, bytes, watts.
GPU_FIELDS = {
    "utilization": "utilization",
    "memory_used_bytes": "memory_used",
    "memory_total_bytes": "memory_total",
    "power_usage": "power",
}
GPU_SERIES = re.compile(rf'^nv_gpu_({"|".join(GPU_FIELDS)})\{{gpu_uuid="([^"]*)"\}} (\S+)$', re.MULTILINE)


def find_gpus(box: Box) -> list[dict[str, Any]]:
    """Return each GPU as Triton's series describe it; Triton has them only where there is one."""
    gpus: dict[str, dict[str, Any]] = {}
    for name, gpu, number in GPU_SERIES.findall(triton_metrics(box).decode(errors="replace")):
        gpus.setdefault(gpu, {"uuid": gpu})[GPU_FIELDS[name]] = float(number)
    return list(gpus.values())


class ServedModels:
    """Reads the models from Triton. While Triton does not answer, it returns the last ones as ``unknown``.

    Args:
        box: The box.
        failures: Returns why the last load of a model failed, or its last new version, by name.
    """

    def __init__(self, box: Box, failures: Callable[[], Mapping[str, str]] = dict) -> None:
        self._box, self._failures, self._records = box, failures, LoadRecords(box.models_file)
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
        rows, snapshot, failures = [], self._records.read(), self._failures()
        for row in describe_served(self._box, index):
            name = row["modelName"]
            folders = [str(self._box.repository / model) for model in row.get("models") or [name]]
            if reason := failures.get(name):
                row["reason"] = f"its new version fails: {reason}"
            rows.append(self._describe(name, row["client"], row, folders, snapshot.records.get(name)))
        for name, record in snapshot.canaries.items():
            share = record.canary.percent if record.canary else 0
            state: dict[str, Any] = {
                "engines": [],
                "versions": [],
                "ready": True,
                "reason": f"a canary, {share} %",
            }
            rows.append(self._describe(name, None, state, [record.folder], record))
        return rows

    def _archives(self, index: list[dict[str, Any]]) -> list[dict[str, Any]]:
        rows, states, failures = [], ModelStates(self._box, index), dict(self._failures())
        # Those beside are what is left of loads that nobody waits for.
        for record in (each for each in self._records.read().records.values() if not each.version_of):
            client = record.client and record.client.rpartition("/")[2]
            state = states.describe(record.name, record.models.values())
            failures.pop(record.name, None)
            row = self._describe(record.name, client, state, [record.folder or record.url], record)
            rows.append(row if record.loaded else {**row, "state": CHANGING, "reason": ""})
        for name, reason in failures.items():
            state = {"engines": [], "versions": [], "ready": False, "reason": reason}
            rows.append(self._describe(name, None, state, []))
        return rows

    def _describe(
        self,
        name: str,
        client: str | None,
        state: Mapping[str, Any],
        folders: Sequence[str],
        record: LoadRecord | None = None,
    ) -> dict[str, Any]:
        box, identity = self._box, record.id if record else ""
        origin = shown(box.catalog or box.source)
        return {
            "name": name,
            "client": client or None,
            "engine": ", ".join(f"{each['engine']} {each['precision']}" for each in state["engines"]),
            "versions": state["versions"],
            # Replaced models alone have another one from time to time.
            "revision": identity if record and record.version else "",
            "source": f"{origin.rstrip('/')}/{name}" if origin else next(iter(folders), ""),
            "bytes": sum(size_of_folder(folder, identity) for folder in folders),
            "used": (identity and last_used(box.leases_folder, identity)) or None,
            "state": READY if state["ready"] else NOT_READY,
            "reason": (state["reason"] or "")[:MAX_REASON],
        }


@functools.lru_cache(maxsize=1024)
def size_of_folder(folder: str, _identity: str) -> int:
    """Return the bytes of a model's files. What has another identity may have other files."""
    return sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())
