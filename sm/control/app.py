"""The application of the control plane: one small process that answers when the data plane cannot."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from functools import partial

from flask import Flask

from sm.control import pages, routes
from sm.control.history import Recorder
from sm.http.responses import handle_errors
from sm.multimodel import memory_room
from sm.multimodel.load_records import Records
from sm.multimodel.model_loader import Loader
from sm.multimodel.staging import Staging, renew
from sm.multimodel.stub_failures import ImportWatch, NeedsNewTriton, Reloads, Stubs
from sm.repository.machine import Machine
from sm.run_state import MAX_CONTROL_BODY_BYTES, Box, write_atomically
from sm.settings import Settings
from sm.triton import server
from sm.triton.channel import Channel
from sm.triton.generation import SharedGeneration
from sm.triton.model_control import ModelControl

#: Seconds that loading or unloading may take, as on the platform.
LOAD_TIMEOUT_S = 360.0


def create(settings: Settings, box: Box) -> Flask:
    """Create the control plane's application and start its background threads."""
    app = Flask("trireme-control")
    app.config["MAX_CONTENT_LENGTH"] = MAX_CONTROL_BODY_BYTES
    handle_errors(app)
    app.register_blueprint(routes.blueprint(box))
    app.register_blueprint(routes.execution_parameters(settings))
    app.register_blueprint(pages.blueprint(box))
    recorder = Recorder(box, captures=bool(settings.capture))
    recorder.watch()
    app.register_blueprint(pages.data_blueprint(recorder.read))
    app.register_blueprint(
        routes.loading(build_loader(settings, box), box.repository_keys)
        if box.multi_model
        else routes.listing(box)
    )
    if not box.multi_model:
        watch_models(box, partial(reload_served, settings, box, model_control(box, settings.startup_timeout)))
    return app


def model_control(box: Box, seconds: float) -> ModelControl:
    """Return the control of this box's models; ``seconds`` are for one load."""
    return ModelControl(
        Channel(box.grpc_port, seconds, box.grpc_keys),
        seconds,
        Stubs(box).has_died,
        ImportWatch(box).watching,
    )


def watch_models(box: Box, reload: Callable[[str], None]) -> None:
    """Load models again whose process died or stalled."""
    if box.generation_file:
        replace = partial(write_atomically, box.replacement_file)
        wake = os.open(box.reloads_pipe, os.O_RDONLY | os.O_NONBLOCK)
        Reloads(SharedGeneration(box.generation_file), box.served_names, reload, replace).watch(wake)


def reload_served(settings: Settings, box: Box, control: ModelControl, model: str) -> None:
    """Make Triton load a model of the repository again."""
    if not server.loads_models(settings, box):
        raise NeedsNewTriton(f"Triton may not load the model {model!r} again while it runs")
    renew(box.served / model)
    control.load(model)


def build_loader(settings: Settings, box: Box) -> Loader:
    """Create the loader of this box; it first undoes loads that an earlier process left unfinished."""
    loader = Loader(
        Records(box.models_file),
        Staging(box.repository, box.run / "archives"),
        model_control(box, LOAD_TIMEOUT_S),
        home=settings.archives.absolute(),
        namespaced=not settings.disable_namespacing,
        admit=lambda: memory_room.check_gpus(settings.load_gpu_limit),
        machine=Machine.find(settings),
        load_timeout=settings.load_timeout,
        replace_triton=partial(write_atomically, box.replacement_file),
    )
    threading.Thread(target=loader.recover, name="recover-loads", daemon=True).start()
    loader.watch()
    watch_models(box, loader.reload)
    return loader
