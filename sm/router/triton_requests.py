"""Pass requests in Triton's own protocol on to a model, and pass its answer back.

Bodies are inspected but not changed: Triton gets the caller's bytes, and the caller gets Triton's. Only the
model's name is replaced in an answer, where Triton knows an archive by another name than its callers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from urllib.parse import quote

import orjson

from sm.client.readiness import Readiness
from sm.errors import (
    BadInput,
    Forbidden,
    MethodNotAllowed,
    NotAcceptable,
    NotFound,
    NotReady,
    TriremeError,
    UnknownModel,
)
from sm.http.media_types import choose, kind_of, negotiate
from sm.http.messages import BINARY, EVENTS, JSON, OCTET_STREAM, Answer, strict_json
from sm.invocation import Invocation
from sm.models.table import Models, ResolvedModel
from sm.router.back_pressure import finishing
from sm.router.event_streams import split_events
from sm.router.request_types import Message, TritonRequest
from sm.triton.http_proxy import (
    ERRORS,
    HEADER_SIZE,
    ProxyReply,
    ProxyRequest,
    Upstream,
    end_to_end,
    failure_text,
)
from sm.triton.inference_plan import REQUEST_TOKEN
from sm.triton.model_paths import MODEL_PATH, model_in, model_path
from sm.triton.triton_errors import Failed, translate_http_status

BINARY_CONTENT_TYPE = re.compile(re.escape(BINARY) + r"\s*;\s*json-header-size=([0-9]{1,18})", re.IGNORECASE)
QUOTED_TOKEN_NAME = orjson.dumps(REQUEST_TOKEN)


class TritonForwarder:
    """Triton's HTTP port behind ``/invocations``."""

    def __init__(
        self,
        upstream: Upstream,
        models: Models,
        readiness: Readiness | None = None,
        cached_outputs: Callable[[str], frozenset[str]] | None = None,
    ) -> None:
        """Create it.

        Args:
            upstream: Triton's port.
            models: What is served.
            readiness: Why models are not ready, as their clients say.
            cached_outputs: Returns the outputs of a model that has the response cache, of which a request
                must ask for all or none; else nothing.
        """
        self._upstream, self._models = upstream, models
        self._readiness, self._cached_outputs = readiness, cached_outputs

    def close(self) -> None:
        """Close the idle connections, which a worker keeps until it ends."""
        self._upstream.close()

    def run(self, request: TritonRequest, invocation: Invocation | None) -> tuple[str, Answer]:
        """Return the model that answered, and its answer."""
        models = self._models
        if request.message.target:
            return request.model, self.pass_on("POST", request.message, invocation)
        served = models.use_model(request.model, invocation)
        if served is None:
            if models.is_closed or not request.model:
                raise models.explain(request.model)
            # Triton may have it since the start, or says that it has not.
            served = ResolvedModel(request.model, None, request.model)
        if not served.entry:
            raise BadInput(
                f"the archive of model {request.model!r} has no model that is called, only a client"
            )
        # A call for a stream names the type of its parts in its Accept header.
        accept = "" if request.message.in_parts else request.message.headers.get("accept", "")
        negotiate(accept, (EVENTS,) if request.streamed else (JSON, BINARY, OCTET_STREAM))
        asked = to_upstream(request, served.entry)
        lost = models.known(request.model) and not request.version
        return served.name, self._ask(asked, served.entry, served.name, accept, lost, invocation, to_answer)

    def pass_on(self, method: str, message: Message, invocation: Invocation | None) -> Answer:
        """Pass a request below ``/v2`` on as it is, but for a model that Triton knows by another name."""
        target, match = message.target, MODEL_PATH.match(message.target)
        path, rest = target.partition("?")[0], target[match.end() :] if match else ""
        name = model = model_in(target)
        if self._readiness is not None and path.endswith("/ready"):
            self._readiness.check(name)
        is_versioned = match is not None and self._models.is_versioned(name)
        if is_versioned and (served := self._models.use_model(name, invocation)) is not None:
            model = served.entry or name
        if match:
            target = model_path(model, rest)
        accept = message.headers.get("accept", "")
        if method == "POST":  # others change nothing, and may have no body
            negotiate(accept, (EVENTS,) if path.endswith("/generate_stream") else (JSON, OCTET_STREAM))
        request = ProxyRequest(method, target, message.body, headers_of(message))
        lost = is_versioned and not rest.startswith("/versions/")
        return self._ask(request, model, name, accept, lost, invocation, to_v2_answer)

    def _ask(
        self,
        request: ProxyRequest,
        model: str,
        name: str,
        accept: str,
        comes_again: bool,
        invocation: Invocation | None,
        read: Callable[[ProxyReply], Answer],
    ) -> Answer:
        """Return Triton's answer in a type that the caller accepts, under the name that the caller knows.

        Args:
            request: For Triton.
            model: Triton's name of the model.
            name: The caller's.
            accept: The caller's Accept header.
            comes_again: True if the box loads the model again if Triton has lost it.
            invocation: Uses the model.
            read: Converts Triton's reply.
        """
        every = self._cached_outputs(model) if self._cached_outputs else frozenset()
        try:
            answer = as_accepted(
                read(self._upstream.send(replace(request, outputs=every), invocation)), accept
            )
        except UnknownModel:
            if comes_again and self._models.comes_again:
                raise NotReady(f"Triton has not loaded model {model!r} again yet") from None
            raise
        return answer if model == name else rename_model(answer, model, name)


def as_accepted(answer: Answer, accept: str) -> Answer:
    """Return Triton's answer in a type that the caller accepts.

    JSON is also the binary form, with all of it before the tensors, of which there are none. Tensors that the
    request itself asked for in binary stay that.

    Raises:
        NotAcceptable: The caller accepts neither.
    """
    kind = kind_of(answer.content_type)
    if not answer.body or not isinstance(answer.body, bytes) or choose(accept, (kind,)):
        return answer
    if kind == JSON and choose(accept, (BINARY,)):
        return replace(answer, content_type=f"{BINARY};json-header-size={len(answer.body)}")
    if kind == JSON and choose(accept, (OCTET_STREAM,)):
        headers = {**answer.headers, HEADER_SIZE: str(len(answer.body))}
        return replace(answer, content_type=OCTET_STREAM, headers=headers)
    raise NotAcceptable(
        f"the answer is {kind}; the Accept header allows only {accept[:100]!r}. Without binary_data in the "
        f"request it is {JSON}"
    )


def to_upstream(request: TritonRequest, model: str) -> ProxyRequest:
    """Build the request for Triton. Raises :class:`BadInput` for an impossible size of the JSON part."""
    message = request.message
    headers = headers_of(message)
    if request.is_binary:
        headers[HEADER_SIZE] = str(header_size(message))
        headers["content-type"] = "application/octet-stream"
    else:
        # The whole body is JSON, whatever this header says.
        headers.pop(HEADER_SIZE, None)
    version = f"/versions/{quote(request.version, safe='')}" if request.version else ""
    return ProxyRequest("POST", model_path(model, f"{version}/{request.verb}"), message.body, headers)


def headers_of(message: Message) -> dict[str, str]:
    """Return the headers to pass on, without those that would compress the answer.

    Most callers accept gzip, but Triton would need more time to compress the tensors than to send them, and
    what it says would have to be unpacked to be read here.
    """
    headers = end_to_end(message.headers)
    headers.pop("accept-encoding", None)
    return headers


def header_size(message: Message) -> int:
    """Return the bytes of JSON at the start of a binary body; 0 if the whole body is the one input tensor."""
    content_type = message.headers.get("content-type", "")
    match = BINARY_CONTENT_TYPE.fullmatch(content_type.strip())
    if match is None:
        raise BadInput(f"the content type must be {BINARY};json-header-size=N, N a number of bytes")
    size = int(match[1])
    if size > len(message.body):
        raise BadInput(f"json-header-size={size} is more than the body's {len(message.body)} bytes")
    return size


def to_answer(reply: ProxyReply) -> Answer:
    """Convert Triton's reply for the caller of ``/invocations``. Raises Triton's errors."""
    answer = to_v2_answer(reply)
    size = answer.headers.get(HEADER_SIZE)
    if size is None:
        return answer
    headers = {name: value for name, value in answer.headers.items() if name != HEADER_SIZE}
    return Answer(answer.body, f"{BINARY};json-header-size={size}", headers=headers)


def rename_model(answer: Answer, model: str, name: str) -> Answer:
    """Replace the model's name in an answer, or in each event of a stream."""
    # No string in JSON contains these bytes: its quotation marks are escaped.
    old, new = (b'name":' + orjson.dumps(text) for text in (model, name))
    if not isinstance(answer.body, bytes):
        return replace(answer, body=_rename_in_events(answer.body, old, new))
    renamed = replace(answer, body=answer.body.replace(old, new, 1))
    if match := BINARY_CONTENT_TYPE.fullmatch(answer.content_type):
        size = int(match[1]) + len(renamed.read()) - len(answer.body)
        renamed.content_type = f"{BINARY};json-header-size={size}"
    if HEADER_SIZE in renamed.headers:
        size = int(renamed.headers[HEADER_SIZE]) + len(renamed.read()) - len(answer.body)
        renamed.headers = {**renamed.headers, HEADER_SIZE: str(size)}
    return renamed


def _rename_in_events(events: Iterator[bytes], old: bytes, new: bytes) -> Iterator[bytes]:
    with finishing(events):
        for event in events:
            yield event.replace(old, new, 1)


def to_v2_answer(reply: ProxyReply) -> Answer:
    """Convert Triton's reply for the caller of ``/v2``, unchanged. Raises Triton's errors."""
    if reply.failure is not None:
        raise to_error(reply.status, reply.failure)
    headers = {name: value for name, value in reply.headers.items() if name != "content-type"}
    content_type = reply.headers.get("content-type", JSON)
    if not isinstance(reply.body, bytes):
        return Answer(_stream_events(reply.body), content_type, headers=headers)
    body = reply.body
    if HEADER_SIZE in headers:
        size = int(headers[HEADER_SIZE])
        json_part = parsable_json(body[:size])
        if len(json_part) != size:
            body, headers[HEADER_SIZE] = json_part + body[size:], str(len(json_part))
    elif kind_of(content_type) == JSON:
        body = parsable_json(body)
    return Answer(body, content_type, headers=headers)


def parsable_json(body: bytes) -> bytes:
    """Return Triton's JSON as every parser reads it: NaN and infinity are null.

    Raises:
        NotAcceptable: An output of type BYTES is not UTF-8, so that JSON has no form for it.
    """
    if not body.isascii():
        try:
            body.decode()
        except UnicodeDecodeError:
            raise NotAcceptable(
                "an output has bytes that are not UTF-8, which JSON cannot have; "
                'ask for it with "parameters": {"binary_data": true}'
            ) from None
    body = strict_json(body)
    # An ensemble says its sequence once for each output of the last step, in one object.
    return orjson.dumps(orjson.loads(body)) if body.count(b'"sequence_id":') > 1 else body


def without_request_token(answer: Answer) -> Answer:
    """Remove the output that only the box uses from a model's metadata or configuration."""
    body = answer.body
    if not isinstance(body, bytes) or QUOTED_TOKEN_NAME not in body:
        return answer
    description = orjson.loads(body)
    for key in ("outputs", "output"):
        if key in description:
            description[key] = [output for output in description[key] if output.get("name") != REQUEST_TOKEN]
    return replace(answer, body=orjson.dumps(description))


def _stream_events(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Yield Triton's events. An error event is raised instead, because it contains a traceback."""
    events = split_events(chunks)
    with finishing(events):
        for event in events:
            if event.startswith(ERRORS):
                raise to_error(500, translate_http_status(500, failure_text(500, event) or ""))
            yield parsable_json(event)


def to_error(status: int, failure: Failed) -> TriremeError:
    """Return the error for a failure of Triton's HTTP port, the same as over gRPC."""
    if failure.text == "Not Found":
        return NotFound("Triton has no such path")
    if status == 405:
        return MethodNotAllowed(failure.sentence)
    if status == 403:
        return Forbidden(failure.sentence)
    if failure.lost_region:
        return Forbidden("shared memory with Triton is the box's own")
    return BadInput(failure.sentence) if status == 200 else failure.error
