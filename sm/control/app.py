"""The application of the control plane: one small process that answers when the data plane cannot."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path

from flask import Flask, g, request

from sm import entry_points
from sm.control import model_routes, pages, routes
from sm.errors import Overloaded
from sm.hardware import free_memory, memory_limit
from sm.http.control_paths import MAX_BODY_BYTES, MAX_SLOW_REQUESTS, all_paths
from sm.http.responses import handle_errors
from sm.model_processes.generations import SharedGeneration
from sm.model_processes.reloads import LoadedProcesses, NeedsNewTriton, Reloads
from sm.models.fetch.model_cache import CacheHolds
from sm.models.load_records import LoadRecords
from sm.models.memory_room import MemoryRoom, check_gpus
from sm.models.model_loader import NO_CLIENTS, ModelLoader
from sm.models.on_demand import Catalog, Listen, OnDemand, fetch, models_bytes
from sm.models.staging import Staging, renew
from sm.models.versions import JUDGES, Versions
from sm.plugins.sources import ClientSource, discover
from sm.polling import Poll
from sm.repository.machine import Machine
from sm.run_state import Box, write_atomically
from sm.settings import Settings
from sm.triton import server
from sm.triton.channel import Channel
from sm.triton.model_control import ModelControl

#: Seconds that loading or unloading may take, as on the platform.
LOAD_TIMEOUT_S = 360.0
#: The share of the box's memory that models on demand may take.
MODEL_MEMORY_SHARE = 0.7


def create(settings: Settings, box: Box, listen: Listen = lambda _: None) -> Flask:
    """Create the control plane's application and start its background threads.

    Args:
        settings: Of the box.
        box: The box.
        listen: See :class:`~sm.models.on_demand.OnDemand`.
    """
    app = Flask("trireme-control")
    app.config["MAX_CONTENT_LENGTH"] = MAX_BODY_BYTES
    handle_errors(app)
    keep_threads_free(app)
    app.register_blueprint(routes.blueprint(box))
    app.register_blueprint(routes.execution_parameters(settings))
    app.register_blueprint(pages.blueprint(box))
    failures: Callable[[], Mapping[str, str]] = dict
    control = model_control(box)
    if box.catalog:
        models = build_on_demand(settings, box, control, listen)
        failures = models.failures
        app.register_blueprint(model_routes.on_demand(models, box.repository_keys))
    elif box.multi_model:
        loader = build_loader(settings, box, control, settings.archives.absolute())
        app.register_blueprint(model_routes.loading(loader, box.repository_keys))
    else:
        versions = build_versions(settings, box, control)
        failures = (lambda: versions.failures) if versions else dict
        app.register_blueprint(model_routes.listing(box, versions))
    for observer in entry_points.observers():
        if added := observer.routes(failures):
            observer.call("routes", app.register_blueprint, added)
    if not box.multi_model:
        bring_back(box, partial(reload_served, settings, box, control))
    return app


def keep_threads_free(app: Flask, max_slow_requests: int = MAX_SLOW_REQUESTS) -> None:
    """Refuse requests that may take long before they hold every thread: ``/ping`` must answer meanwhile."""
    slots = threading.BoundedSemaphore(max_slow_requests)
    slow = {path.rule for path in all_paths() if path.is_slow}

    @app.before_request
    def take_slot() -> None:
        if request.url_rule and request.url_rule.rule in slow:
            if not slots.acquire(blocking=False):
                raise Overloaded(f"{max_slow_requests} requests for models are being answered already")
            g.has_slot = True

    @app.teardown_request
    def give_back_slot(_: BaseException | None) -> None:
        if g.pop("has_slot", False):
            slots.release()


def model_control(box: Box) -> ModelControl:
    """Return the control of this box's models. There is one: it knows all loads that are under way."""
    processes = LoadedProcesses(box)
    channel = Channel(box.grpc_port, LOAD_TIMEOUT_S, box.grpc_keys)
    return ModelControl(channel, LOAD_TIMEOUT_S, processes.has_died, processes.watching)


def bring_back(box: Box, reload: Callable[[str], None], lost: Callable[[], Collection[str]] = tuple) -> None:
    """Load models again that are out, and those that Triton has ``lost``."""
    if box.generation_file:
        shared = SharedGeneration(box.generation_file)
        replace = partial(write_atomically, box.replacement_file)
        Reloads(shared, box.served_names, reload, replace, lost).watch()


def reload_served(settings: Settings, box: Box, control: ModelControl, model: str) -> None:
    """Make Triton load a model of the repository again."""
    if not server.loads_models(settings, box):
        raise NeedsNewTriton(f"Triton may not load the model {model!r} again while it runs")
    renew(box.served / model)
    control.load(model, seconds=settings.startup_timeout)


def build_on_demand(settings: Settings, box: Box, control: ModelControl, listen: Listen) -> OnDemand:
    """Create what loads this box's models when requests name them; the default model is loaded now."""
    memory = int(settings.model_memory_mb or MODEL_MEMORY_SHARE * memory_limit() / 2**20) * 2**20
    room = MemoryRoom(lambda: min(free_memory(), memory - models_bytes(box)), lambda: memory)
    clients = {source.name: source for source in discover(settings.clients)}
    loader = build_loader(settings, box, control, None, room, clients)
    catalog = Catalog(box.catalog, settings.cache / "sources")
    models = OnDemand(loader, catalog, box.leases_folder, settings.default_model, listen)
    if settings.default_model:
        models.ask(settings.default_model)
    return models


def build_versions(settings: Settings, box: Box, control: ModelControl) -> Versions | None:
    """Create what replaces the models of this box; None if they stay as they are."""
    if settings.model_poll is None or not box.has_versions:
        return None
    loader = build_loader(settings, box, control, None)
    folder = Path(box.source)
    find = (lambda: folder) if folder.is_dir() else partial(fetch, box.source, settings.cache / "sources")
    judge = next(iter(entry_points.load(JUDGES)), None)
    versions = Versions(loader, box, find, settings.drain, settings.load_timeout, judge)
    if settings.model_poll:
        Poll("model-versions", settings.model_poll, versions.look).start()
    return versions


def build_loader(
    settings: Settings,
    box: Box,
    control: ModelControl,
    home: Path | None,
    room: MemoryRoom | None = None,
    clients: Mapping[str, ClientSource] = NO_CLIENTS,
) -> ModelLoader:
    """Create the loader of this box; it also undoes loads that an earlier process left unfinished."""
    loader = ModelLoader(
        LoadRecords(box.models_file),
        Staging(box.served, box.archives_folder),
        control,
        home=home,
        namespaced=not settings.disable_namespacing,
        admit=lambda: check_gpus(settings.load_gpu_limit),
        room=room,
        clients=clients,
        keep=CacheHolds(settings.cache / "sources").keep,
        machine=Machine.find(settings),
        load_timeout=settings.load_timeout,
        replace_triton=partial(write_atomically, box.replacement_file),
    )
    loader.watch()
    if box.multi_model:
        # A platform loads again what it gets a 404 for; on demand nobody else does, and requests wait for it.
        bring_back(box, loader.reload, loader.lost if box.catalog else tuple)
    return loader
