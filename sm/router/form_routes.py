"""The routes of forms that have paths of their own."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import orjson
from flask import Blueprint, Response, g, request

from sm.errors import TriremeError
from sm.http.messages import JSON, Answer, write_error
from sm.http.responses import error_answer
from sm.models.table import Models
from sm.router.forms.table import Forms
from sm.router.invocation_routes import Router
from sm.router.request_types import Message
from sm.router.wsgi import read_message, respond


def blueprint(router: Router, forms: Forms) -> Blueprint:
    """Create the routes: a POST to a form's path runs a model, a GET of its lists asks none."""
    routes = Blueprint("forms", __name__)

    def read(path: str) -> Message:
        message = read_message(request.environ, router.max_body)
        taken, given = forms.paths[path][0].types
        headers = dict(message.headers)
        if taken == (JSON,):
            headers["content-type"] = JSON  # whatever its caller calls it
        if given == (JSON,):
            headers["accept"] = JSON
        return message._replace(headers=headers, path=path)

    def run() -> Response:
        g.invocation = router.begin(request.environ)
        return respond(router.flow.answer(g.invocation, partial(read, request.path)))

    def list_models(make: Callable[[Models], object]) -> Response:
        return respond(Answer(orjson.dumps(make(router.flow.models))))

    @routes.errorhandler(Exception)
    def failed(error: Exception) -> Response:
        """Answer in the form of the request; if it cannot be read, in the last of its path."""
        form, echo = getattr(g.get("invocation"), "form", None) or (None, None)
        form = form or next(iter(reversed(forms.paths.get(request.path, ()))), None)
        write: Callable[[TriremeError, str], Answer]
        write = write_error if form is None else partial(form.write_error, echo=echo)
        return respond(error_answer(error, request.environ, write))

    for number, path in enumerate(forms.paths):
        routes.add_url_rule(path, f"run-{number}", run, methods=["POST"])
    for number, (path, make) in enumerate(forms.lists.items()):
        routes.add_url_rule(path, f"list-{number}", partial(list_models, make))
    return routes
