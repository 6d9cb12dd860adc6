"""Load a client: make its class and its one instance."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, InstanceOf, TypeAdapter, ValidationError

from sm.client.base import Client, TensorClient, Triton
from sm.client.payloads import Payload
from sm.client.results import ResultKind
from sm.errors import StartError
from sm.plugins import code_imports
from sm.plugins.sources import PAGE, ClientSource

#: Libraries that only the containers of other systems have.
FOREIGN_MODULES = frozenset({"cog", "djl_python", "kserve", "mms", "ts"})


def check_declarations(client_class: type[Client]) -> None:
    """Raise :class:`StartError` for an attribute of a wrong type, such as a method called ``samples``."""
    if issubclass(client_class, TensorClient) and not hasattr(client_class, "model"):
        raise StartError(
            f"{client_class.__name__}.model must be the name of a Triton model, but it is not set."
        )
    ready = inspect.getattr_static(client_class, "ready")
    if not inspect.isfunction(ready) or inspect.iscoroutinefunction(ready):
        raise StartError(f"{client_class.__name__}.ready must be a method: def ready(self) -> bool | str.")
    for attributes, kind, expected in DECLARATIONS:
        adapter = TypeAdapter[Any](kind)
        for attribute in attributes.split():
            value = inspect.getattr_static(client_class, attribute, None)
            is_method = inspect.isfunction(value)
            if value is None or (hasattr(type(value), "__get__") and not is_method):
                continue  # it is not set, or an instance computes it, as a property does
            try:
                adapter.validate_python(value)
            except ValidationError:
                found = "a method" if is_method else repr(value)[:100]
                raise StartError(
                    f"{client_class.__name__}.{attribute} must be {expected}, but it is {found}."
                ) from None


#: Attributes of a client's class, their type, and how an error describes it.
DECLARATIONS: tuple[tuple[str, Any, str], ...] = (
    ("name replaces model", str, "a string"),
    ("models samples aliases", tuple[str, ...], "a tuple of strings, as ('one',)"),
    ("inputs outputs", Mapping[str, object], "a dictionary, as {'input': ('FP32', (3, 224, 224))}"),
    ("payload", type[Payload], "a subclass of Payload"),
    ("result", InstanceOf[ResultKind], "a result kind, as Classes()"),
    ("max_batch", Annotated[int, Field(ge=1, strict=True)], "a number of records, from 1"),
    ("max_wait_ms", Annotated[float, Field(ge=0, strict=True)], "a number of milliseconds, from 0"),
)


def plain_names(source: ClientSource, anew: bool = True) -> AbstractContextManager[None]:
    """Make the modules beside a user's client importable as ``import helpers``, and watch that its code
    returns. They are loaded ``anew`` before the client is.

    Raises:
        StartError: It has not returned before.
        DeadlinePassed, CallerGone: A request waited too long for another client's code.
    """
    if not source.is_bundled and source.row.imports_beside(source):
        return code_imports.plain_names(source.home, anew)
    return code_imports.watched(source.file)


def load(source: ClientSource, triton: Triton, repository: Path) -> Client:
    """Make the class of a client and its one instance. Raises :class:`StartError`."""
    with plain_names(source):
        try:
            client_class = source.row.client_class(source)
            if not (isinstance(client_class, type) and issubclass(client_class, Client)):
                raise StartError(f"its kind {source.kind!r} makes {client_class!r}, which is not a client.")
            check_declarations(client_class)
            client: Client = client_class(triton, source.home, repository)
        except StartError as error:
            raise StartError(f"{source.display_path}: {error}") from None
        except BaseException as error:  # also a client's sys.exit() and KeyboardInterrupt
            raise StartError(f"{source.display_path}: {describe_failure(error, source.file)}") from error
    client.name = client.name or source.name
    return client


def describe_failure(error: BaseException, file: Path) -> str:
    """Format the error in one line, with the line of the client that raised it."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file)]
    line = frames[-1].lineno if frames else getattr(error, "lineno", None)
    location = f"line {line}: " if line else ""
    message = str(error).splitlines()[0].rstrip(".") if str(error) else "no message"
    is_foreign = isinstance(error, ModuleNotFoundError) and error.name in FOREIGN_MODULES
    hint = f" {PAGE} shows how such code is served here." if is_foreign else ""
    return f"{location}{type(error).__name__}: {message}.{hint}"
