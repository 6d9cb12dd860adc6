"""Turn a request into a call of the API: check the key, set the deadline, map errors, write a line of log."""

from __future__ import annotations

import logging
import os
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any

from chalice.app import Request, Response

from sm.errors import (
    BadInput,
    ClientFailed,
    Forbidden,
    MethodNotAllowed,
    StartError,
    TriremeError,
    UnsupportedType,
)
from sm.http.messages import JSON, write_error
from sm.invocation import Invocation, running
from sm.router.answers import dumps
from sm.server import logs

from .failures import Unauthorized
from .keys import Keys, presented_key
from .options import Options
from .service import Api, open_api

log = logging.getLogger(__name__)
#: Seconds before Lambda's own time limit: a function that Lambda stops sends no answer.
DEADLINE_MARGIN_S = 1.0
#: The errors that Chalice answers by itself, by their status.
CHALICE_ERRORS = {400: BadInput, 405: MethodNotAllowed, 415: UnsupportedType}
View = Callable[[Api], tuple[int, dict[str, Any]]]


class Front:
    """Creates the :class:`~chalicelib.service.Api` with the first request, as the process may fork before."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open_api: tuple[Options, Api] | None = None

    def answer(self, request: Request, view: View, open_to_all: bool = False) -> Response:
        """Call ``view`` and return its status and body as a response; errors become responses too."""
        identity = request_id(request)
        started, status, owner = time.perf_counter(), 500, "-"
        options = None
        try:
            options, api = self._api()
            if not open_to_all and options.keys is not None:
                owner = Keys(options.keys).owner(presented_key(request.to_original_event()))
            ends_at = time.monotonic() + available_seconds(request, options.timeout)
            with running(Invocation(ends_at, lambda: is_caller_gone(request), identity)):
                status, body = view(api)
            return response(status, dumps(body))
        except TriremeError as error:
            error_response = failure(error, identity, options)
            status = error_response.status_code
            return error_response
        except Exception as error:
            log.exception("unexpected error", extra={"request_id": identity})
            return failure(ClientFailed(f"unexpected {type(error).__name__}"), identity, options)
        finally:
            milliseconds = round((time.perf_counter() - started) * 1000, 2)
            line = {
                "path": request.path,
                "arguments": request.uri_params,
                "status": status,
                "ms": milliseconds,
            }
            log.info("request", extra={**line, "caller": owner, "request_id": identity})

    def is_prepared(self, model: str) -> bool:
        """True if the model has been served before, so that nothing must be fetched."""
        return self._open_api is not None and self._open_api[1].is_prepared(model)

    def reshape(self, request: Request, get_response: Callable[[Request], Response]) -> Response:
        """Give Chalice's own errors the shape of all others.

        Callers of the reference gateway get them unchanged, because that gateway is a Chalice app too.
        """
        answer = get_response(request)
        is_own = isinstance(answer.body, dict) and answer.body.keys() == {"Code", "Message"}
        if not is_own or (self._open_api is not None and self._open_api[0].short_names):
            return answer
        error = CHALICE_ERRORS.get(answer.status_code, ClientFailed)(answer.body["Message"])
        response = failure(error, request_id(request))
        response.headers.update(answer.headers)
        return response

    def _api(self) -> tuple[Options, Api]:
        with self._lock:
            if self._open_api is None:
                logs.configure("info")
                logging.getLogger("botocore").setLevel(logging.WARNING)
                try:
                    options = Options.read(os.environ)
                    self._open_api = options, open_api(options)
                except StartError as error:
                    log.error("%s", error)
                    raise ClientFailed("the gateway is not set up; its log says what is missing") from None
            return self._open_api


def available_seconds(request: Request, most: float) -> float:
    """Return the seconds that a request may take: the rest of Lambda's time, at most ``most``."""
    remaining = getattr(request.lambda_context, "get_remaining_time_in_millis", None)
    return most if remaining is None else max(0.0, min(most, remaining() / 1000 - DEADLINE_MARGIN_S))


def is_caller_gone(request: Request) -> bool:
    """True if the caller has disconnected. Lambda does not say so."""
    return bool(getattr(request.lambda_context, "is_caller_gone", False))


def request_id(request: Request) -> str:
    identity = getattr(request.lambda_context, "aws_request_id", "")
    return str(identity) or uuid.uuid4().hex


def response(status: int, body: bytes, headers: dict[str, str] | None = None) -> Response:
    return Response(body.decode(), {"Content-Type": JSON, **(headers or {})}, status)


def failure(error: TriremeError, identity: str, options: Options | None = None) -> Response:
    """Write an error in the box's shape; with short names, in that of the reference gateway."""
    if options is None or not options.short_names:
        answer = write_error(error, identity)
        return response(answer.status, answer.read(), dict(answer.headers))
    if isinstance(error, (Unauthorized, Forbidden)):
        return response(403, dumps({"message": "Forbidden"}))
    headers = {} if error.retry_after is None else {"Retry-After": str(error.retry_after)}
    return response(error.status, dumps({"message": error.sentence}), headers)
