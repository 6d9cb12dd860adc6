"""The table of forms. A body is of the first row that has it; a path of a form's own has rows of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from sm import entry_points
from sm.http.control_paths import all_paths, check_path
from sm.http.media_types import ROUTES, RouteTypes
from sm.models.table import Models
from sm.router.forms.dispatch import DISPATCH
from sm.router.forms.form import Form
from sm.router.forms.generate import GENERATE
from sm.router.forms.lines import LINES
from sm.router.forms.raw import ANY_BODY, OTHER_BODY, RAW_BODY
from sm.router.forms.v2 import BINARY_FORM, COMPRESSED, V2_FORM

#: The rows before and after those of extensions.
FIRST: tuple[Form, ...] = (ANY_BODY, LINES, BINARY_FORM, COMPRESSED, RAW_BODY)
LAST: tuple[Form, ...] = (V2_FORM, GENERATE, DISPATCH, OTHER_BODY)
#: The door: each entry point names a tuple of rows.
GROUP = "sm.forms"


@dataclass(frozen=True)
class Forms:
    """The rows of a box."""

    #: The forms of bodies of ``/invocations``, in the order in which they are asked.
    rows: tuple[Form, ...]
    #: The forms of each path of their own. A body is of the first that has it, and else of the last.
    paths: Mapping[str, Sequence[Form]]
    #: The lists that a GET of other paths returns.
    lists: Mapping[str, Callable[[Models], object]]

    @classmethod
    def of(cls, extensions: Iterable[Form]) -> Forms:
        """Return the table of the core's rows and these. Raises :class:`~sm.errors.StartError`."""
        rows = tuple(extensions)
        paths: dict[str, list[Form]] = {}
        for form in rows:
            for path in (*form.paths, *form.lists):
                kind = type(form)
                check_path(path, f"form {kind.__module__}.{kind.__qualname__}", all_paths())
            for path in form.paths:
                paths.setdefault(path, []).append(form)
        lists = {path: make for form in rows for path, make in form.lists.items()}
        return cls((*FIRST, *(form for form in rows if not form.paths), *LAST), paths, lists)

    @classmethod
    def load(cls) -> Forms:
        """Return the table of the core's rows and those of the installed extensions."""
        return cls.of(chain.from_iterable(entry_points.load(GROUP)))

    def schemas(self) -> Iterator[Mapping[str, Any]]:
        """Yield the forms' parts of the OpenAPI document."""
        return (form.schema() for form in (*self.rows, *chain.from_iterable(self.paths.values())))

    @property
    def route_types(self) -> Mapping[str, RouteTypes]:
        """The media types of the forms' own routes, by method and path."""
        posts = {f"POST {path}": rows[0].types for path, rows in self.paths.items()}
        return {**posts, **{f"GET {path}": LIST for path in self.lists}}


#: The media types of a list of models.
LIST = RouteTypes((), ROUTES["GET /models"].gives)
