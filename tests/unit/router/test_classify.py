"""Each message is exactly one type of request: the rules of sm/router/classify.py as a table."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from sm.client.base import Client
from sm.client.payloads import BodyPayload, ImagePayload, Payload
from sm.client.sessions import Session, Sessions
from sm.errors import BadInput, TooLarge, TriremeError, UnknownModel, UnsupportedType
from sm.http.messages import BINARY, JSON_LINES, OCTET_STREAM
from sm.models.table import Models, models_of
from sm.router.classify import RequestClassifier
from sm.router.request_types import (
    ClassifiedRequest,
    DispatchRequest,
    LinesRequest,
    Message,
    RawRecord,
    RecordLimit,
    SessionCommand,
    TritonRequest,
)
from tests.support.client_sources import EmptyTriton

SESSION = "x-amzn-sagemaker-session-id"
ATTRIBUTES = "x-amzn-sagemaker-custom-attributes"
TARGET = "x-amzn-sagemaker-target-model"


class Nothing(Client):
    def inference(self, payload: Payload) -> object:
        return None


@dataclass
class OneOpenSession(Sessions):
    """Session store with one open session, whose id is ``open``; records the ids that are looked up."""

    looked_up: list[str] = field(default_factory=list)

    def get(self, identity: str) -> Session:
        self.looked_up.append(identity)
        if identity != "open":
            raise BadInput(f"there is no session {identity!r}")
        return Session("open", 1, self)


def models() -> Models:
    clients: dict[str, Any] = {
        name: Nothing(EmptyTriton(), Path(), Path()) for name in ("pictures", "other", "script")
    }
    for name, client in clients.items():
        client.payload = BodyPayload if name == "script" else ImagePayload
    return models_of(clients, models=("pictures", "plain"))


def classify(
    body: bytes,
    content_type: str = "application/json",
    headers: dict[str, str] | None = None,
    query: dict[str, str] | None = None,
    model: str = "",
    inference_type: str = "infer",
    default_model: str = "pictures",
    sessions: OneOpenSession | None = None,
) -> ClassifiedRequest:
    all_headers = {"content-type": content_type, **(headers or {})}
    classifier = RequestClassifier(models(), default_model, inference_type=inference_type, sessions=sessions)
    return classifier.parse(Message(body, all_headers, query or {}, "id", model))


def summary(request: ClassifiedRequest) -> tuple[Any, ...]:
    """Summarise a request as the table does: type, model, record or verb, and the version of a Triton request."""
    if isinstance(request, DispatchRequest):
        record = request.records[0]
        return DispatchRequest, request.model, "raw" if isinstance(record, RawRecord) else record
    if isinstance(request, TritonRequest):
        return type(request), request.model, request.verb, *([request.version] if request.version else [])
    return (type(request),)


JSON, JPEG, FORM = "application/json", "image/jpeg", "application/x-www-form-urlencoded"
GENERATE, SCRIPT = {"inference_type": "generate"}, {"default_model": "script"}
NAMED_PLAIN = {ATTRIBUTES: "modelname=plain;version=3", TARGET: "pictures"}
ASKED_PLAIN = {"query": {"modelname": "plain"}}
GZIP = {"headers": {"content-encoding": "gzip"}}
#: A dispatch request that names a model; of another type it is told the right one.
NAMED = b'{"modelname":"pictures","payload":"x"}'


def dispatch(record: object, model: str = "pictures") -> tuple[object, ...]:
    return DispatchRequest, model, record


def in_session(identity: str) -> dict[str, Any]:
    return {"headers": {SESSION: identity}, "sessions": OneOpenSession()}


OF_TRITON = (TritonRequest, "pictures", "infer")
OF_GENERATE = (TritonRequest, "pictures", "generate")


@pytest.mark.parametrize(
    ("body", "content_type", "options", "expected"),
    [
        # A dispatch request, or a body for a client.
        (b'{"modelname":"pictures","payload":1}', JSON, {}, dispatch(1)),
        (b'{"payload":{"inputs":[]}}', JSON, {}, dispatch({"inputs": []})),
        (b'{"modelname":"other","payload":1}', "Application/JSON; charset=utf-8", {}, dispatch(1, "other")),
        *(
            (b'{"payload":1}', kind, {}, dispatch(1))
            for kind in ("text/json", "application/vnd.acme+json; a=b")
        ),
        (b"\xff\xd8", JPEG, {}, dispatch("raw")),
        (b"\xff\xd8", "image/tiff", {}, dispatch("raw")),
        (b"{}", JPEG, {}, dispatch("raw")),
        (b'{"inputs":[]}', JPEG, {}, dispatch("raw")),
        # Triton's own protocol, as JSON under any type that no client claims, and binary.
        (b'{"inputs":[]}', JSON, {}, OF_TRITON),
        (b'{"inputs":[', JSON, {}, OF_TRITON),
        *(
            (b'{"inputs":[]}', kind, {"default_model": "plain"}, (TritonRequest, "plain", "infer"))
            for kind in (OCTET_STREAM, JPEG, FORM, "application/vnd.unknown+json; charset=utf-8")
        ),
        (b'{"inputs":[]}', OCTET_STREAM, {}, OF_TRITON),
        (b'{"inputs":[]}', "text/plain", {"headers": {TARGET: "plain"}}, (TritonRequest, "plain", "infer")),
        (b"\0\0", f"{BINARY};json-header-size=0", {}, OF_TRITON),
        (b"\0\0", BINARY.upper(), {}, OF_TRITON),
        (b'{"inputs":[]}', JSON, {"default_model": ""}, (TritonRequest, "", "infer")),
        # Generate, where the box is set to it: any JSON object but a dispatch request.
        (b'{"prompt":"x"}', JSON, GENERATE, OF_GENERATE),
        (
            b'{"prompt":"x"}',
            "text/x",
            {"inference_type": "generate_stream"},
            (TritonRequest, "pictures", "generate_stream"),
        ),
        (b'{"prompt":', JSON, GENERATE, OF_GENERATE),
        (b'{"payload":1,"more":2}', JSON, GENERATE, OF_GENERATE),
        (b'{"payload":1}', JSON, GENERATE, dispatch(1)),
        (b'{"payload":1}', "text/x", GENERATE, dispatch("raw")),
        (b"\0", BINARY, GENERATE, OF_TRITON),
        (b"\xff", "image/png", GENERATE, dispatch("raw")),
        # A client that takes any body gets it unchanged, except a dispatch request that names a model.
        (b'{"inputs":[]}', JSON, SCRIPT, dispatch("raw", "script")),
        (b'{"payload":1}', JSON, SCRIPT, dispatch("raw", "script")),
        (b'{"modelname":"script","payload":1}', JSON, SCRIPT, dispatch(1, "script")),
        (b'{"modelname":"script","payload":1}', "text/csv", SCRIPT, dispatch("raw", "script")),
        (b'{"modelname":"script","payload":1,"x":2}', JSON, SCRIPT, dispatch("raw", "script")),
        (b"1\n2", JSON_LINES, SCRIPT, dispatch("raw", "script")),
        (b"\0", BINARY, SCRIPT, dispatch("raw", "script")),
        # JSON lines.
        (b"1\n2", JSON_LINES, {}, (LinesRequest,)),
        (b"", f"{JSON_LINES};charset=utf-8", {}, (LinesRequest,)),
        # The model in the path wins over the one in the body, in a header and in the query, and the query's is the last.
        (b'{"modelname":"other","payload":1}', JSON, {"model": "pictures"}, dispatch(1)),
        (b'{"inputs":[]}', JSON, {"model": "plain"}, (TritonRequest, "plain", "infer")),
        (b"\xff\xd8", JPEG, {"model": "pictures", "headers": NAMED_PLAIN, **ASKED_PLAIN}, dispatch("raw")),
        (b"\xff\xd8", JPEG, {"model": "pictures", **ASKED_PLAIN}, dispatch("raw")),
        (b"\xff\xd8", JPEG, {"headers": {TARGET: "pictures"}, **ASKED_PLAIN}, dispatch("raw")),
        (b'{"inputs":[]}', JSON, ASKED_PLAIN, (TritonRequest, "plain", "infer")),
        # Custom attributes name it if the body does not.
        (b'{"inputs":[]}', JSON, {"headers": NAMED_PLAIN}, (TritonRequest, "plain", "infer", "3")),
        # A session id alone is not a session command.
        (b"\xff", JPEG, in_session("open"), dispatch("raw")),
        (b'{"requestType":"CLOSE"}', "text/x", in_session("any"), (SessionCommand,)),
        (b'{"requestType":"NEW_SESSION"}', "text/x", in_session("NEW_SESSION"), (SessionCommand,)),
        (b'{"requestType":"CLOSE"}', JSON, GENERATE, OF_GENERATE),
        # Triton and scripts read compressed bodies; utf-8 is not a compression, so the header is ignored.
        (b"\x1f\x8b", JSON, {**GZIP, "default_model": "plain"}, (TritonRequest, "plain", "infer")),
        (b"\x1f\x8b", f"{BINARY};json-header-size=0", GZIP, OF_TRITON),
        (b"\x1f\x8b", JSON, {**GZIP, **SCRIPT}, dispatch("raw", "script")),
        (b'{"payload":1}', JSON, {"headers": {"content-encoding": "utf-8"}}, dispatch(1)),
    ],
)
def test_a_message_becomes_one_type_of_request(
    body: bytes, content_type: str, options: dict[str, Any], expected: tuple[Any, ...]
) -> None:
    assert summary(classify(body, content_type, **options)) == expected


@pytest.mark.parametrize(
    ("body", "content_type", "options", "error"),
    [
        ('{"payload":"ü"}'.encode("latin-1"), JSON, {}, BadInput),
        ('{"payload":1}'.encode("utf-16"), JSON, {}, BadInput),
        (b"{'modelname':'m'}", JSON, {}, BadInput),
        (b"x", "text/plain", {"default_model": "plain"}, UnsupportedType),
        # Refused before the body is read.
        (b"{", JSON, {"model": "absent"}, UnknownModel),
        (b"{", JSON, {"headers": {SESSION: "open"}}, BadInput),
        (b"{", JSON, in_session("gone"), BadInput),
        (b"{}", JSON, in_session("NEW_SESSION"), BadInput),
        (b'{"requestType":"X"}', "a/b", in_session("open"), BadInput),
        *((b"\x1f\x8b", kind, GZIP, UnsupportedType) for kind in (JSON, JPEG, "application/octet-stream")),
        (b"\x1f", JSON, {"headers": {"content-encoding": " GZIP"}}, UnsupportedType),
        (b"\x1f", JSON, {"headers": {"content-encoding": "br"}}, UnsupportedType),
        *((NAMED, kind, {}, UnsupportedType) for kind in (FORM, "text/html", "*/*")),
        *(
            (NAMED, OCTET_STREAM, {"default_model": name}, UnsupportedType)
            for name in ("", "pictures", "plain")
        ),
    ],
)
def test_a_message_that_is_no_valid_request_is_refused(
    body: bytes, content_type: str, options: dict[str, Any], error: type[TriremeError]
) -> None:
    with pytest.raises(error):
        classify(body, content_type, **options)


EMPTY_LINES_REQUEST = LinesRequest(Message(b"", {}, {}, "id"))


@pytest.mark.parametrize(
    ("line", "inference_type", "expected"),
    [
        (b"1", "infer", (DispatchRequest, "pictures", 1)),
        (b'{"image":"x"}', "infer", (DispatchRequest, "pictures", {"image": "x"})),
        (b'{"payload":{"image":"x"}}', "infer", (DispatchRequest, "pictures", {"image": "x"})),
        (b'{"payload":1,"more":2}', "infer", (DispatchRequest, "pictures", {"payload": 1, "more": 2})),
        (b'{"modelname":"other","payload":1}', "infer", (DispatchRequest, "other", 1)),
        (b'{"inputs":[]}', "infer", (TritonRequest, "pictures", "infer")),
        # The answer of a line is never streamed.
        (b"1", "generate_stream", (TritonRequest, "pictures", "generate")),
        (b'{"payload":1}', "generate_stream", (DispatchRequest, "pictures", 1)),
    ],
)
def test_a_line_is_a_request_or_a_bare_payload(
    line: bytes, inference_type: str, expected: tuple[Any, ...]
) -> None:
    classifier = RequestClassifier(models(), "pictures", inference_type=inference_type)
    assert summary(classifier.parse_line(Message(line, {}, {}, "id"), EMPTY_LINES_REQUEST)) == expected


def test_the_records_of_all_lines_count_against_one_limit() -> None:
    lines = LinesRequest(EMPTY_LINES_REQUEST.message, limit=RecordLimit(3))
    classifier = RequestClassifier(models(), "pictures")
    classifier.parse_line(Message(b'{"payload":[1,2]}', {}, {}, "id"), lines)
    with pytest.raises(TooLarge):
        classifier.parse_line(Message(b'{"payload":[1,2]}', {}, {}, "id"), lines)


def test_lines_belong_to_the_session_of_their_request() -> None:
    sessions = OneOpenSession()
    lines = classify(b"1", JSON_LINES, {SESSION: "open"}, sessions=sessions)
    assert isinstance(lines, LinesRequest)
    line = lines.message._replace(headers={})
    request = RequestClassifier(models(), "pictures", sessions=sessions).parse_line(line, lines)
    assert isinstance(request, DispatchRequest)
    assert request.session is not None
    assert (request.session.id, sessions.looked_up) == ("open", ["open"])
