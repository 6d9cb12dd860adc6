"""``/ping``, ``/models`` and ``/metrics``, which must answer while the data plane is full."""

from __future__ import annotations

import functools
import json
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson
from flask import Blueprint, Response, request
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from sm.control.box_series import BoxSeries
from sm.errors import NotReady, TooLarge
from sm.http.messages import Answer
from sm.http.responses import respond
from sm.run_state import CODE, MAX_CONTROL_BODY_BYTES, Box, read_engines, read_json
from sm.settings import Settings
from sm.triton import health
from sm.triton.generation import SharedGeneration

#: For one query to Triton; SageMaker gives ``/ping`` 2 s.
TRITON_TIMEOUT_S = 1.0
#: More requests for ``/metrics`` get the last text again: while series are collected, ``/ping`` is slower.
MAX_SCRAPES_PER_S = 5
#: SageMaker's default for the payload of one request, and its limit for all concurrent requests, in MiB.
DEFAULT_PAYLOAD_MB, MAX_TOTAL_MB = 6, 100


def blueprint(box: Box) -> Blueprint:
    """Create the routes of the control plane."""
    routes = Blueprint("control", __name__)
    limit_bodies(routes)
    scrapes = ScrapeCache(lambda: router_metrics(box) + triton_metrics(box))

    @routes.route("/ping", methods=["GET", "POST"])
    def ping() -> Response:
        check_ready(box)
        return respond(Answer(b""))

    @routes.get("/metrics")
    def metrics() -> Response:
        return respond(Answer(scrapes.text(), CONTENT_TYPE_LATEST))

    return routes


class ScrapeCache:
    """The text of ``/metrics``. One thread at a time collects it; the text is less than a second old."""

    def __init__(self, collect: Callable[[], bytes], clock: Callable[[], float] = time.monotonic) -> None:
        self._collect, self._clock = collect, clock
        self._lock = threading.Lock()
        self._collecting = False
        #: When the last collections started.
        self._starts: deque[float] = deque(maxlen=MAX_SCRAPES_PER_S)
        self._text: bytes | None = None

    def text(self) -> bytes:
        """Return a new text; the last one while another thread collects, or if the limit is reached."""
        with self._lock:
            limit_reached = len(self._starts) == MAX_SCRAPES_PER_S and self._clock() - self._starts[0] < 1
            if self._text is not None and (limit_reached or self._collecting):
                return self._text
            self._starts.append(self._clock())
            self._collecting = True
        try:
            self._text = self._collect()
        finally:
            self._collecting = False
        return self._text


def check_ready(box: Box) -> None:
    """Raise :class:`NotReady` with the reason, unless every process is up and Triton is ready."""
    state = read_state(box)
    if not state["ready"]:
        raise NotReady(state["reason"])
    if box.draining_file.exists():
        raise NotReady("the box is being drained")
    status, _ = _triton(box, "GET", f"/v2/health/{box.ping}")
    if status != 200:
        raise NotReady(f"Triton is not {box.ping}" if status else "Triton does not answer")
    if box.ping == "ready" and not box.multi_model and (missing := away(box)):
        raise NotReady(f"these models are being loaded again: {', '.join(missing)}")


def away(box: Box) -> list[str]:
    """Return the models that lost a process and have been away for longer than the settings allow."""
    if box.generation_file is None:
        return []
    shared, now = _shared_generation(box.generation_file), time.clock_gettime(time.CLOCK_BOOTTIME)
    return [
        model
        for model in box.served_names()
        if (since := shared.out_since(model)) and now - since > box.away_seconds
    ]


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
    return json.loads(body) if status == 200 else None


def describe_served(box: Box, index: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of :func:`list_served` for Triton's list."""
    clients, engines = read_json(box.clients_file, []), read_engines(box)
    rows = []
    for client in clients:
        entries = [entry for entry in index if entry["name"] in client["models"]]
        state = readiness(entries, client["models"], engines, client.pop("load_error"))
        rows.append({**client, "modelName": client["name"], "modelUrl": client["url"], **state})
    with_client = {model for client in clients for model in client["models"]}
    for name in sorted({entry["name"] for entry in index} - with_client - {CODE}):
        entries = [entry for entry in index if entry["name"] == name]
        state = readiness(entries, [name], engines)
        rows.append({"modelName": name, "modelUrl": str(box.repository / name), "client": None, **state})
    return rows


def router_metrics(box: Box) -> bytes:
    """Return the sums of all workers' series, and the series of the whole box."""
    registry = CollectorRegistry()
    registry.register(BoxSeries(box, lambda: is_ready(box)))
    return generate_latest(registry)


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


def all_ready(entries: Sequence[Mapping[str, Any]], models: Iterable[str]) -> bool:
    """True if ``entries`` have each of ``models``, with every version ready. A client may have no model."""
    listed = {entry["name"] for entry in entries}
    return listed == {*models} and all(entry.get("state") == "READY" for entry in entries)


def readiness(
    entries: list[dict[str, Any]],
    models: Iterable[str],
    engines: Mapping[str, dict[str, Any]],
    load_error: str | None = None,
) -> dict[str, Any]:
    """Describe the state of a client's models; ``load_error``: why the client itself cannot serve.

    ``engines`` has the choices of models on the CPU target, by model and version.
    """
    names = (f"{entry['name']}.{entry.get('version', '')}" for entry in entries)
    ready = not load_error and all_ready(entries, models)
    reasons = (str(entry["reason"]) for entry in entries if entry.get("reason"))
    return {
        "ready": ready,
        "reason": None if ready else load_error or next(reasons, None),
        "versions": sorted({entry.get("version", "") for entry in entries} - {""}),
        "engines": [engines[name] for name in names if engines.get(name)],
    }


def _triton(box: Box, method: str, path: str, port: int = 0) -> tuple[int, bytes]:
    """Call one of Triton's routes; return status and body. Status 0 means no answer in time."""
    return health.request(port or box.http_port, box.http_keys, method, path, TRITON_TIMEOUT_S)


def limit_bodies(routes: Blueprint, limit: int = MAX_CONTROL_BODY_BYTES) -> None:
    """Refuse bodies with a Content-Length of more than ``limit`` bytes on these routes."""

    @routes.before_request
    def check_size() -> None:
        if (request.content_length or 0) > limit:
            raise TooLarge(f"the body is larger than the {limit} bytes this box accepts here")


def execution_parameters(settings: Settings) -> Blueprint:
    """Create the route of batch transform's parameters."""
    routes = Blueprint("batch", __name__)
    limit_bodies(routes)

    @routes.get("/execution-parameters")
    def read() -> Response:
        return respond(Answer(orjson.dumps(batch_parameters(settings))))

    return routes


def batch_parameters(settings: Settings) -> dict[str, object]:
    """Return the parameters; by default as many requests as there are threads, within SageMaker's limit."""
    payload_mb = DEFAULT_PAYLOAD_MB if settings.max_payload_mb is None else settings.max_payload_mb
    # 0 means payloads of any size, sent in chunks.
    max_payload_mb = (
        max(1, min(int(payload_mb), settings.max_body // 2**20, MAX_TOTAL_MB)) if payload_mb else 0
    )
    at_once = min(settings.worker_count * settings.threads, MAX_TOTAL_MB // max(1, max_payload_mb))
    # Leave it out if it is not set, as no spelling of the default suits everybody: the local mode of the
    # SageMaker SDK accepts only MultiRecord, and containers use MULTI_RECORD.
    strategy = {"BatchStrategy": settings.batch_strategy} if settings.batch_strategy else {}
    return {
        "MaxConcurrentTransforms": settings.max_transforms or max(1, at_once),
        **strategy,
        "MaxPayloadInMB": max_payload_mb,
    }
