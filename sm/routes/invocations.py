"""``POST /invocations``, and the same in the form that a boto3 client sends and expects."""

from __future__ import annotations

from dataclasses import dataclass, replace

import orjson
from flask import Blueprint, Request, Response, request

from sm import invocation as forms
from sm import v2
from sm.deadline import running
from sm.dispatch import Dispatcher
from sm.errors import MethodNotAllowed, TriremeError
from sm.routes import serving
from sm.routes.answers import request_id, respond

ALL_METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]


@dataclass(frozen=True)
class Service:
    """What the routes work with."""

    dispatcher: Dispatcher
    #: Where v2 bodies go.
    triton: v2.Triton
    default_model: str
    default_accept: str
    #: Seconds an invocation may take.
    timeout: float
    #: Whether nginx stands in front, whose word on when a request came in can be taken.
    fronted: bool


def blueprint(service: Service, local_endpoints: bool) -> Blueprint:
    """The routes of the data plane."""
    routes = Blueprint("invocations", __name__)

    @routes.route("/invocations", methods=ALL_METHODS)
    def invocations() -> Response:
        if request.method != "POST":
            raise MethodNotAllowed("Method Not Allowed")
        return respond(_answer(service, request))

    if local_endpoints:

        @routes.route("/endpoints/<name>/invocations", methods=["POST"])
        def endpoint(name: str) -> Response:
            return _as_endpoint(service, name)

    return routes


def _as_endpoint(service: Service, name: str) -> Response:
    """What SageMaker makes of the container's answer: any error is a 424 ``ModelError``."""
    try:
        answer = _answer(service, request)
    except TriremeError as error:
        answer = _model_error(forms.write_error(error, request_id()), name)
    return respond(
        replace(answer, headers={**answer.headers, "x-Amzn-Invoked-Production-Variant": "AllTraffic"})
    )


def _read(service: Service, message: forms.Message) -> forms.Invocation:
    takes_bodies = service.dispatcher.registry.takes_bodies
    return forms.read(message, service.default_model, service.default_accept, takes_bodies)


def _model_error(answer: forms.Answer, endpoint: str) -> forms.Answer:
    original = answer.whole().decode()
    kind = "client" if answer.status < 500 else "server"
    body = {
        "Message": f'Received {kind} error ({answer.status}) from primary with message "{original}"',
        "OriginalStatusCode": answer.status,
        "OriginalMessage": original,
        "LogStreamArn": f"local:/endpoints/{endpoint}",
    }
    return forms.Answer(orjson.dumps(body), status=424, headers={"x-amzn-ErrorType": "ModelError"})


def _answer(service: Service, incoming: Request) -> forms.Answer:
    """Read, dispatch, write; count and log it whatever comes of it."""
    served = "-"
    with serving.observed(lambda: served):
        message = serving.message(incoming)
        with running(serving.deadline(incoming, service.timeout, service.fronted)) as deadline:
            deadline.check()
            verb = service.triton.verb(message, service.default_model)
            if verb:
                served, answer = service.triton.run(message, verb, service.default_model)
                return answer
            call = _read(service, message)
            served = call.model if call.model in service.dispatcher.registry.clients else "-"
            return forms.write(call, service.dispatcher.run(call))
