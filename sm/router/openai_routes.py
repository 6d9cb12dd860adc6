"""What programs that search by meaning call: ``/v1/embeddings``, ``/v1/rerank`` and ``/v1/models``.

Embeddings have OpenAI's form (https://platform.openai.com/docs/api-reference/embeddings), rankings that of
Cohere and Jina (https://docs.cohere.com/v1/reference/rerank, https://api.jina.ai/redoc). A request becomes a
list of records for the client, and its results the answer: so admission, deadlines, limits and batches are
those of ``/invocations``.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import orjson
import pybase64
from flask import Blueprint, Response, request
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from typing_extensions import Self

from sm.client.base import Array, Client
from sm.client.decode_budget import DECODED
from sm.client.embeddings import EmbeddingClient
from sm.client.hugging_face import TextClassification, pipeline_of
from sm.errors import BadInput, ModelFailed, Overloaded, TriremeError, UnknownModel, WrongPayload
from sm.http.messages import JSON, Answer, parse_json
from sm.http.responses import error_answer
from sm.invocation import Invocation
from sm.models.table import Models
from sm.router.answers import dumps
from sm.router.invocation_routes import Router
from sm.router.json_bodies import estimate_parsed_bytes
from sm.router.request_types import Message
from sm.router.wsgi import NO_PARAMETERS, read_message, respond

#: A field in an error of the dispatcher: ``payload[3].text``, ``parameters.query``.
FIELD = re.compile(r"\bpayload(\[\d+\])?(?:\.(?:text|token_ids))?|\bparameters\.(query)\b")


class SearchRequest(BaseModel):
    """The body of a request for one client."""

    model_config = ConfigDict(extra="forbid", strict=True)
    #: The member with the texts.
    texts: ClassVar[str]
    #: What the model does, for a sentence.
    service: ClassVar[str]
    model: str

    @classmethod
    def read(cls, body: bytes) -> Self:
        """Read a body. Raises :class:`WrongPayload` that names the wrong member."""
        try:
            return cls.model_validate(parse_json(body))
        except ValidationError as error:
            first = error.errors()[0]
            if not first["loc"]:
                raise BadInput(f"the body must be a JSON object with model and {cls.texts}") from None
            name, *numbers = first["loc"]
            field = f"{name}[{numbers[0]}]" if numbers and name == "documents" else str(name)
            raise WrongPayload(f"{field}: {first['msg']}", field=field) from None

    @staticmethod
    @abstractmethod
    def is_served_by(client: Client | None) -> bool:
        """True if a client answers such requests."""

    @abstractmethod
    def dispatched(self) -> dict[str, object]:
        """Return the request as ``/invocations`` takes it."""

    @abstractmethod
    def write(self, rows: list[Any]) -> dict[str, object]:
        """Return the answer. Raises the error of the first record that failed."""


class EmbeddingsRequest(SearchRequest):
    """A request for vectors. ``user`` is OpenAI's, and means nothing here."""

    texts = "input"
    service = "gives embeddings"
    input: str | list[Any]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = Field(None, ge=1)
    user: str | None = None

    @staticmethod
    def is_served_by(client: Client | None) -> bool:
        return isinstance(client, EmbeddingClient)

    def dispatched(self) -> dict[str, object]:
        return {"payload": read_records(self.input)}

    def write(self, rows: list[Any]) -> dict[str, object]:
        data = []
        for index, row in enumerate(rows):
            if "embedding" not in row:
                raise failure_of(row)
            vector = row["embedding"]
            if self.dimensions:
                vector = shorten(np.array(vector, np.float32), self.dimensions)
            if self.encoding_format == "base64":
                vector = pybase64.b64encode(np.array(vector, "<f4").tobytes()).decode()
            data.append({"object": "embedding", "index": index, "embedding": vector})
        tokens = sum(row["tokens"] for row in rows)
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        return {"object": "list", "data": data, "model": self.model, "usage": usage}


def read_document(document: object) -> object:
    """Return the text of a document, which may be an object with the text among its members."""
    return document.get("text") if isinstance(document, dict) else document


class RerankRequest(SearchRequest):
    """A request to order documents by what they say about a query."""

    texts = "documents"
    service = "ranks documents"
    query: str = Field(min_length=1)
    documents: list[Annotated[str, Field(min_length=1), BeforeValidator(read_document)]] = Field(min_length=1)
    top_n: int | None = Field(None, ge=1)
    return_documents: bool = False

    @staticmethod
    def is_served_by(client: Any) -> bool:
        is_classifier = client is not None and isinstance(pipeline_of(client), TextClassification)
        return is_classifier and len(client.labels) == 1

    def dispatched(self) -> dict[str, object]:
        # The query is there once, however many documents there are.
        return {"payload": self.documents, "parameters": {"query": self.query}}

    def write(self, rows: list[Any]) -> dict[str, object]:
        scores = [score_of(row, index) for index, row in enumerate(rows)]
        best = sorted(range(len(scores)), key=lambda index: -scores[index])[: self.top_n]
        results: list[dict[str, object]] = [
            {"index": index, "relevance_score": scores[index]} for index in best
        ]
        if self.return_documents:
            for result, index in zip(results, best, strict=True):
                result["document"] = {"text": self.documents[index]}
        return {"model": self.model, "results": results}


#: The kind of a request by its path.
KINDS: Mapping[str, type[SearchRequest]] = {
    "/v1/embeddings": EmbeddingsRequest,
    "/v1/rerank": RerankRequest,
}


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
            for client in clients_for(EmbeddingsRequest, router.pipeline.models)
        ]
        return respond(Answer(orjson.dumps({"object": "list", "data": rows})))

    @routes.post("/v1/embeddings")
    @routes.post("/v1/rerank")
    def search() -> Response:
        asked: list[SearchRequest] = []

        def read(invocation: Invocation) -> Message:
            message = read_message(request.environ, router.max_body)
            with DECODED.reserve(estimate_parsed_bytes(message)):
                request_body = KINDS[request.path].read(message.body)
                body = dumps(request_body.dispatched())
            asked.append(request_body)
            find_client(router.pipeline.models, request_body, invocation)
            headers = {**message.headers, "content-type": JSON, "accept": JSON}
            return Message(body, headers, NO_PARAMETERS, message.request_id, request_body.model)

        # A failure of one record is that of the invocation, so it ends only with the answer.
        with router.begin(request.environ) as invocation:
            answer = router.pipeline.answer(invocation, partial(read, invocation))
            body = dumps(asked[0].write(orjson.loads(answer.read())["result"]))
            return respond(Answer(body, headers=answer.headers))

    return routes


def clients_for(kind: type[SearchRequest], models: Models) -> list[Client]:
    """Return the clients for a request, of those that this worker has made: asking makes none."""
    return [client for client in models.clients() if kind.is_served_by(client)]


def find_client(models: Models, asked: SearchRequest, invocation: Invocation | None = None) -> None:
    """Raise :class:`UnknownModel` unless the request's model is a client that answers such requests."""
    served = models.use(asked.model, invocation)
    if served is not None and asked.is_served_by(served.client):
        return
    names = ", ".join(sorted(client.name for client in clients_for(type(asked), models))) or "none"
    raise UnknownModel(
        f"no model {asked.model[:200]!r} that {asked.service}; there are: {names}", field="model"
    )


def read_records(value: str | list[Any]) -> list[dict[str, object]]:
    """Return the records of ``input``: a text, the ids of its tokens, or a list of either."""
    inputs = [value] if isinstance(value, str) or (value and isinstance(value[0], int)) else value
    if not inputs:
        raise WrongPayload("input: is empty", field="input")
    return [{"text" if isinstance(each, str) else "token_ids": each} for each in inputs]


def score_of(row: Any, index: int) -> float:
    """Return the score of a document.

    Raises:
        TriremeError: Its record failed, or its score is not a number, which JSON does not have.
    """
    if isinstance(row, dict):
        raise failure_of(row)
    score: float | None = row[0]["score"]
    if score is None:
        raise ModelFailed(f"documents[{index}]: the model's score is not a number")
    return score


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
    kind = KINDS.get(request.path)

    def rename(text: str) -> str:
        """Name a record by the member that has it."""
        return FIELD.sub(lambda found: found[2] or f"{kind.texts if kind else ''}{found[1] or ''}", text)

    # OpenAI has one status for every request that is wrong.
    if answer.status == WrongPayload.status:
        answer.status = BadInput.status
    fault = "server_error" if answer.status >= 500 else "invalid_request_error"
    described = {
        "message": rename(body["error"]),
        "type": "rate_limit_error" if answer.status == Overloaded.status else fault,
        "param": rename(body["field"]) if "field" in body else None,
        "code": "model_not_found" if body["code"] == UnknownModel.code else body["code"],
    }
    answer.body = orjson.dumps({"error": described})
    return respond(answer)
