"""The application factory of the data plane. A worker calls it after the fork."""

from __future__ import annotations

import json
import logging
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from flask import Flask, Request
from werkzeug.routing import MapAdapter

from sm.client.sessions import Sessions
from sm.plugins.registry import Registry
from sm.router import triton_requests
from sm.router.answer import dumps
from sm.router.dispatch import Dispatcher
from sm.router.lines import Lines
from sm.router.openapi.client_schemas import described
from sm.router.openapi.document import document
from sm.router.routes import (
    control_routes,
    execution_parameters,
    invocations,
    model_routes,
    pages,
    response_stream,
    v2_routes,
    websocket_route,
)
from sm.router.routes.responses import handle_errors
from sm.router.s3.store import open_store
from sm.run_state import SHARED_MEMORY, Box
from sm.settings import Settings
from sm.triton.answer_guard import AnswerGuard
from sm.triton.http_proxy import Upstream

log = logging.getLogger(__name__)


class Router(Flask):
    """Flask, but for working out which host a request is for: all have the same routes.

    An upgrade has routes of its own.
    """

    def create_url_adapter(self, request: Request | None) -> MapAdapter | None:
        if request is None or "HTTP_UPGRADE" in request.environ:
            return super().create_url_adapter(request)
        return MapAdapter(self.url_map, "localhost", "/", "", "http", request.path, request.method)


def create(settings: Settings, box: Box, registry: Registry) -> Flask:
    """The router over ``registry``. Where gunicorn is the front, the control routes too."""
    app = Router("trireme")
    app.config["MAX_CONTENT_LENGTH"] = settings.max_body
    handle_errors(app)
    guard = AnswerGuard.of(box)
    upstream = Upstream(box.http_port, settings.timeout, settings.max_body, guard)
    store = open_store(settings)
    service = invocations.Service(
        dispatcher=Dispatcher(
            registry, ThreadPoolExecutor(settings.threads, "records"), store, settings.threads, guard
        ),
        lines=Lines(ThreadPoolExecutor(settings.threads, "lines"), settings.threads),
        sessions=sessions_of(settings, box),
        store=store,
        triton=triton_requests.Triton(upstream, registry, settings.inference_type),
        default_model=registry.default(settings.default_model),
        default_accept=settings.default_accept,
        timeout=settings.timeout,
        stream_timeout=settings.longest_stream,
        fronted=box.fronted,
        max_records=settings.max_records,
    )
    if store is not None:
        most = settings.s3_threads
        separate = replace(
            service,
            dispatcher=Dispatcher(registry, ThreadPoolExecutor(most, "s3_records"), store, most),
            lines=Lines(ThreadPoolExecutor(most, "s3_lines"), most),
        )
        service = replace(service, s3=invocations.S3Service(separate, most))
    app.register_blueprint(invocations.blueprint(service, settings.local_endpoints))
    app.register_blueprint(model_routes.invoking(service))
    if settings.local_endpoints:
        app.register_blueprint(response_stream.blueprint(service))
    # A thread is left for other callers.
    most = max(1, settings.threads - 1)
    app.register_blueprint(
        websocket_route.blueprint(service, most, settings.max_body, lambda: stop_sessions(box))
    )
    app.register_blueprint(
        v2_routes.blueprint(upstream, settings.timeout, settings.longest_stream, box.fronted)
    )
    if not box.fronted:
        app.register_blueprint(control_routes.blueprint(box))
        app.register_blueprint(execution_parameters.blueprint(settings))
        app.register_blueprint(model_routes.listing(box))
        app.register_blueprint(pages.blueprint(box))
    return app


def stop_sessions(box: Box) -> bool:
    """Whether the supervisor is about to stop the box."""
    try:
        return bool(json.loads(box.state_file.read_text())["draining"])
    except (OSError, ValueError):
        return False


def sessions_of(settings: Settings, box: Box) -> Sessions | None:
    """Kept where it is set, else in memory, and removed with the box; what has no room, in the run folder."""
    if not settings.sessions:
        return None
    home = settings.sessions_path or SHARED_MEMORY / f"trireme-{box.id}-sessions"
    sessions = Sessions((home, box.run / "sessions"), settings.sessions_expiration, settings.max_sessions)
    sessions.start_sweeping()
    return sessions


def describe(registry: Registry, box: Box, s3: bool) -> None:
    """Write what is served, and in which form, for the control plane."""
    rows = [
        {
            "name": client.name,
            "client": type(client).__name__,
            "description": (type(client).__doc__ or "").strip().split("\n")[0],
            "models": list(client.required_models()),
            "url": str(client.repository / client.name),
            "content_types": ["application/json", *client.payload.content_types],
            "reload_error": registry.reload_errors.get(client.name),
        }
        for client in registry.clients.values()
    ]
    _write(box.clients_file, json.dumps(rows).encode())
    shown = [described(client) for client in registry.clients.values()]
    _write(box.openapi_file, dumps(document(shown, s3)))


def _write(path: Path, content: bytes) -> None:
    """At once or not at all: workers start side by side. On a full disk what is there stays."""
    staged = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        staged.write_bytes(content)
        staged.replace(path)
    except OSError as error:
        staged.unlink(missing_ok=True)
        log.warning("%s is not written anew: %s", path.name, error)
