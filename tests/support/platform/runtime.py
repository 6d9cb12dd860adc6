"""SageMaker's runtime as boto3 asks it: whole answers, streams, and the asynchronous way."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping

import requests
from flask import Blueprint, Request, Response, request

from sm.router.streaming import aws_eventstream
from tests.support.platform.asynchronous import Asked, Worker
from tests.support.platform.endpoint import Endpoint
from tests.support.platform.failures import Refused, invalid, of_model
from tests.support.platform.instance import Instance

PREFIX = "X-Amzn-SageMaker-"
#: What SageMaker passes on to the caller beside the body.
RETURNED = tuple(f"{PREFIX}{name}" for name in ("Custom-Attributes", "New-Session-Id", "Closed-Session-Id"))
#: What boto3 puts into headers of SageMaker's own where HTTP has one.
OWN = {f"{PREFIX}Content-Type": "Content-Type", f"{PREFIX}Accept": "Accept"}
#: The largest body in bytes.
LARGEST = 25 * 2**20


def blueprint(endpoint: Callable[[str], Endpoint], worker: Worker) -> Blueprint:
    """``endpoint`` finds one by name, or raises :class:`Refused`."""
    routes = Blueprint("runtime", __name__)

    @routes.errorhandler(Refused)
    def refused(error: Refused) -> Response:
        headers = {"x-amzn-ErrorType": error.kind}
        return Response(error.body(), error.status, headers, content_type="application/json")

    @routes.post("/endpoints/<name>/invocations")
    def invoke(name: str) -> Response:
        asked = endpoint(name)
        instance, answer = asked.post(_body(request), _headers(request), _target(asked, request))
        body = _whole(instance, answer)
        return Response(body, 200, _returned(asked, answer), content_type=answer.headers["Content-Type"])

    @routes.post("/endpoints/<name>/invocations-response-stream")
    def stream(name: str) -> Response:
        asked = endpoint(name)
        instance, answer = asked.post(_body(request), _headers(request), _target(asked, request))
        if answer.status_code >= 400:
            _whole(instance, answer)
        headers = {
            **_returned(asked, answer),
            f"{PREFIX}Content-Type": answer.headers["Content-Type"],
        }
        return Response(_frames(answer), 200, headers, content_type=aws_eventstream.EVENT_STREAM)

    @routes.post("/endpoints/<name>/async-invocations")
    def later(name: str) -> Response:
        asked = endpoint(name)
        if asked.plan.asynchronous is None:
            raise invalid(f"Endpoint {name} is not an asynchronous endpoint.")
        identity = request.headers.get(f"{PREFIX}Inference-Id") or str(uuid.uuid4())
        call = Asked(
            identity,
            request.headers[f"{PREFIX}InputLocation"],
            _headers(request),
            float(request.headers.get(f"{PREFIX}InvocationTimeoutSeconds", 900)),
        )
        output, failure = worker.take(asked, call)
        places = {f"{PREFIX}OutputLocation": output, f"{PREFIX}FailureLocation": failure}
        return Response(f'{{"InferenceId":"{identity}"}}', 202, places, content_type="application/json")

    return routes


def _body(asked: Request) -> bytes:
    body = asked.get_data(cache=False)
    if len(body) > LARGEST:
        raise invalid(f"Request body of {len(body)} bytes is over the limit of {LARGEST} bytes.", 413)
    return body


def _headers(asked: Request) -> dict[str, str]:
    """What the container gets to see."""
    own = {plain: asked.headers[name] for name, plain in OWN.items() if name in asked.headers}
    plain = {name: value for name, value in asked.headers if name in ("Content-Type", "Accept")}
    theirs = {
        name: value
        for name, value in asked.headers
        if name.lower().startswith(PREFIX.lower()) and name.lower() not in map(str.lower, OWN)
    }
    return {"Accept": "*/*", **plain, **own, **theirs}


def _target(endpoint: Endpoint, asked: Request) -> str:
    """The model that is named; only where there are several, and there always."""
    if endpoint.plan.asynchronous is not None:
        raise invalid(
            f"Endpoint {endpoint.plan.endpoint} is asynchronous: it takes InvokeEndpointAsync alone."
        )
    target = asked.headers.get(f"{PREFIX}Target-Model", "")
    if endpoint.plan.multi_model and not target:
        raise invalid("TargetModel must be set for a multi-model endpoint.")
    if target and not endpoint.plan.multi_model:
        raise invalid(
            f"TargetModel is set, but endpoint {endpoint.plan.endpoint} is no multi-model endpoint."
        )
    return target


def _whole(instance: Instance, answer: requests.Response) -> bytes:
    """The body of a success; a ``ModelError`` for any other, or if it breaks off."""
    try:
        body = answer.content
    except requests.RequestException:
        raise of_model(0, "The answer of container primary broke off.", instance.stream.arn) from None
    if answer.status_code >= 400:
        raise of_model(answer.status_code, body.decode(errors="replace"), instance.stream.arn)
    return body


def _returned(endpoint: Endpoint, answer: requests.Response) -> Mapping[str, str]:
    kept = {name: answer.headers[name] for name in RETURNED if name in answer.headers}
    return {**kept, "x-Amzn-Invoked-Production-Variant": endpoint.plan.variant}


def _frames(answer: requests.Response) -> Iterator[bytes]:
    """Each chunk as the container sends it."""
    try:
        for chunk in answer.iter_content(chunk_size=None):
            yield aws_eventstream.part(chunk)
    except requests.RequestException:
        headers = {":message-type": "exception", ":exception-type": "ModelStreamError"}
        body = b'{"Message":"The stream of container primary broke.","ErrorCode":"StreamBroken"}'
        yield aws_eventstream.frame({**headers, ":content-type": "application/json"}, body)
    finally:
        answer.close()
