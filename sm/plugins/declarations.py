"""Check what a client's class declares, so that a wrong type is named at the start."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterator, Mapping

from sm.client.base import Client, TensorClient
from sm.client.payloads import Payload
from sm.client.result_kinds import ResultKind
from sm.errors import StartError

NAMES = ("models", "samples", "aliases")
WORDS = ("name", "replaces", "model")
TENSORS = ("inputs", "outputs")


def check_declarations(kind: type[Client]) -> None:
    """Raise :class:`StartError` for an attribute of a wrong type, such as a method called ``samples``."""
    for attribute, expected in _wrong(kind):
        value = inspect.getattr_static(kind, attribute, None)
        raise StartError(f"{kind.__name__}.{attribute} is to be {expected}, and it is {_shown(value)}.")


def _wrong(kind: type[Client]) -> Iterator[tuple[str, str]]:
    for attribute in WORDS:
        if not isinstance(_declared(kind, attribute, ""), str):
            yield attribute, "a text"
    for attribute in NAMES:
        if not _is_names(_declared(kind, attribute, ())):
            yield attribute, "a tuple of texts, as ('one',)"
    for attribute in TENSORS:
        if not isinstance(_declared(kind, attribute, {}), Mapping):
            yield attribute, "a dictionary, as {'input': ('FP32', (3, 224, 224))}"
    payload = _declared(kind, "payload", Payload)
    if not (isinstance(payload, type) and issubclass(payload, Payload)):
        yield "payload", "a subclass of Payload"
    if not isinstance(_declared(kind, "result", None), ResultKind | None):
        yield "result", "a result kind, as Classes()"
    if issubclass(kind, TensorClient) and not hasattr(kind, "model"):
        yield "model", "the name of a Triton model"


def _declared(kind: type[Client], attribute: str, default: object) -> object:
    """What the class has, or ``default`` where an instance computes it, as a property does."""
    value = inspect.getattr_static(kind, attribute, default)
    is_computed = hasattr(type(value), "__get__") and not inspect.isfunction(value)
    return default if is_computed else value


def _is_names(value: object) -> bool:
    if not isinstance(value, Collection) or isinstance(value, (str, bytes)):
        return False
    return all(isinstance(each, str) for each in value)


def _shown(value: object) -> str:
    if value is None:
        return "not set"
    return "a method" if inspect.isfunction(value) else repr(value)[:100]
