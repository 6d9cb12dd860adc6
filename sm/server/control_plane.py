"""The application of the control plane: one small process that answers when the data plane cannot."""

from __future__ import annotations

import threading
from functools import partial

from flask import Flask

from sm.inspection.machine import Machine
from sm.multimodel import memory_room
from sm.multimodel.load_records import Records
from sm.multimodel.model_loader import Loader
from sm.multimodel.staging import Staging
from sm.multimodel.stub_failures import ImportWatch, StubFailureWatch, Stubs
from sm.router.routes import control_routes, dashboard_data, execution_parameters, model_routes, pages
from sm.router.routes.responses import handle_errors
from sm.run_state import MAX_CONTROL_BODY_BYTES, Box, write_atomically
from sm.server.history.recorder import Recorder
from sm.settings import Settings
from sm.triton.channel import Channel
from sm.triton.model_control import ModelControl

#: Seconds that loading or unloading may take, as on the platform.
LOAD_TIMEOUT_S = 360.0


def create(settings: Settings, box: Box) -> Flask:
    """Create the control plane's application and start its background threads."""
    app = Flask("trireme-control")
    app.config["MAX_CONTENT_LENGTH"] = MAX_CONTROL_BODY_BYTES
    handle_errors(app)
    app.register_blueprint(control_routes.blueprint(box))
    app.register_blueprint(execution_parameters.blueprint(settings))
    app.register_blueprint(pages.blueprint(box))
    recorder = Recorder(box)
    recorder.watch()
    app.register_blueprint(dashboard_data.blueprint(recorder.read))
    app.register_blueprint(
        model_routes.loading(build_loader(settings, box), box.repository_keys)
        if box.multi_model
        else model_routes.listing(box)
    )
    return app


def build_loader(settings: Settings, box: Box) -> Loader:
    """Create the loader of this box; it first undoes loads that an earlier process left unfinished."""
    stubs = Stubs(box)
    loader = Loader(
        Records(box.models_file),
        Staging(box.repository, box.run / "archives"),
        ModelControl(
            Channel(box.grpc_port, LOAD_TIMEOUT_S, box.grpc_keys),
            LOAD_TIMEOUT_S,
            stubs.has_died,
            ImportWatch(box).watching,
        ),
        home=settings.archives.absolute(),
        namespaced=not settings.disable_namespacing,
        admit=lambda: memory_room.check_gpus(settings.load_gpu_limit),
        machine=Machine.find(settings),
        load_timeout=settings.load_timeout,
        replace_triton=partial(write_atomically, box.replacement_file),
    )
    threading.Thread(target=loader.recover, name="recover-loads", daemon=True).start()
    loader.watch()
    StubFailureWatch(stubs, loader).watch()
    return loader
