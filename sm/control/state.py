"""The present state of a box, as the supervisor and Triton report it: ready or not, and its models."""

from __future__ import annotations

import functools
import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from sm.errors import NotReady
from sm.model_processes.generations import SharedGeneration, now
from sm.model_processes.reloads import LoadedProcesses
from sm.models.load_records import LoadRecords
from sm.models.versions import current_index
from sm.repository.models import CODE
from sm.run_state import Box, read_engines, read_json, read_unready
from sm.triton import server

#: Seconds for one query to Triton; SageMaker gives ``/ping`` 2 s.
TRITON_TIMEOUT_S = 1.0
#: Characters of Triton's reason why a model is not ready.
MAX_REASON = 200
LOADED_AGAIN = "it is being loaded again"


def check_ready(box: Box) -> None:
    """Raise :class:`NotReady` with the reason, unless every process is up and Triton is ready."""
    state = read_state(box)
    if not state["ready"]:
        raise NotReady(state["reason"])
    if box.draining_file.exists():
        raise NotReady("the box is being drained")
    status, _ = _triton(box, "GET", f"/v2/health/{box.ping}")
    if not status:
        raise NotReady("Triton does not answer")
    if status != 200:
        _explain(box)
    if box.ping != "ready" or box.multi_model:
        return
    if missing := out_too_long(box):
        raise NotReady(f"these models are being loaded again: {', '.join(missing)}")
    if reasons := read_unready(box):
        raise NotReady("; ".join(reasons.values()))


def _explain(box: Box) -> None:
    """Raise :class:`NotReady`, unless Triton is not ready only because of what the box itself deals with.

    These are models that are being loaded again, and new versions that could not be loaded. Triton 2.71 also
    asks its models: one whose process is dead is not ready until it is back.
    """
    gone = None
    if box.ping == "ready":
        gone = server.unready(box.http_port, box.http_keys, TRITON_TIMEOUT_S)
    if gone is None:
        raise NotReady(f"Triton is not {box.ping}")
    lasting = [row for row in gone if not _comes_back(box, row["name"])]
    if missing := {row["name"]: row["reason"] for row in _current(box, lasting)}:
        models = (f"{model} ({missing[model][:MAX_REASON]})" for model in sorted(missing))
        raise NotReady(f"these models are not ready: {', '.join(models)}")
    # The list has no line for a new version whose load failed and whose folder is gone again.
    is_explained = gone or (box.has_versions and _triton(box, "GET", "/v2/health/live")[0] == 200)
    if not is_explained:
        raise NotReady("Triton is not ready")


def _comes_back(box: Box, model: str) -> bool:
    """True if a model is out, or will be: it is loaded again, and :func:`out_too_long` counts the time."""
    if box.generation_file is None:
        return False
    shared = _shared_generation(box.generation_file)
    return bool(shared.out_since(model)) or LoadedProcesses(box).has_died(model)


def out_too_long(box: Box) -> list[str]:
    """Return the models that have been out for longer than ``/ping`` allows, by the callers' names.

    A box is ready without a canary, and without an old version that waits for its end.
    """
    if box.generation_file is None:
        return []
    shared, latest = _shared_generation(box.generation_file), now() - box.out_seconds
    out = [model for model in box.served_names() if (since := shared.out_since(model)) and since < latest]
    return [row["name"] for row in _current(box, [{"name": model} for model in out])]


@functools.lru_cache
def _shared_generation(file: Path) -> SharedGeneration:
    return SharedGeneration(file)


def read_state(box: Box) -> dict[str, Any]:
    """Return the state that the supervisor wrote last."""
    state: dict[str, Any] = read_json(box.state_file, {"ready": False, "reason": "the box is starting"})
    return state


def list_served(box: Box) -> list[dict[str, Any]]:
    """Return each client with its models, their versions and their readiness."""
    return describe_served(box, read_index(box) or [])


def read_index(box: Box) -> list[dict[str, Any]] | None:
    """Return Triton's list of its models and versions; None if it does not answer."""
    status, body = _triton(box, "POST", "/v2/repository/index")
    return _current(box, json.loads(body)) if status == 200 else None


def _current(box: Box, index: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return current_index(LoadRecords(box.models_file).read().records, index) if box.has_versions else index


def describe_served(box: Box, index: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of :func:`list_served` for Triton's list."""
    clients, states, rows = read_json(box.clients_file, []), ModelStates(box, index), []
    for client in clients:
        state = states.describe(client["name"], client["models"], client.pop("load_error"))
        rows.append({**client, "modelName": client["name"], "modelUrl": client["url"], **state})
    with_client = {model for client in clients for model in client["models"]}
    for name in sorted({entry["name"] for entry in index} - with_client - {CODE}):
        known = {"modelName": name, "modelUrl": str(box.repository / name), "client": None}
        rows.append({**known, **states.describe(name, [name])})
    return rows


def is_ready(box: Box) -> bool:
    """True if ``/ping`` would answer 200."""
    try:
        check_ready(box)
    except NotReady:
        return False
    return True


def triton_metrics(box: Box) -> bytes:
    """Return Triton's own series; empty if it does not answer."""
    status, body = _triton(box, "GET", "/metrics", box.metrics_port)
    return body if status == 200 else b""


class ModelStates:
    """The states of a box's models at one moment: whether each is ready, and why not.

    Args:
        box: The box.
        index: Triton's list of its models and versions.
    """

    def __init__(self, box: Box, index: Sequence[Mapping[str, Any]]) -> None:
        self._index, self._engines, self._unready = index, read_engines(box), read_unready(box)
        self._out = frozenset(out_too_long(box))

    def describe(self, name: str, models: Collection[str], load_error: str | None = None) -> dict[str, Any]:
        """Describe what callers know as ``name``: it needs each of ``models``, with every version ready.

        A client may need none. ``load_error`` says why the client itself cannot be loaded.
        """
        entries = [entry for entry in self._index if entry["name"] in models]
        names = (f"{entry['name']}.{entry.get('version', '')}" for entry in entries)
        reason = load_error or self._unready.get(name) or (LOADED_AGAIN if self._out & {*models} else None)
        is_complete = {entry["name"] for entry in entries} == {*models}
        ready = not reason and is_complete and all(entry.get("state") == "READY" for entry in entries)
        reasons = (str(entry["reason"]) for entry in entries if entry.get("reason"))
        return {
            "ready": ready,
            "reason": None if ready else reason or next(reasons, None),
            "versions": sorted({entry.get("version", "") for entry in entries} - {""}),
            "engines": [self._engines[name] for name in names if self._engines.get(name)],
        }


def _triton(box: Box, method: str, path: str, port: int = 0) -> tuple[int, bytes]:
    """Call one of Triton's routes; return status and body. Status 0 means no answer in time."""
    return server.request(port or box.http_port, box.http_keys, method, path, TRITON_TIMEOUT_S)
