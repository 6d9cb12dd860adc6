"""The HTTP routes of SageMaker's runtime: ``InvokeEndpoint``, its response stream and ``InvokeEndpointAsync``."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping

import requests
from flask import Blueprint, Request, Response, request

from sm.router import answers
from tests.support.platform.asynchronous import AsyncInvocation, AsyncWorker
from tests.support.platform.endpoint import Endpoint
from tests.support.platform.failures import InvocationFailed, model_error, validation_error
from tests.support.platform.instance import Instance

HEADER_PREFIX = "X-Amzn-SageMaker-"
#: The container's headers that SageMaker returns to the caller.
RETURNED_HEADERS = tuple(
    f"{HEADER_PREFIX}{name}" for name in ("Custom-Attributes", "New-Session-Id", "Closed-Session-Id")
)
#: Headers of boto3's that SageMaker renames for the container.
RENAMED_HEADERS = {f"{HEADER_PREFIX}Content-Type": "Content-Type", f"{HEADER_PREFIX}Accept": "Accept"}
#: SageMaker's limit for a request body.
MAX_BODY_BYTES = 25 * 2**20


def blueprint(find_endpoint: Callable[[str], Endpoint], worker: AsyncWorker) -> Blueprint:
    """Return the routes. ``find_endpoint`` returns an endpoint by name, or raises :class:`InvocationFailed`."""
    routes = Blueprint("runtime", __name__)

    @routes.errorhandler(InvocationFailed)
    def report_failure(error: InvocationFailed) -> Response:
        headers = {"x-amzn-ErrorType": error.error_type}
        return Response(error.body(), error.status, headers, content_type="application/json")

    @routes.post("/endpoints/<name>/invocations")
    def invoke(name: str) -> Response:
        endpoint = find_endpoint(name)
        instance, response = endpoint.invoke(
            _read_body(request), _container_headers(request), _target_model(endpoint, request)
        )
        body = _read_success(instance, response)
        return Response(
            body, 200, _response_headers(endpoint, response), content_type=response.headers["Content-Type"]
        )

    @routes.post("/endpoints/<name>/invocations-response-stream")
    def stream(name: str) -> Response:
        endpoint = find_endpoint(name)
        instance, response = endpoint.invoke(
            _read_body(request), _container_headers(request), _target_model(endpoint, request)
        )
        if response.status_code >= 400:
            _read_success(instance, response)
        headers = {
            **_response_headers(endpoint, response),
            f"{HEADER_PREFIX}Content-Type": response.headers["Content-Type"],
        }
        return Response(_event_frames(response), 200, headers, content_type=answers.EVENT_STREAM)

    @routes.post("/endpoints/<name>/async-invocations")
    def invoke_async(name: str) -> Response:
        endpoint = find_endpoint(name)
        if endpoint.plan.async_config is None:
            raise validation_error(f"Endpoint {name} is not an asynchronous endpoint.")
        invocation_id = request.headers.get(f"{HEADER_PREFIX}Inference-Id") or str(uuid.uuid4())
        invocation = AsyncInvocation(
            invocation_id,
            request.headers[f"{HEADER_PREFIX}InputLocation"],
            _container_headers(request),
            float(request.headers.get(f"{HEADER_PREFIX}InvocationTimeoutSeconds", 900)),
        )
        output_url, failure_url = worker.submit(endpoint, invocation)
        locations = {
            f"{HEADER_PREFIX}OutputLocation": output_url,
            f"{HEADER_PREFIX}FailureLocation": failure_url,
        }
        return Response(
            f'{{"InferenceId":"{invocation_id}"}}', 202, locations, content_type="application/json"
        )

    return routes


def _read_body(incoming: Request) -> bytes:
    body = incoming.get_data(cache=False)
    if len(body) > MAX_BODY_BYTES:
        raise validation_error(
            f"Request body of {len(body)} bytes is over the limit of {MAX_BODY_BYTES} bytes.", 413
        )
    return body


def _container_headers(incoming: Request) -> dict[str, str]:
    """Return the headers for the container."""
    renamed = {
        standard: incoming.headers[name]
        for name, standard in RENAMED_HEADERS.items()
        if name in incoming.headers
    }
    standard = {name: value for name, value in incoming.headers if name in ("Content-Type", "Accept")}
    passed_on = {
        name: value
        for name, value in incoming.headers
        if name.lower().startswith(HEADER_PREFIX.lower())
        and name.lower() not in map(str.lower, RENAMED_HEADERS)
    }
    return {"Accept": "*/*", **standard, **renamed, **passed_on}


def _target_model(endpoint: Endpoint, incoming: Request) -> str:
    """Return the target model of a multi-model endpoint; empty for others.

    Raises:
        InvocationFailed: The header is missing for a multi-model endpoint, or given for another one.
    """
    if endpoint.plan.async_config is not None:
        raise validation_error(
            f"Endpoint {endpoint.plan.endpoint_name} is asynchronous: it takes InvokeEndpointAsync alone."
        )
    target = incoming.headers.get(f"{HEADER_PREFIX}Target-Model", "")
    if endpoint.plan.multi_model and not target:
        raise validation_error("TargetModel must be set for a multi-model endpoint.")
    if target and not endpoint.plan.multi_model:
        raise validation_error(
            f"TargetModel is set, but endpoint {endpoint.plan.endpoint_name} is not a multi-model endpoint."
        )
    return target


def _read_success(instance: Instance, response: requests.Response) -> bytes:
    """Return the body of a successful response.

    Raises:
        InvocationFailed: The status is an error, or the body broke off.
    """
    try:
        body = response.content
    except requests.RequestException:
        raise model_error(0, "The answer of container primary broke off.", instance.log_stream.arn) from None
    if response.status_code >= 400:
        raise model_error(response.status_code, body.decode(errors="replace"), instance.log_stream.arn)
    return body


def _response_headers(endpoint: Endpoint, response: requests.Response) -> Mapping[str, str]:
    passed_on = {name: response.headers[name] for name in RETURNED_HEADERS if name in response.headers}
    return {**passed_on, "x-Amzn-Invoked-Production-Variant": endpoint.plan.variant}


def _event_frames(response: requests.Response) -> Iterator[bytes]:
    """Yield one event of AWS's event stream for each chunk that the container sends."""
    try:
        for chunk in response.iter_content(chunk_size=None):
            yield answers.payload_part(chunk)
    except requests.RequestException:
        headers = {":message-type": "exception", ":exception-type": "ModelStreamError"}
        body = b'{"Message":"The stream of container primary broke.","ErrorCode":"StreamBroken"}'
        yield answers.frame({**headers, ":content-type": "application/json"}, body)
    finally:
        response.close()
