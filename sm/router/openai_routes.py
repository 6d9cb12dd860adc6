"""OpenAI's embeddings API, which vector databases speak: ``/v1/embeddings`` and ``/v1/models``.

A request becomes a list of records for the client, and its results the answer: so admission, deadlines,
limits and batches are those of ``/invocations``. https://platform.openai.com/docs/api-reference/embeddings
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import orjson
import pybase64
from flask import Blueprint, Response, request

from sm.client.base import Array
from sm.client.decode_budget import DECODED
from sm.client.embeddings import EmbeddingClient
from sm.errors import BadInput, Overloaded, TriremeError, UnknownModel, WrongPayload
from sm.http.messages import JSON, Answer, parse_json
from sm.http.responses import error_answer
from sm.plugins.registry import Registry
from sm.router.answers import dumps
from sm.router.classify import Message, estimate_parsed_bytes
from sm.router.wsgi import NO_PARAMETERS, Router, read_message, respond

#: The members of a request, with their types. ``user`` is OpenAI's, and means nothing here.
MEMBERS: Mapping[str, tuple[type, ...]] = {
    "input": (str, list),
    "model": (str,),
    "encoding_format": (str,),
    "dimensions": (int,),
    "user": (str,),
}
#: A field of a record in an error of the dispatcher: ``payload[3].text``.
FIELD = re.compile(r"\bpayload(\[\d+\])?(\.(?:text|token_ids))?")


def blueprint(router: Router) -> Blueprint:
    """Create the routes."""
    routes = Blueprint("openai", __name__)
    routes.register_error_handler(Exception, write_error)

    @routes.get("/v1/models")
    def models() -> Response:
        rows = [
            {
                "id": client.name,
                "object": "model",
                "created": int(client.folder.stat().st_mtime),
                "owned_by": "trireme",
            }
            for client in embedding_clients(router.pipeline.registry)
        ]
        return respond(Answer(orjson.dumps({"object": "list", "data": rows})))

    @routes.post("/v1/embeddings")
    def embeddings() -> Response:
        asked: dict[str, Any] = {}

        def read() -> Message:
            message = read_message(request.environ, router.max_body)
            with DECODED.reserve(estimate_parsed_bytes(message)):
                asked.update(read_request(message.body))
                body = dumps({"payload": read_records(asked.pop("input"))})
            find_client(router.pipeline.registry, asked["model"])
            headers = {**message.headers, "content-type": JSON, "accept": JSON}
            return Message(body, headers, NO_PARAMETERS, message.request_id, asked["model"])

        # A failure of one record is that of the invocation, so it ends only with the answer.
        with router.begin(request.environ) as invocation:
            answer = router.pipeline.answer(invocation, read)
            body = write_embeddings(asked, orjson.loads(answer.read())["result"])
            return respond(Answer(body, headers=answer.headers))

    return routes


def embedding_clients(registry: Registry) -> Iterator[EmbeddingClient]:
    return (client for client in registry.clients.values() if isinstance(client, EmbeddingClient))


def find_client(registry: Registry, name: str) -> None:
    """Raise :class:`UnknownModel` unless the name is that of a client that gives embeddings."""
    if isinstance(registry.find(name), EmbeddingClient):
        return
    names = ", ".join(sorted(client.name for client in embedding_clients(registry))) or "none"
    raise UnknownModel(f"no model {name[:200]!r} that gives embeddings; there are: {names}", field="model")


def read_request(body: bytes) -> dict[str, Any]:
    """Return the members of a request. Raises :class:`WrongPayload` that names the wrong one."""
    members = parse_json(body)
    if not isinstance(members, dict):
        raise BadInput("the body must be a JSON object with model and input")
    for name, value in members.items():
        if name not in MEMBERS:
            raise WrongPayload(f"{name}: no such member; there are {', '.join(MEMBERS)}", field=name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, MEMBERS[name])):
            raise WrongPayload(f"{name}: has the wrong type", field=name)
    members = {name: value for name, value in members.items() if value is not None}
    for name in ("model", "input"):
        if name not in members:
            raise WrongPayload(f"{name}: is missing", field=name)
    if members.get("encoding_format", "float") not in ("float", "base64"):
        raise WrongPayload("encoding_format: must be float or base64", field="encoding_format")
    if members.get("dimensions", 1) < 1:
        raise WrongPayload("dimensions: must be at least 1", field="dimensions")
    return members


def read_records(value: str | list[Any]) -> list[dict[str, object]]:
    """Return the records of ``input``: a text, the ids of its tokens, or a list of either."""
    inputs = [value] if isinstance(value, str) or (value and isinstance(value[0], int)) else value
    if not inputs:
        raise WrongPayload("input: is empty", field="input")
    return [{"text" if isinstance(each, str) else "token_ids": each} for each in inputs]


def write_embeddings(asked: Mapping[str, Any], rows: list[dict[str, Any]]) -> bytes:
    """Encode the answer. Raises the error of the first record that failed."""
    data = []
    for index, row in enumerate(rows):
        if "embedding" not in row:
            raise failure_of(row)
        vector = row["embedding"]
        if "dimensions" in asked:
            vector = shorten(np.array(vector, np.float32), asked["dimensions"])
        if asked.get("encoding_format") == "base64":
            vector = pybase64.b64encode(np.array(vector, "<f4").tobytes()).decode()
        data.append({"object": "embedding", "index": index, "embedding": vector})
    tokens = sum(row["tokens"] for row in rows)
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return dumps({"object": "list", "data": data, "model": asked["model"], "usage": usage})


def shorten(vector: Array, dimensions: int) -> Array:
    """Return the first numbers of a vector, with the length that the whole vector had."""
    if dimensions > len(vector):
        raise WrongPayload(f"dimensions: this model has {len(vector)}", field="dimensions")
    head: Array = vector[:dimensions]
    length = np.linalg.norm(head)
    return head * (np.linalg.norm(vector) / length) if length else head


def failure_of(row: Mapping[str, Any]) -> TriremeError:
    """Return the error that the entry of a failed record stands for."""
    kinds = [TriremeError]
    for kind in kinds:
        kinds += kind.__subclasses__()
    kind = next((kind for kind in kinds if kind.code == row["code"]), TriremeError)
    details = {name: value for name, value in row.items() if name not in ("error", "code")}
    error = TriremeError(row["error"], **details)
    error.status, error.code, error.retry_after = kind.status, row["code"], kind.retry_after
    return error


def write_error(error: Exception) -> Response:
    """Answer with an error in OpenAI's form."""
    answer = error_answer(error, request.environ)
    body = orjson.loads(answer.read())
    # OpenAI has one status for every request that is wrong.
    if answer.status == WrongPayload.status:
        answer.status = BadInput.status
    kind = "server_error" if answer.status >= 500 else "invalid_request_error"
    described = {
        "message": FIELD.sub(r"input\1", body["error"]),
        "type": "rate_limit_error" if answer.status == Overloaded.status else kind,
        "param": FIELD.sub(r"input\1", body["field"]) if "field" in body else None,
        "code": "model_not_found" if body["code"] == UnknownModel.code else body["code"],
    }
    answer.body = orjson.dumps({"error": described})
    return respond(answer)
