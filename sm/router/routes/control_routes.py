"""``/ping``, ``/models`` and ``/metrics``, which must answer while the data plane is full."""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from flask import Blueprint, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from sm.errors import NotReady
from sm.router.answer import Answer
from sm.router.routes.responses import limit_bodies, respond
from sm.run_state import CODE, Box
from sm.triton import health

#: Seconds that Triton gets for a question of the control plane; ``/ping`` has 2 in all.
TRITON_TIMEOUT_S = 1.0
#: Times a second that the series are collected, however often they are asked for: ``/ping`` waits meanwhile.
MAX_SCRAPES_PER_S = 5


def blueprint(box: Box) -> Blueprint:
    """The routes of the control plane."""
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
    """The text of ``/metrics``, less than a second old, and collected by one thread at a time."""

    def __init__(self, collect: Callable[[], bytes], clock: Callable[[], float] = time.monotonic) -> None:
        self._collect, self._clock = collect, clock
        self._lock = threading.Lock()
        self._collecting = False
        #: When the last collections began.
        self._begun: deque[float] = deque(maxlen=MAX_SCRAPES_PER_S)
        self._text: bytes | None = None

    def text(self) -> bytes:
        """A new text, unless one is being made or enough were made within this second."""
        with self._lock:
            enough = len(self._begun) == MAX_SCRAPES_PER_S and self._clock() - self._begun[0] < 1
            if self._text is not None and (enough or self._collecting):
                return self._text
            self._begun.append(self._clock())
            self._collecting = True
        try:
            self._text = self._collect()
        finally:
            self._collecting = False
        return self._text


def check_ready(box: Box) -> None:
    """:class:`NotReady` with the reason, unless every process is up and Triton says it is ready."""
    state = _read(box.state_file, {"ready": False, "reason": "the box is starting"})
    if not state["ready"]:
        raise NotReady(state["reason"])
    status, _ = _triton(box, "GET", f"/v2/health/{box.ping}")
    if status != 200:
        raise NotReady(f"Triton is not {box.ping}" if status else "Triton does not answer")


def list_served(box: Box) -> list[dict[str, Any]]:
    """What is served: each client with its models, their versions and whether they are ready."""
    status, body = _triton(box, "POST", "/v2/repository/index")
    index = json.loads(body) if status == 200 else []
    clients = _read(box.clients_file, [])
    rows = []
    for client in clients:
        own = [entry for entry in index if entry["name"] in client["models"]]
        rows.append({**client, "modelName": client["name"], "modelUrl": client["url"], **_readiness(own)})
    used = {model for client in clients for model in client["models"]}
    for name in sorted({entry["name"] for entry in index} - used - {CODE}):
        own = [entry for entry in index if entry["name"] == name]
        rows.append(
            {"modelName": name, "modelUrl": str(box.repository / name), "client": None, **_readiness(own)}
        )
    return rows


def router_metrics(box: Box) -> bytes:
    """The series of every worker, added up."""
    registry = CollectorRegistry()
    MultiProcessCollector(registry, path=str(box.metrics_folder))  # type: ignore[no-untyped-call]
    return generate_latest(registry)


def triton_metrics(box: Box) -> bytes:
    """Triton's own series; nothing while it is away."""
    status, body = _triton(box, "GET", "/metrics", box.metrics_port)
    return body if status == 200 else b""


def _readiness(entries: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "ready": bool(entries) and all(entry.get("state") == "READY" for entry in entries),
        "versions": sorted({entry.get("version", "") for entry in entries} - {""}),
    }


def _read(path: Any, otherwise: Any) -> Any:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return otherwise


def _triton(box: Box, method: str, path: str, port: int = 0) -> tuple[int, bytes]:
    """Status and body of one of Triton's own routes; status 0 if it does not answer in time."""
    return health.request(port or box.http_port, box.http_keys, method, path, TRITON_TIMEOUT_S)
