"""The paths of the control plane: nginx's configuration and the tracing are made from this table.

A test compares it with the routes. No library is imported: the supervisor uses this too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from sm import entry_points
from sm.errors import StartError

#: Bytes of a body on a path that needs none: a caller may send one to ``/ping``, and nobody has to read it.
MAX_NEEDLESS_BODY_BYTES = 2**12
#: Bytes of a body on the other paths of the control plane, which is one process for all callers.
MAX_BODY_BYTES = 2**20


#: Requests at once for paths that may take long, such as a load, which may take minutes.
MAX_SLOW_REQUESTS = 64
#: Scrapes that nginx admits at once.
MAX_SCRAPES = 8
#: Threads of the control plane that are left for the others, ``/ping`` above all.
QUICK_THREADS = 4


class ControlPath(NamedTuple):
    """A path that answers while all workers are busy."""

    #: The path in Flask's notation, such as ``/models/<name>``.
    rule: str
    #: True for what a browser opens before it can send an API key: it says nothing of the box's models.
    is_open: bool = False
    #: True if many scrape it at once: nginx then admits few at a time.
    is_scraped: bool = False
    #: True if it is asked every few seconds, and a trace of each time would say nothing.
    is_polled: bool = False
    #: True if a request has a body that says something.
    takes_body: bool = False
    #: True if an answer may take long: it loads a model, or asks Triton or S3.
    is_slow: bool = False

    @property
    def max_body(self) -> int:
        """Bytes of a body, at most."""
        return MAX_BODY_BYTES if self.takes_body else MAX_NEEDLESS_BODY_BYTES


PATHS = (
    ControlPath("/ping", is_open=True, is_polled=True),
    ControlPath("/", is_open=True),
    ControlPath("/docs", is_open=True),
    ControlPath("/page/<name>", is_open=True),
    ControlPath("/metrics", is_scraped=True, is_polled=True),
    ControlPath("/models", takes_body=True, is_slow=True),
    ControlPath("/models/<name>", is_slow=True),
    ControlPath("/models/<name>/versions", takes_body=True, is_slow=True),
    ControlPath("/execution-parameters", is_polled=True),
    ControlPath("/openapi.json"),
    ControlPath("/samples/<client>/<name>"),
)
#: Other paths of the box, how others of its own begin, and what a path may be in nginx's configuration.
TAKEN = ("/invocations", "/invocations-bidirectional-stream", "/v2")
TAKEN_BELOW = ("/models/", "/endpoints/", "/v2/models", "/v2/health", "/v2/repository", "/page/", "/samples/")
PLAIN = re.compile(r"(/[A-Za-z0-9._~:@,-]+)+")


def all_paths() -> tuple[ControlPath, ...]:
    """Return the paths of the core, and those of what watches the box."""
    observers = entry_points.observers()
    return (*PATHS, *(path for observer in observers for path in observer.paths))


def check_path(path: str, row: str, others: Iterable[ControlPath]) -> None:
    """Refuse the path of a door's row that is not plain, or that is the box's or one of ``others``.

    Raises :class:`StartError`.
    """
    taken = {*TAKEN, *(other.rule for other in others)}
    if not PLAIN.fullmatch(path) or path in taken or path.startswith(TAKEN_BELOW):
        raise StartError(f"The {row} has the path {path!r}, which is taken or not plain: choose another.")
