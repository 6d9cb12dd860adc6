"""The control plane: one small process that answers when the data plane is full or gone."""

from __future__ import annotations

from flask import Flask

from sm.box import Box
from sm.routes import control
from sm.routes.answers import handle_errors


def create(box: Box) -> Flask:
    app = Flask("trireme-control")
    handle_errors(app)
    app.register_blueprint(control.blueprint(box))
    return app
