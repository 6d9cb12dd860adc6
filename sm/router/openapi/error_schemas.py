"""The error responses of the document, made from the error classes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sm import errors
from sm.router.openapi.parts import Json, answer, ref
from sm.router.openapi.schemas import Described

#: Those that no caller reads, the one whose status its script chooses, and one that is told as a BadInput.
UNSEEN = (errors.CallerGone, errors.ChosenStatus, errors.WrongTensor)


def responses(clients: Sequence[Described]) -> Json:
    """``Error404`` and its like; a 422 shows what each client says of an empty payload."""
    made = {f"Error{status}": _response(status) for status in sorted({kind.status for kind in kinds()})}
    mistakes = {client["name"]: {"value": client["mistake"]} for client in clients if client["mistake"]}
    _examples(made["Error422"]).update(mistakes)
    return {
        **made,
        "Error424": answer("What SageMaker's runtime makes of any error of the box.", ref("ModelError")),
    }


def kinds() -> Iterator[type[errors.TriremeError]]:
    """The errors that callers get, the common one first."""
    for kind in vars(errors).values():
        if isinstance(kind, type) and issubclass(kind, errors.TriremeError) and kind not in UNSEEN:
            yield kind


def _response(status: int) -> Json:
    those = [kind for kind in kinds() if kind.status == status]
    said = " ".join((kind.__doc__ or "").split("\n")[0] for kind in those if kind is not errors.TriremeError)
    made = answer(said, ref("Error"))
    _examples(made).update({kind.code: {"value": _example(kind)} for kind in those})
    if any(kind.retry_after for kind in those):
        made["headers"] = {"Retry-After": {"description": "Seconds.", "schema": {"type": "integer"}}}
    return made


def _examples(response: Json) -> Json:
    examples: Json = response["content"]["application/json"].setdefault("examples", {})
    return examples


def _example(kind: type[errors.TriremeError]) -> Json:
    sentence = (kind.__doc__ or "").split("\n")[0].rstrip(".")
    return {"error": sentence, "code": kind.code, "request_id": "0b5e…"}
