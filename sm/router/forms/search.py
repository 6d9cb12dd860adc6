"""What the forms share: how a body is read, which client answers it, and how results become a ranking."""

from __future__ import annotations

import io
import math
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from typing_extensions import Self

from sm.client.base import Client
from sm.client.decode_budget import Room
from sm.client.embeddings import EmbeddingClient
from sm.client.hugging_face import TextClassification, pipeline_of
from sm.client.results import dumps
from sm.client.validation import validate
from sm.errors import BadInput, ModelFailed, WrongPayload
from sm.http.messages import parse_json

#: Bytes of memory for a document's place in an answer.
BYTES_PER_RESULT = 512


class SearchRequest(BaseModel):
    """The body of a request for one client."""

    model_config = ConfigDict(extra="forbid", strict=True)
    #: The member with the texts.
    member: ClassVar[str]
    #: What the model does, for a sentence.
    service: ClassVar[str]
    #: The client's name. Where a form has none, or leaves it out, the box's only client of the kind answers.
    model: str = ""

    @classmethod
    def is_form_of(cls, members: Mapping[str, object]) -> bool:  # noqa: ARG003
        """True if a JSON object with these members is of this form, among those of its path."""
        return True

    @classmethod
    def read(cls, body: bytes) -> Self:
        """Read a body. Raises :class:`WrongPayload` that names the wrong member."""
        return cls.of(parse_json(body))

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
            field = f"{name}[{numbers[0]}]" if is_item else str(name)
            explanation = first["msg"]
            if first["type"] == "extra_forbidden":
                explanation = f"is not taken here; the members are {', '.join(cls.model_fields)}"
            raise WrongPayload(f"{field}: {explanation}", field=field) from None

    @staticmethod
    @abstractmethod
    def is_served_by(client: Client | None) -> bool:
        """True if a client answers such requests."""

    @abstractmethod
    def dispatched(self, client: Any) -> dict[str, object]:
        """Return the request as ``/invocations`` takes it. Raises :class:`WrongPayload`.

        Args:
            client: That answers it.
        """

    @abstractmethod
    def encode(self, result: Any) -> Any:
        """Return what is kept of a record's result until all have theirs."""

    @abstractmethod
    def answer(self, rows: Iterator[Any], room: Room) -> bytes:
        """Return the answer to all records, and take room for it."""

    @staticmethod
    def write_error(described: dict[str, object]) -> dict[str, object]:
        """Return the body of an error: the default is OpenAI's.

        Args:
            described: ``message``, ``type``, ``param`` and ``code``.
        """
        return {"error": described}


class EmbeddingsForm(SearchRequest):
    """A request for vectors."""

    service = "gives embeddings"

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
    def frame(self, tokens: int) -> tuple[bytes, bytes]:
        """Return what is before and behind the entries of texts of so many tokens."""

    def answer(self, rows: Iterator[tuple[bytes, int]], room: Room) -> bytes:
        body, all_tokens, count = io.BytesIO(), 0, len(InputRecords(getattr(self, self.member), self.member))
        body.write(self.frame(0)[0])
        for index, (vector, tokens) in enumerate(rows):
            entry = self.entry(index, vector)
            if not index:  # the vectors of a model are of one size
                room.grow(count * len(entry))
            room.grow(body.tell() + len(entry))
            body.write(b"," * (index > 0) + entry)
            all_tokens += tokens
        body.write(self.frame(all_tokens)[1])
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
            raise WrongPayload(f"{field}: is empty", field=field)

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
    def is_served_by(client: Any) -> bool:
        is_classifier = client is not None and isinstance(pipeline_of(client), TextClassification)
        return is_classifier and len(client.labels) == 1

    def parameters(self) -> dict[str, object]:
        """Return the client's parameters beside the query."""
        return {}

    def dispatched(self, client: Any) -> dict[str, object]:  # noqa: ARG002  # the same for all
        # The query is there once, however many documents there are.
        return {
            "payload": getattr(self, self.member),
            "parameters": {"query": self.query, **self.parameters()},
        }

    def encode(self, result: Any) -> float:
        return float(result[0]["score"])

    @abstractmethod
    def write(self, rows: list[float]) -> object:
        """Return the answer to documents with these scores. Raises :class:`ModelFailed`."""

    def answer(self, rows: Iterator[float], room: Room) -> bytes:
        scores = [*rows]
        room.grow(BYTES_PER_RESULT * len(scores))
        return dumps(self.write(scores))

    def ranked(self, rows: Sequence[Any], most: int | None) -> list[tuple[int, float]]:
        """Return the place and score of the best documents; of equal scores the first document wins."""
        scores = [self._score(row, index) for index, row in enumerate(rows)]
        best = sorted(range(len(scores)), key=lambda index: -scores[index])[:most]
        return [(index, scores[index]) for index in best]

    def _score(self, score: float, index: int) -> float:
        """Return the score of a document. Raises :class:`ModelFailed` if JSON has no such number."""
        if not math.isfinite(score):
            raise ModelFailed(f"{self.member}[{index}]: the model's score is not a number")
        return score


def relevance(raw_scores: bool) -> dict[str, object]:
    """Return the parameters for scores of a server that applies a sigmoid unless asked for raw scores."""
    return {"function_to_apply": "none" if raw_scores else "sigmoid"}
