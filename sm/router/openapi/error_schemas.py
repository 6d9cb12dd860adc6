"""The error responses of the document, derived from the error classes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sm import errors
from sm.router.openapi.parts import EXAMPLE_ID, Json, answer, ref
from sm.router.openapi.schemas import Described

#: Not in the document: no caller receives the first, a client's script chooses the status of the second, and
#: callers receive the third as a BadInput.
UNDOCUMENTED = (errors.CallerGone, errors.ChosenStatus, errors.WrongTensor)


def responses(clients: Sequence[Described]) -> Json:
    """Return ``Error404`` and the others; the 422 shows each client's error for an empty payload."""
    shared_responses = {
        f"Error{status}": _response(status) for status in sorted({kind.status for kind in kinds()})
    }
    client_examples = {
        client["name"]: {"value": client["error_example"]} for client in clients if client["error_example"]
    }
    _examples(shared_responses["Error422"]).update(client_examples)
    return {
        **shared_responses,
        "Error424": answer(
            "The form in which SageMaker's runtime passes on every error of the box.", ref("ModelError")
        ),
    }


def kinds() -> Iterator[type[errors.TriremeError]]:
    """Yield the error classes that callers receive, the most common first."""
    for kind in vars(errors).values():
        if isinstance(kind, type) and issubclass(kind, errors.TriremeError) and kind not in UNDOCUMENTED:
            yield kind


def _response(status: int) -> Json:
    matching = [kind for kind in kinds() if kind.status == status]
    description = " ".join(
        (kind.__doc__ or "").split("\n")[0] for kind in matching if kind is not errors.TriremeError
    )
    response = answer(description, ref("Error"))
    _examples(response).update({kind.code: {"value": _example(kind)} for kind in matching})
    if any(kind.retry_after for kind in matching):
        response["headers"] = {"Retry-After": {"description": "Seconds.", "schema": {"type": "integer"}}}
    return response


def _examples(response: Json) -> Json:
    examples: Json = response["content"]["application/json"].setdefault("examples", {})
    return examples


def _example(kind: type[errors.TriremeError]) -> Json:
    sentence = (kind.__doc__ or "").split("\n")[0].rstrip(".")
    return errors.error_body(sentence, kind.code, EXAMPLE_ID)
