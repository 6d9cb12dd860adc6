"""The door ``sm.observers``: what watches a box, and changes no answer."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from sm import entry_points
from sm.errors import StartError
from sm.http.control_paths import PATHS, check_path

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication
    from flask import Blueprint

    from sm.http.control_paths import ControlPath
    from sm.invocation import Listener, Value
    from sm.run_state import Box
    from sm.settings import Settings

#: The variables that ask for an observer, each with the extras that have one.
ASKING = {
    "TRIREME_CAPTURE": "extensions",
    "TRIREME_EMF": "extensions",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "extensions,otel",
    "OTEL_EXPORTER_OTLP_ENDPOINT": "extensions,otel",
}


class ObservedProcess(NamedTuple):
    """A worker, or the control plane."""

    #: A worker's process id, or ``control``.
    name: str
    settings: Settings
    box: Box
    #: Returns a worker's clients. None for the control plane, which has none.
    clients: Callable[[], Iterable[Any]] | None = None


class Observer:
    """A row of the door. Its methods do nothing unless a subclass says what.

    What they raise is logged, and the box goes on without it: see :func:`sm.entry_points.observers`. What
    :meth:`wrap` returns, and a listener, are within a request, which fails with them. The supervisor imports
    its module, which must be light.
    """

    #: Those of :data:`ASKING` that it serves.
    variables: Collection[str] = ()
    #: Called in a worker with each answered invocation: the model's name, the message, the answer, and the
    #: client, which is None if the request is not for one. It does not wait. None: it hears none.
    hear: Callable[..., object] | None = None
    #: The paths of its routes. nginx sends requests for them to the control plane.
    paths: Sequence[ControlPath] = ()

    def schema(self) -> Mapping[str, Any]:
        """Return its part of the OpenAPI document: ``paths``, and ``components`` with their ``schemas``.

        An operation that needs no API key has an empty ``security``.
        """
        return {}

    def describe(self) -> tuple[str, str] | None:
        """Return the level and the text of a line in the log of the start; None for none."""
        return None

    def open(self, process: ObservedProcess) -> None:
        """Begin to watch this process, after the fork. Raises :class:`~sm.errors.StartError`."""

    def routes(self, failures: Callable[[], Mapping[str, str]]) -> Blueprint | None:  # noqa: ARG002
        """Return the routes that it adds to the control plane, which answers while all workers are busy.

        Args:
            failures: Returns why the last load of a model failed, or its last new version, by name.
        """
        return None

    def wrap(self, application: WSGIApplication) -> WSGIApplication:
        """Return what serves a worker's requests in place of ``application``."""
        return application

    def listen(self, headers: Mapping[str, str]) -> Listener | None:  # noqa: ARG002
        """Return what hears the work of this process for a request of another; None if nobody does.

        Args:
            headers: Of the call that asks for the work, in lower case.
        """
        return None

    def write_span(self, name: str, began: int, attributes: Mapping[str, Value]) -> None:
        """Report work that ends now, of a process that serves no request.

        Args:
            name: Of the work.
            began: Nanoseconds since 1970.
            attributes: What is known of it.
        """

    def close(self) -> None:
        """End with the process, within a few seconds."""


def load() -> Sequence[Observer]:
    """Return the rows of the door."""
    return entry_points.observers()


def describe(environment: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the levels and the texts of the start's lines about what watches the box.

    Raises :class:`StartError` if one of the box's own settings asks for an observer that is not installed, or
    if an observer has a path of another.
    """
    observers, paths = load(), list(PATHS)
    for observer in observers:
        for path in observer.paths:
            check_path(path.rule, f"observer {observer}", paths)
            paths.append(path)
    served = {variable for observer in observers for variable in observer.variables}
    for variable, extras in ASKING.items():
        if variable in served or environment.get(variable, "").strip().lower() in ("", "auto", "off"):
            continue
        line = f"{variable} needs an extension: pip install 'trireme-serving[{extras}]'."
        if variable.startswith("TRIREME_"):
            raise StartError(line)
        yield "warning", line  # such variables are often set for all programs of a cluster
    yield from filter(None, (observer.describe() for observer in observers))
