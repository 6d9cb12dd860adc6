"""The data plane of a box without nginx, which answers the control plane's paths too."""

from __future__ import annotations

import http.client
import string
from collections.abc import Iterable
from urllib.parse import quote

from flask import Blueprint, Response, request

from sm.control import model_routes, routes
from sm.errors import NotReady
from sm.http.control_paths import all_paths
from sm.http.messages import Answer, SocketConnection
from sm.http.responses import request_id, respond
from sm.router.invocation_routes import Router
from sm.run_state import Box
from sm.server.plane import serve
from sm.server.worker import DataPlane

#: Seconds for the control plane's answer.
CONTROL_TIMEOUT_S = 5.0
#: The request's headers that the control plane gets.
PASSED_ON = ("Accept", "Accept-Encoding", "If-None-Match")
#: The answer's headers that each server writes itself.
OWN_HEADERS = {"connection", "content-length", "date", "server", "transfer-encoding", "x-request-id"}


class DataPlaneWithoutNginx(DataPlane):
    """Workers that have the routes of the control plane: its own, and those that it answers for them."""

    def complete(self, router: Router) -> None:
        router.register_blueprint(routes.blueprint(self.box))
        router.register_blueprint(routes.execution_parameters(self.settings))
        router.register_blueprint(model_routes.listing(self.box))
        own = {rule.rule for rule in router.url_map.iter_rules()}
        others = (path.rule for path in all_paths() if path.rule not in own)
        router.register_blueprint(passed_on(self.box, others))


def passed_on(box: Box, rules: Iterable[str]) -> Blueprint:
    """Create the routes whose requests the control plane answers, which have no body."""
    passed_on_routes = Blueprint("passed_on", __name__)
    routes.limit_bodies(passed_on_routes)

    def ask(**_names: str) -> Response:
        headers = {name: request.headers[name] for name in PASSED_ON if name in request.headers}
        headers["X-Trireme-Request-Id"] = request_id(request.environ)
        query = quote(request.query_string, safe=string.punctuation)
        connection = SocketConnection(box.control_socket, CONTROL_TIMEOUT_S)
        try:
            connection.request("GET", f"{quote(request.path)}?{query}", headers=headers)
            answer = connection.getresponse()
            content = answer.read()
        except (OSError, http.client.HTTPException):
            raise NotReady("the control plane does not answer") from None
        finally:
            connection.close()
        headers = {name: value for name, value in answer.getheaders() if name.lower() not in OWN_HEADERS}
        return respond(Answer(content, headers.pop("Content-Type", ""), answer.status, headers))

    for rule in rules:
        passed_on_routes.add_url_rule(rule, rule.replace(".", "-"), ask)
    return passed_on_routes


if __name__ == "__main__":
    serve(DataPlaneWithoutNginx)
