"""The control plane: one small process that answers when the data plane is full or gone."""

from __future__ import annotations

import threading
from functools import partial

from flask import Flask

from sm.box import MAX_CONTROL_BODY_BYTES, Box, write_whole
from sm.inspection.machine import Machine
from sm.mme import gpu
from sm.mme.loader import Loader
from sm.mme.records import Records
from sm.mme.staging import Staging
from sm.mme.stubs import ImportWatch, Nurse, Stubs
from sm.routes import batch, control, models, pages
from sm.routes.answers import handle_errors
from sm.settings import Settings
from sm.triton.channel import Channel
from sm.triton.loading import Loading

#: Seconds that loading or unloading may take: the platform's.
PATIENCE = 360.0


def create(settings: Settings, box: Box) -> Flask:
    app = Flask("trireme-control")
    app.config["MAX_CONTENT_LENGTH"] = MAX_CONTROL_BODY_BYTES
    handle_errors(app)
    app.register_blueprint(control.blueprint(box))
    app.register_blueprint(batch.blueprint(settings))
    app.register_blueprint(pages.blueprint(box))
    app.register_blueprint(
        models.loading(loader(settings, box), box.repository_keys) if box.multi_model else models.listing(box)
    )
    return app


def loader(settings: Settings, box: Box) -> Loader:
    """The one that loads in this box, at work on what one before it has left half done."""
    stubs = Stubs(box)
    made = Loader(
        Records(box.models_file),
        Staging(box.repository, box.run / "archives"),
        Loading(
            Channel(box.grpc_port, PATIENCE, box.grpc_keys), PATIENCE, stubs.gone, ImportWatch(box).watching
        ),
        home=settings.archives.absolute(),
        namespaced=not settings.disable_namespacing,
        admit=lambda: gpu.check(settings.load_gpu_limit),
        machine=Machine.find(settings),
        load_timeout=settings.load_timeout,
        replace_triton=partial(write_whole, box.replacement_file),
    )
    for work in (made.recover, made.watch, Nurse(stubs, made).watch):
        threading.Thread(target=work, daemon=True).start()
    return made
