"""Recognise v2 requests on ``/invocations`` and pass them on to a Triton model.

A body is looked at, never re-written: what the caller sent is what Triton gets, and the other way round.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from urllib.parse import quote

import orjson
from grpc import StatusCode as Code

from sm.errors import (
    BadInput,
    Forbidden,
    MethodNotAllowed,
    NotFound,
    NotReady,
    TriremeError,
    UnknownModel,
    UnsupportedType,
)
from sm.plugins.registry import Registry
from sm.router.answer import Answer
from sm.router.invocation import BINARY, JSON, MEMBERS, OBJECT, Message, read_address
from sm.router.streaming.server_sent_events import split_events
from sm.router.streaming.stream import finish
from sm.triton.call_failures import failed
from sm.triton.http_proxy import Reply, Request, Upstream, end_to_end
from sm.triton.inference_plan import REQUEST_TOKEN
from sm.triton.unsafe_json import HEADER_SIZE

BINARY_CONTENT_TYPE = re.compile(re.escape(BINARY) + r"\s*;\s*json-header-size=([0-9]{1,18})", re.IGNORECASE)
#: A body whose first member says that it is v2 need not be parsed to know it.
STARTS_AS_V2 = re.compile(rb'\s*\{\s*"(inputs|outputs|id)"\s*:')
#: And one that begins as form 1 does need not be searched: what follows is a picture, as a rule.
STARTS_AS_DISPATCH = re.compile(rb'\s*\{\s*("modelname"\s*:\s*"[^"\\]*"\s*,\s*)?"payload"\s*:')

#: Triton says 500 where it cannot read what a caller wrote.
UNREADABLE_REQUEST = re.compile(
    r"failed to parse the request JSON|Unable to parse '|parameter key '|"
    # The rest of its JSON parser's complaints; a model's own errors begin otherwise.
    r"(?!Failed to process).*attempt to (get members|access (JSON|non-existing))"
)
#: A caller names a region of shared memory, which Triton does not know.
FOREIGN_SHARED_MEMORY = re.compile(r"Unable to find (system |cuda )?shared memory region", re.IGNORECASE)

TOKEN_NAME = orjson.dumps(REQUEST_TOKEN)

#: What Triton's HTTP says with a status, as its gRPC says it.
CODES = {
    400: Code.INVALID_ARGUMENT,
    404: Code.NOT_FOUND,
    408: Code.DEADLINE_EXCEEDED,
    429: Code.RESOURCE_EXHAUSTED,
    499: Code.CANCELLED,
    501: Code.UNIMPLEMENTED,
    503: Code.UNAVAILABLE,
}


@dataclass(frozen=True)
class Triton:
    """Triton's own HTTP behind ``/invocations``. ``inference_type``: infer, generate or generate_stream."""

    upstream: Upstream
    registry: Registry
    inference_type: str = "infer"

    def verb(self, message: Message, default_model: str = "") -> str:
        """What Triton is to do with a request; empty if it is for a client.

        A model that the path names is looked for before the body is: the platform loads what is a 404.
        """
        if message.model and not self.registry.known(message.model):
            raise self.registry.unknown(message.model)
        name = read_address(message).model or default_model
        if self.registry.takes_bodies(name):
            return ""
        if is_binary(message):
            return "infer"
        if message.content_type != JSON and self.registry.claims(name, message.content_type):
            return ""
        if self._is_for_triton(message):
            return self.inference_type
        if message.content_type != JSON and self.registry.served_without_client(name):
            raise UnsupportedType(
                f"this model has no client: it takes {BINARY}, or JSON with inputs under any content type"
            )
        return ""

    def _is_for_triton(self, message: Message) -> bool:
        """Whether a body is Triton's JSON, for a content type that no client claims."""
        if self.inference_type == "infer":
            return is_json(message)
        return (message.content_type == JSON or bool(OBJECT.match(message.body))) and not is_dispatch(message)

    def run(self, message: Message, verb: str, default_model: str) -> tuple[str, Answer]:
        """The model that answered, and its answer."""
        address = read_address(message)
        name = address.model or default_model
        if not name:
            exists = ", ".join(sorted({*self.registry.clients, *self.registry.models})) or "none"
            raise UnknownModel(f"the request names no model and there is no default; there are: {exists}")
        model = self.registry.triton_model(name)
        try:
            return model, to_answer(self.upstream.send(request(message, model, address.version, verb)))
        except UnknownModel:
            if model in self.registry.models and not address.version:
                raise NotReady(f"Triton has not loaded model {model!r} again yet") from None
            raise


def is_dispatch(message: Message) -> bool:
    """Form 1, where every other JSON body is for ``generate``."""
    if b'"payload"' not in message.body:
        return False
    try:
        body = orjson.loads(message.body)
    except orjson.JSONDecodeError:
        return False
    return isinstance(body, dict) and "payload" in body and MEMBERS.issuperset(body)


def is_binary(message: Message) -> bool:
    """Form 4, well-formed or not."""
    return BINARY in message.headers.get("content-type", "").lower()


def is_json(message: Message) -> bool:
    """Form 3: a JSON object with ``inputs`` and without ``payload``, whatever its content type says."""
    if (
        not OBJECT.match(message.body)
        or STARTS_AS_DISPATCH.match(message.body)
        or b'"inputs"' not in message.body
    ):
        return False
    if STARTS_AS_V2.match(message.body):
        return True
    try:
        body = orjson.loads(message.body)
    except orjson.JSONDecodeError:
        return False
    return isinstance(body, dict) and "inputs" in body and "payload" not in body


def request(message: Message, model: str, version: str, verb: str = "infer") -> Request:
    """What to ask Triton; :class:`BadInput` for a size of the JSON part that cannot be."""
    headers = end_to_end(message.headers)
    # Most callers say that they can read gzip; Triton would spend longer on it than the tensors on their way.
    headers.pop("accept-encoding", None)
    if is_binary(message):
        headers[HEADER_SIZE] = str(header_size(message))
        headers["content-type"] = "application/octet-stream"
    else:
        # In this form the whole body is JSON, whatever the header says.
        headers.pop(HEADER_SIZE, None)
    return Request("POST", path(model, version, verb), message.body, headers)


def path(model: str, version: str, verb: str) -> str:
    """Triton's own path for a model."""
    versioned = f"/versions/{quote(version, safe='')}" if version else ""
    return f"/v2/models/{quote(model, safe='')}{versioned}/{verb}"


def header_size(message: Message) -> int:
    """Bytes of JSON at the start of a binary body; 0: the whole body is the one input tensor."""
    said = message.headers.get("content-type", "")
    found = BINARY_CONTENT_TYPE.fullmatch(said.strip())
    if found is None:
        raise BadInput(f"the content type must be {BINARY};json-header-size=N, N a number of bytes")
    size = int(found[1])
    if size > len(message.body):
        raise BadInput(f"json-header-size={size} is more than the body's {len(message.body)} bytes")
    return size


def to_answer(reply: Reply) -> Answer:
    """Triton's reply as the caller of ``/invocations`` gets it; what it refused is raised."""
    passed = forwarded_headers(reply)
    size = reply.headers.get(HEADER_SIZE)
    if size is None:
        return passed
    headers = {name: value for name, value in passed.headers.items() if name != HEADER_SIZE}
    return Answer(passed.body, f"{BINARY};json-header-size={size}", headers=headers)


def forwarded_headers(reply: Reply) -> Answer:
    """Triton's reply as it is; what it refused is raised."""
    sentence = failure_text(reply)
    if sentence is not None:
        raise to_error(reply.status, sentence)
    headers = {name: value for name, value in reply.headers.items() if name != "content-type"}
    body = reply.body if isinstance(reply.body, bytes) else _streamed(reply.body)
    return Answer(body, reply.headers.get("content-type", JSON), headers=headers)


def without_request_token(answer: Answer) -> Answer:
    """A model's metadata or configuration as its author wrote it, without the output for the box alone."""
    body = answer.body
    if not isinstance(body, bytes) or TOKEN_NAME not in body:
        return answer
    described = orjson.loads(body)
    for key in ("outputs", "output"):
        if key in described:
            described[key] = [output for output in described[key] if output.get("name") != REQUEST_TOKEN]
    return replace(answer, body=orjson.dumps(described))


def _streamed(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Triton's events one by one. An error among them is raised: it is the last, and shows its traceback."""
    each = split_events(chunks)
    try:
        for event in each:
            if event.startswith(b'data: {"error":'):
                raise to_error(500, failure_text(Reply(500, {}, event)) or "")
            yield event
    finally:
        finish(each)


def failure_text(reply: Reply) -> str | None:
    """Triton's own words, where it did not do what it was asked. Its generate has 200 for some of these."""
    body = reply.body
    if not isinstance(body, bytes) or (reply.status == 200 and not body.startswith(b'{"error":')):
        return None
    text = body.removeprefix(b"data: ").strip()
    try:
        said = orjson.loads(text)
    except orjson.JSONDecodeError:
        return text.decode(errors="replace") or f"Triton answers {reply.status}"
    return str(said.get("error", "")) if isinstance(said, Mapping) else str(said)


def to_error(status: int, sentence: str) -> TriremeError:
    """A refusal of Triton's HTTP, with the status that the same has over gRPC."""
    if sentence == "Not Found":
        return NotFound("Triton has no such path")
    if status == 405:
        return MethodNotAllowed(sentence)
    if status == 403:
        return Forbidden(sentence)
    if FOREIGN_SHARED_MEMORY.match(sentence):
        return Forbidden("shared memory with Triton is the box's own")
    if UNREADABLE_REQUEST.match(sentence) or status == 200:
        return BadInput(sentence)
    return failed(CODES.get(status, Code.INTERNAL), sentence).error
