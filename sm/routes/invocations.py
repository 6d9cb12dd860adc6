"""``POST /invocations``, and the same in the form that a boto3 client sends and expects."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import orjson
from flask import Blueprint, Request, Response, request

from sm import invocation as forms
from sm.deadline import Deadline, running
from sm.dispatch import Dispatcher
from sm.errors import MethodNotAllowed, TriremeError
from sm.metrics import IN_FLIGHT, INVOCATIONS, SECONDS
from sm.routes.answers import request_id, respond

log = logging.getLogger(__name__)
ALL_METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]


@dataclass(frozen=True)
class Service:
    """What the routes work with."""

    dispatcher: Dispatcher
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


def _model_error(answer: forms.Answer, endpoint: str) -> forms.Answer:
    original = answer.body.decode()
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
    call = forms.Invocation(model="", records=())
    with _observed(lambda: call.model if call.model in service.dispatcher.registry.clients else "-"):
        message = _message(incoming)
        call = forms.read(message, service.default_model, service.default_accept)
        with running(_deadline(service, incoming)) as deadline:
            deadline.check()
            results = service.dispatcher.run(call)
            return forms.write(call, results)


def _message(incoming: Request) -> forms.Message:
    return forms.Message(
        body=incoming.get_data(cache=False),
        headers={name.lower(): value for name, value in incoming.headers.items()},
        query=incoming.args.to_dict(),
        request_id=request_id(),
    )


@contextmanager
def _observed(model: Callable[[], str]) -> Iterator[None]:
    """Count one invocation and log a line for it: never its payload."""
    started, status = time.perf_counter(), 500
    IN_FLIGHT.inc()
    try:
        yield
        status = 200
    except TriremeError as error:
        status = error.status
        raise
    finally:
        IN_FLIGHT.dec()
        seconds = time.perf_counter() - started
        INVOCATIONS.labels(model(), str(status)).inc()
        SECONDS.labels(model()).observe(seconds)
        log.info(
            "invocation",
            extra={
                "model": model(),
                "status": status,
                "ms": round(seconds * 1000, 2),
                "request_id": request_id(),
            },
        )


def _deadline(service: Service, incoming: Request) -> Deadline:
    """Counted from when nginx had the request, so that time in the queue is not given twice."""
    waited = 0.0
    if service.fronted:
        try:
            waited = max(0.0, time.time() - float(incoming.headers.get("X-Trireme-Start", "")))
        except ValueError:
            waited = 0.0
    connection = incoming.environ.get("gunicorn.socket")
    return Deadline(time.monotonic() + service.timeout - waited, lambda: _hung_up(connection))


def _hung_up(connection: socket.socket | None) -> bool:
    """Whether the peer closed: a peek that reads an end of file."""
    if connection is None:
        return False
    try:
        return connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True
