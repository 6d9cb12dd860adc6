"""What the forms share: how a body is read, which client answers it, and how results become a ranking."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from typing_extensions import Self

from sm.client.base import Client
from sm.client.embeddings import EmbeddingClient
from sm.client.hugging_face import TextClassification, pipeline_of
from sm.errors import BadInput, ModelFailed, TriremeError, WrongPayload
from sm.http.messages import parse_json


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
            return cls.model_validate(value)
        except ValidationError as error:
            first = error.errors()[0]
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
    def write(self, rows: list[Any]) -> object:
        """Return the answer. Raises the error of the first record that failed."""

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


def read_records(value: str | list[Any], field: str) -> list[dict[str, object]]:
    """Return the records of a text, the ids of its tokens, or a list of either. ``field``: its name."""
    inputs = [value] if isinstance(value, str) or (value and isinstance(value[0], int)) else value
    if not inputs:
        raise WrongPayload(f"{field}: is empty", field=field)
    return [{"text" if isinstance(each, str) else "token_ids": each} for each in inputs]


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

    def ranked(self, rows: Sequence[Any], most: int | None) -> list[tuple[int, float]]:
        """Return the place and score of the best documents; of equal scores the first document wins."""
        scores = [self._score(row, index) for index, row in enumerate(rows)]
        best = sorted(range(len(scores)), key=lambda index: -scores[index])[:most]
        return [(index, scores[index]) for index in best]

    def _score(self, row: Any, index: int) -> float:
        """Return the score of a document.

        Raises:
            TriremeError: Its record failed, or its score is not a number, which JSON does not have.
        """
        if isinstance(row, dict):
            raise failure_of(row)
        score: float | None = row[0]["score"]
        if score is None:
            raise ModelFailed(f"{self.member}[{index}]: the model's score is not a number")
        return score


def relevance(raw_scores: bool) -> dict[str, object]:
    """Return the parameters for scores of a server that applies a sigmoid unless asked for raw scores."""
    return {"function_to_apply": "none" if raw_scores else "sigmoid"}


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
