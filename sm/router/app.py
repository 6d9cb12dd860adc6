"""The application factory of the data plane. A worker calls it after the fork."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from pathlib import Path

from sm.client.readiness import Readiness
from sm.client.sessions import Sessions
from sm.http.openapi import document
from sm.metrics import IN_FLIGHT_LIMIT
from sm.models.table import Models
from sm.polling import WATCH_S, Poll
from sm.repository import response_cache
from sm.repository.models import Model
from sm.router import form_routes, invocation_routes, v2_routes, websocket
from sm.router.admission import FairGate
from sm.router.answers import dumps
from sm.router.classify import RequestClassifier
from sm.router.client_schemas import describe_client, sample_files
from sm.router.forms.table import Forms
from sm.router.invocation_routes import Router
from sm.router.once import OnceNotes
from sm.router.records import OrderedMap
from sm.router.request_flow import Hear, RequestFlow
from sm.router.running_invocation import in_company, record_overdue
from sm.router.triton_requests import TritonForwarder
from sm.run_state import SHARED_MEMORY, Box, read_json, unready_file, write_atomically
from sm.settings import Settings
from sm.triton.calls import Calls
from sm.triton.http_proxy import Upstream

log = logging.getLogger(__name__)


def create(
    settings: Settings, box: Box, models: Models, calls: Calls, hearing: Sequence[Hear] = ()
) -> Router:
    """Create the router for ``models``; those that are ``hearing`` hear of each answered invocation."""
    IN_FLIGHT_LIMIT.set(settings.max_invocations)
    Poll("overdue", WATCH_S, record_overdue).start()
    readiness = Readiness(models.all_clients, unready_file(box, os.getpid()))
    readiness.watch()
    app = Router(flow_of(settings, box, models, calls, readiness, hearing), settings, box.fronted)
    app.register_blueprint(invocation_routes.blueprint(app))

    def is_stopping() -> bool:
        return bool(read_json(box.state_file, {}).get("draining", False))

    # A WebSocket holds a thread while it is open. One thread is left for other callers.
    most = max(1, settings.threads - 1)
    app.register_blueprint(websocket.blueprint(app, most, is_stopping, settings.cors_origins))
    app.register_blueprint(v2_routes.blueprint(app))
    app.register_blueprint(form_routes.blueprint(app, Forms.load()))
    return app


def flow_of(
    settings: Settings,
    box: Box,
    models: Models,
    calls: Calls,
    readiness: Readiness,
    hearing: Sequence[Hear],
) -> RequestFlow:
    """Create the way of all invocations."""
    sessions = sessions_of(settings, box)
    classifier = RequestClassifier(
        models,
        models.default(settings.default_model),
        settings.default_accept,
        settings.inference_type,
        sessions,
        settings.max_records,
    )
    upstream = Upstream(box.http_port, settings.timeout, calls, settings.max_body)
    chosen = lru_cache(maxsize=256)(partial(cached_outputs, box.served))
    return RequestFlow(
        models,
        classifier,
        TritonForwarder(upstream, models, readiness, chosen if settings.caches_responses else None),
        calls,
        OrderedMap(ThreadPoolExecutor(settings.threads, "records"), settings.threads, in_company),
        FairGate(settings.threads, settings.queue),
        sessions,
        settings.longest_stream - settings.timeout,
        hearing,
        readiness,
        OnceNotes(box.once_folder),
    )


def cached_outputs(served: Path, model: str) -> frozenset[str]:
    """Return the outputs of a model that has Triton's response cache; else nothing.

    Such a model is an ensemble, which no new version replaces: the answer may be kept.
    """
    is_name = "/" not in model and model not in ("", ".", "..")
    return response_cache.cached_outputs(Model.read(served / model)) if is_name else frozenset()


def sessions_of(settings: Settings, box: Box) -> Sessions | None:
    """Open the store of sessions; None if they are off.

    They are in the folder that the settings name, else in shared memory until the box ends. The run folder
    takes what has no room there.
    """
    if not settings.sessions:
        return None
    home = settings.sessions_path or SHARED_MEMORY / f"trireme-{box.id}-sessions"
    sessions = Sessions((home, box.sessions_folder), settings.sessions_expiration, settings.max_sessions)
    sessions.start_sweeping()
    return sessions


def describe(models: Models, box: Box) -> None:
    """Write the files about the clients that the control plane reads: list, samples and OpenAPI document."""
    clients, found = list(models.make_clients()), models.found
    rows = [
        _row(
            client.name,
            client.repository,
            client=type(client).__name__,
            description=(type(client).__doc__ or "").strip().split("\n")[0],
            models=list(client.required_models()),
            content_types=["application/json", *client.payload.content_types],
            reload_error=found.stale.get(client.name),
        )
        for client in clients
    ]
    failed = {**found.broken, **found.errors}
    rows += [
        _row(name, box.repository, load_error=reason)
        for name, reason in failed.items()
        if name not in {client.name for client in clients}
    ]
    _write(box.clients_file, json.dumps(rows).encode())
    samples = {client.name: {file.name: str(file) for file in sample_files(client)} for client in clients}
    _write(box.samples_file, dumps(samples))
    described = [describe_client(client) for client in clients]
    _write(box.openapi_file, dumps(document(described, Forms.load().schemas())))


def _row(name: str, repository: Path, **known: object) -> dict[str, object]:
    row = {"client": None, "description": "", "models": [name], "url": str(repository / name)}
    return {"name": name, **row, "content_types": [], "reload_error": None, "load_error": None, **known}


def _write(path: Path, content: bytes) -> None:
    """Replace a file. On a full disk the old file stays."""
    try:
        write_atomically(path, content)
    except OSError as error:
        log.warning("%s is out of date, because it cannot be written: %s", path.name, error)
