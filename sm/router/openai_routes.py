"""OpenAI's embeddings API, which vector databases speak: ``/v1/embeddings`` and ``/v1/models``.

A request becomes a list of records for the client, and its results the answer: so admission, deadlines,
limits and batches are those of ``/invocations``. https://platform.openai.com/docs/api-reference/embeddings
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import numpy as np
import orjson
import pybase64
from flask import Blueprint, Response, request
from pydantic import BaseModel, ConfigDict, Field, ValidationError

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

#: A field of a record in an error of the dispatcher: ``payload[3].text``.
FIELD = re.compile(r"\bpayload(\[\d+\])?(\.(?:text|token_ids))?")


class EmbeddingsRequest(BaseModel):
    """The body of a request. ``user`` is OpenAI's, and means nothing here."""

    model_config = ConfigDict(extra="forbid", strict=True)
    input: str | list[Any]
    model: str
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = Field(None, ge=1)
    user: str | None = None

    @classmethod
    def read(cls, body: bytes) -> EmbeddingsRequest:
        """Read a body. Raises :class:`WrongPayload` that names the wrong member."""
        try:
            return cls.model_validate(parse_json(body))
        except ValidationError as error:
            first = error.errors()[0]
            if not first["loc"]:
                raise BadInput("the body must be a JSON object with model and input") from None
            field = str(first["loc"][0])
            raise WrongPayload(f"{field}: {first['msg']}", field=field) from None


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
        asked: list[EmbeddingsRequest] = []

        def read() -> Message:
            message = read_message(request.environ, router.max_body)
            with DECODED.reserve(estimate_parsed_bytes(message)):
                request_body = EmbeddingsRequest.read(message.body)
                body = dumps({"payload": read_records(request_body.input)})
            asked.append(request_body)
            find_client(router.pipeline.registry, request_body.model)
            headers = {**message.headers, "content-type": JSON, "accept": JSON}
            return Message(body, headers, NO_PARAMETERS, message.request_id, request_body.model)

        # A failure of one record is that of the invocation, so it ends only with the answer.
        with router.begin(request.environ) as invocation:
            answer = router.pipeline.answer(invocation, read)
            body = write_embeddings(asked[0], orjson.loads(answer.read())["result"])
            return respond(Answer(body, headers=answer.headers))

    return routes


def embedding_clients(registry: Registry) -> Iterator[EmbeddingClient]:
    """Return the clients that give embeddings, of those that this worker has made: asking makes none."""
    return (client for client in registry.made_clients() if isinstance(client, EmbeddingClient))


def find_client(registry: Registry, name: str) -> None:
    """Raise :class:`UnknownModel` unless the name is that of a client that gives embeddings."""
    if isinstance(registry.find(name), EmbeddingClient):
        return
    names = ", ".join(sorted(client.name for client in embedding_clients(registry))) or "none"
    raise UnknownModel(f"no model {name[:200]!r} that gives embeddings; there are: {names}", field="model")


def read_records(value: str | list[Any]) -> list[dict[str, object]]:
    """Return the records of ``input``: a text, the ids of its tokens, or a list of either."""
    inputs = [value] if isinstance(value, str) or (value and isinstance(value[0], int)) else value
    if not inputs:
        raise WrongPayload("input: is empty", field="input")
    return [{"text" if isinstance(each, str) else "token_ids": each} for each in inputs]


def write_embeddings(asked: EmbeddingsRequest, rows: list[dict[str, Any]]) -> bytes:
    """Encode the answer. Raises the error of the first record that failed."""
    data = []
    for index, row in enumerate(rows):
        if "embedding" not in row:
            raise failure_of(row)
        vector = row["embedding"]
        if asked.dimensions:
            vector = shorten(np.array(vector, np.float32), asked.dimensions)
        if asked.encoding_format == "base64":
            vector = pybase64.b64encode(np.array(vector, "<f4").tobytes()).decode()
        data.append({"object": "embedding", "index": index, "embedding": vector})
    tokens = sum(row["tokens"] for row in rows)
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return dumps({"object": "list", "data": data, "model": asked.model, "usage": usage})


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
