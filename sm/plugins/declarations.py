"""Check the types of a client's class attributes, so that an error appears at the start."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterator, Mapping

from sm.client.base import Client, TensorClient
from sm.client.payloads import Payload
from sm.client.result_kinds import ResultKind
from sm.errors import StartError

TUPLE_ATTRIBUTES = ("models", "samples", "aliases")
STRING_ATTRIBUTES = ("name", "replaces", "model")
TENSOR_ATTRIBUTES = ("inputs", "outputs")


def check_declarations(client_class: type[Client]) -> None:
    """Raise :class:`StartError` for an attribute of a wrong type, such as a method called ``samples``."""
    for attribute, expected in _find_wrong_types(client_class):
        value = inspect.getattr_static(client_class, attribute, None)
        raise StartError(
            f"{client_class.__name__}.{attribute} must be {expected}, but it is {_describe(value)}."
        )


def _find_wrong_types(client_class: type[Client]) -> Iterator[tuple[str, str]]:
    for attribute in STRING_ATTRIBUTES:
        if not isinstance(_class_attribute(client_class, attribute, ""), str):
            yield attribute, "a string"
    for attribute in TUPLE_ATTRIBUTES:
        if not _is_strings(_class_attribute(client_class, attribute, ())):
            yield attribute, "a tuple of strings, as ('one',)"
    for attribute in TENSOR_ATTRIBUTES:
        if not isinstance(_class_attribute(client_class, attribute, {}), Mapping):
            yield attribute, "a dictionary, as {'input': ('FP32', (3, 224, 224))}"
    payload = _class_attribute(client_class, "payload", Payload)
    if not (isinstance(payload, type) and issubclass(payload, Payload)):
        yield "payload", "a subclass of Payload"
    if not isinstance(_class_attribute(client_class, "result", None), ResultKind | None):
        yield "result", "a result kind, as Classes()"
    if issubclass(client_class, TensorClient) and not hasattr(client_class, "model"):
        yield "model", "the name of a Triton model"


def _class_attribute(client_class: type[Client], attribute: str, default: object) -> object:
    """Return the class's value, or ``default`` if an instance computes it, as a property does."""
    value = inspect.getattr_static(client_class, attribute, default)
    is_computed = hasattr(type(value), "__get__") and not inspect.isfunction(value)
    return default if is_computed else value


def _is_strings(value: object) -> bool:
    if not isinstance(value, Collection) or isinstance(value, (str, bytes)):
        return False
    return all(isinstance(item, str) for item in value)


def _describe(value: object) -> str:
    if value is None:
        return "not set"
    return "a method" if inspect.isfunction(value) else repr(value)[:100]
