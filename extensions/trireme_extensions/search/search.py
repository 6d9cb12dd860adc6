"""The parts that the forms of search share: reading a body, finding its client, and making a ranking.

A request becomes records for the client: so admission, deadlines, limits and batches are those of
``/invocations``. A client of another extension is known by an attribute, such as ``ranks`` of the tasks'
classes of texts, as no extension imports another.
"""

from __future__ import annotations

import io
import math
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar

import orjson
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from typing_extensions import Self

from sm.client.base import Client
from sm.client.decode_budget import Room
from sm.client.embeddings import EmbeddingClient
from sm.client.results import dumps
from sm.client.validation import validate
from sm.errors import BadInput, FieldPath, ModelFailed, Overloaded, TriremeError, UnknownModel, WrongPayload
from sm.http.messages import Answer, write_error
from sm.models.table import Models
from sm.router.forms.form import Form, Reading
from sm.router.request_types import Call, DispatchRequest

#: Bytes of memory for a document's place in an answer.
BYTES_PER_RESULT = 512


class SearchRequest(BaseModel):
    """The body of a request for one client."""

    model_config = ConfigDict(extra="forbid", strict=True)
    #: The member with the texts.
    member: ClassVar[str]
    #: The service of the model, in the words of a sentence.
    service: ClassVar[str]
    #: The client's name. Where a form has none, or leaves it out, the box's only client of the kind answers.
    model: str = ""

    @classmethod
    def is_form_of(cls, members: Mapping[str, object]) -> bool:  # noqa: ARG003
        """True if a JSON object with these members is of this form, among those of its path."""
        return True

    @classmethod
    def of(cls, value: object) -> Self:
        """Read a JSON value. Raises :class:`WrongPayload` that names the wrong member."""
        try:
            return validate(cls, value)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            if not first["loc"]:
                raise BadInput(f"the body must be a JSON object with {cls.member}") from None
            name, *numbers = first["loc"]
            is_item = name == cls.member and bool(numbers) and isinstance(numbers[0], int)
            field: FieldPath = (name, numbers[0]) if is_item else (str(name),)
            explanation = first["msg"]
            if first["type"] == "extra_forbidden":
                explanation = f"is not taken here; the members are {', '.join(cls.model_fields)}"
            raise WrongPayload(explanation, field=field) from None

    @staticmethod
    @abstractmethod
    def is_served_by(client: Client | None) -> bool:
        """True if a client answers such requests."""

    @abstractmethod
    def records(self) -> Sequence[Any]:
        """Return what the client gets, one by one. Raises :class:`WrongPayload`."""

    def parameters(self, client: Any) -> dict[str, object]:  # noqa: ARG002
        """Return the client's parameters. Raises :class:`WrongPayload` for one that it cannot honour."""
        return {}

    @abstractmethod
    def encode(self, result: Any) -> Any:
        """Return what is kept of a record's result until all have theirs."""

    @abstractmethod
    def answer(self, rows: Iterator[Any], room: Room) -> bytes:
        """Return the answer to all records, and take room for it."""

    @staticmethod
    def describe_error(described: dict[str, object]) -> dict[str, object]:
        """Return the body of an error: the default is OpenAI's.

        Args:
            described: ``message``, ``type``, ``param`` and ``code``.
        """
        return {"error": described}


class SearchCall(Call):
    """A request that a client answers."""

    def __init__(self, asked: SearchRequest, client: Client) -> None:
        self.asked = asked
        root = (asked.member,)
        super().__init__(asked.records(), asked.parameters(client), asked.model, root=root, many=True)

    def name(self, path: FieldPath) -> FieldPath:
        if path[0] == "parameters":
            return path[1:]
        # A text has no name of its own in the body.
        return path[:2] + path[3:] if path[:1] == self.root else path

    def keep(self, result: Any) -> Any:
        return self.asked.encode(result)

    def write(self, kept: Iterator[Any], request: DispatchRequest, room: Room) -> bytes:  # noqa: ARG002
        return self.asked.answer(kept, room)


#: The parts of the OpenAPI document, without errors, and the statuses of those.
SCHEMA = Path(__file__).with_name("openapi.json")
STATUSES = (400, 403, 404, 413, 429, 500, 503, 504, 507)


class SearchForm(Form):
    """The row of a kind of request, at a path."""

    def __init__(self, path: str, kind: type[SearchRequest], *errors: str) -> None:
        self.paths, self.kind, self.errors = (path,), kind, errors or ("OpenAIError",)

    def has(self, reading: Reading) -> bool:
        value = reading.value
        return self.kind.is_form_of(value if isinstance(value, dict) else {})

    def read(self, reading: Reading) -> SearchCall:
        asked = self.kind.of(reading.json())
        return SearchCall(asked, find_client(reading, asked))

    def write_error(self, error: TriremeError, request_id: str, echo: Any) -> Answer:  # noqa: ARG002
        fault = "server_error" if error.status >= 500 else "invalid_request_error"
        described = {
            "message": error.sentence,
            "type": "rate_limit_error" if error.status == Overloaded.status else fault,
            "param": error.details.get("field"),
            "code": "model_not_found" if error.code == UnknownModel.code else error.code,
        }
        answer = write_error(error, request_id, self.kind.describe_error(described))
        # OpenAI has one status for every request that is wrong.
        if answer.status == WrongPayload.status:
            answer.status = BadInput.status
        return answer

    def schema(self) -> Mapping[str, Any]:
        described: dict[str, Any] = orjson.loads(SCHEMA.read_bytes())
        paths = {path: described["paths"][path] for path in (*self.paths, *self.lists)}
        whose = "OpenAI's" if self.errors == ("OpenAIError",) else "the system's"
        schema = {"anyOf": [{"$ref": f"#/components/schemas/{name}"} for name in (*self.errors, "Error")]}
        content = {"application/json": {"schema": schema}}
        error = {"description": f"An error in {whose} form.", "content": content}
        for path in self.paths:
            paths[path]["post"]["responses"] |= {str(status): error for status in STATUSES}
        return {**described, "paths": paths}


def clients_for(kind: type[SearchRequest], models: Models) -> list[Client]:
    """Return the clients for a request, of those that this worker has made: asking makes none."""
    return [client for client in models.clients() if kind.is_served_by(client)]


def find_client(reading: Reading, asked: SearchRequest) -> Client:
    """Return the client of a request, and note its name in it.

    If the request names no model, that of its headers or query answers; without one, the default model if it
    can, or the only client that can.

    Raises:
        UnknownModel: The model is not a client that answers such requests.
        WrongPayload: The request names none, and there are several.
    """
    names = sorted(client.name for client in clients_for(type(asked), reading.models))
    if "model" not in asked.model_fields_set:
        asked.model = reading.address.model or (reading.model if reading.model in names else "")
        if not asked.model and len(names) > 1:
            raise WrongPayload(
                f"{', '.join(names)} can answer: name one, in the body or as ?modelname=", field=("model",)
            )
        asked.model = asked.model or "".join(names)
    client = reading.use(asked.model)
    if client is not None and asked.is_served_by(client):
        return client
    raise UnknownModel(
        f"no model {asked.model[:200]!r} that {asked.service}; there are: {', '.join(names) or 'none'}",
        field="model",
    )


class EmbeddingsForm(SearchRequest):
    """A request for vectors."""

    service = "gives embeddings"
    #: The bytes of an answer before its entries.
    start: ClassVar[bytes]

    @staticmethod
    def is_served_by(client: Client | None) -> bool:
        return isinstance(client, EmbeddingClient)

    def vector(self, result: Mapping[str, Any]) -> object:
        """Return the vector of a result as the answer has it."""
        return result["embedding"]

    def encode(self, result: Mapping[str, Any]) -> tuple[bytes, int]:
        """Return the JSON of a vector, and how many tokens it is of."""
        return dumps(self.vector(result)), result["tokens"]

    def entry(self, index: int, vector: bytes) -> bytes:  # noqa: ARG002  # the same for all of some forms
        """Return the JSON of a vector's entry."""
        return vector

    @abstractmethod
    def end(self, tokens: int) -> bytes:
        """Return what is behind the entries of texts of so many tokens."""

    def records(self) -> InputRecords:
        return InputRecords(getattr(self, self.member), self.member)

    def answer(self, rows: Iterator[tuple[bytes, int]], room: Room) -> bytes:
        body, all_tokens, count = io.BytesIO(), 0, len(self.records())
        body.write(self.start)
        for index, (vector, tokens) in enumerate(rows):
            entry = self.entry(index, vector)
            if not index:  # the vectors of a model are of one size
                room.grow(count * len(entry))
            room.grow(body.tell() + len(entry))
            body.write(b"," * (index > 0) + entry)
            all_tokens += tokens
        body.write(self.end(all_tokens))
        return body.getvalue()


class InputRecords(Sequence[Any]):
    """The records of a text, the ids of its tokens, or a list of either; ``field``: its name.

    Each is made when it is asked for: all together would take a hundred times the body.

    Raises:
        WrongPayload: There are none.
    """

    def __init__(self, value: str | list[Any], field: str) -> None:
        is_one = isinstance(value, str) or (value and isinstance(value[0], int))
        self._inputs: Sequence[Any] = [value] if is_one else value
        if not self._inputs:
            raise WrongPayload("is empty", field=(field,))

    def __len__(self) -> int:
        return len(self._inputs)

    def __getitem__(self, index: Any) -> Any:
        each = self._inputs[index]
        return {"text" if isinstance(each, str) else "token_ids": each}


def read_document(document: object) -> object:
    """Return the text of a document, which may be an object with the text among its members."""
    return document.get("text") if isinstance(document, dict) else document


Document = Annotated[str, Field(min_length=1), BeforeValidator(read_document)]


class RankingForm(SearchRequest):
    """A request to order texts by what they say about a query."""

    service = "ranks documents"
    query: str = Field(min_length=1)

    @staticmethod
    def is_served_by(client: Client | None) -> bool:
        return getattr(client, "ranks", False)

    def records(self) -> Sequence[Any]:
        texts: list[str] = getattr(self, self.member)
        return texts

    def parameters(self, client: Any) -> dict[str, object]:  # noqa: ARG002
        # The query is there once, however many documents there are.
        return {"query": self.query}

    def encode(self, result: Any) -> float:
        return float(result[0]["score"])

    @abstractmethod
    def write(self, rows: list[float]) -> object:
        """Return the answer to documents with these scores. Raises :class:`ModelFailed`."""

    def answer(self, rows: Iterator[float], room: Room) -> bytes:
        scores = [*rows]
        room.grow(BYTES_PER_RESULT * len(scores))
        return dumps(self.write(scores))

    def ranked(self, rows: Sequence[float], most: int | None) -> list[tuple[int, float]]:
        """Return the place and score of the best documents; of equal scores the first document wins.

        Raises :class:`ModelFailed`.
        """
        for index, score in enumerate(rows):
            if not math.isfinite(score):  # JSON has no such number
                raise ModelFailed(f"{self.member}[{index}]: the model's score is not a number")
        return sorted(enumerate(rows), key=lambda each: -each[1])[:most]


def relevance(raw_scores: bool) -> dict[str, object]:
    """Return the parameters for scores of a server that applies a sigmoid unless asked for raw scores."""
    return {"function_to_apply": "none" if raw_scores else "sigmoid"}
