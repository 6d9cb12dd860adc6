"""The models of a repository, with the clients that were found at the start or by a reload."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping

from sm.client.base import Client
from sm.errors import StartError, TriremeError, UnknownModel
from sm.invocation import Invocation, turn
from sm.models.load_records import LoadRecord
from sm.models.table import Models, ResolvedModel, ServedTable, TableEntry
from sm.plugins.checks import UncheckedClient
from sm.plugins.discovery import DiscoveredClients
from sm.polling import WATCH_S

log = logging.getLogger(__name__)


class RepositoryLoader:
    """Fills the table with what was found. A client whose model comes late is added when it is asked for.

    Args:
        found: The clients.
        models: All models that Triton serves.
    """

    def __init__(self, found: DiscoveredClients, models: tuple[str, ...] = ()) -> None:
        self.models, self._lock = models, threading.Lock()
        #: Locks of clients whose models come late, by name.
        self._locks: dict[str, threading.Lock] = {}
        self._next_check: dict[str, float] = {}
        #: Called after a change of what was found.
        self.on_change: Callable[[], object] = lambda: None
        self._fill(found)

    def put(self, found: DiscoveredClients) -> None:
        """Replace what was found."""
        with self._lock:
            self._fill(found)
        self.on_change()

    def _fill(self, found: DiscoveredClients) -> None:
        self.found = found
        self.table = ServedTable({name: self._row(name) for name in self._names()})

    def _names(self) -> list[str]:
        errors = self.found.errors.keys() - self.found.unserved.keys()
        return list(dict.fromkeys((*self.models, *self.found.clients, *errors)))

    def _row(self, name: str) -> TableEntry:
        client = self.found.clients.get(name)
        # A v2 request means the model of its name, else the client's own.
        is_client = client is not None and name not in self.models
        entry = next(iter(client.required_models()), name) if client and is_client else name
        return TableEntry(ResolvedModel(entry, client, entry), error=self.found.errors.get(name, ""))

    def load(self, name: str, invocation: Invocation | None) -> bool:
        if name not in self.found.unserved:
            return False
        with self._lock:
            lock = self._locks.setdefault(name, threading.Lock())
        with turn(lock, name, invocation):
            unserved, now = self.found.unserved.get(name), time.monotonic()
            if unserved is None:
                return True  # another request was faster
            if now < self._next_check.get(name, 0.0):
                return False
            self._next_check[name] = now + WATCH_S  # each calls Triton
            if not unserved.can_serve():
                return False
            with self._lock:
                if self.found.unserved.get(name) is not unserved:
                    return True  # it was found anew meanwhile
                self._fill(self.found.with_served(name))
        log.info("the client %r is served now: its model was missing when this worker started", name)
        self.on_change()
        return True

    def create(self, first: Client | None, records: list[LoadRecord]) -> UncheckedClient:
        raise NotImplementedError  # no row has needs

    def explain(self, name: str) -> TriremeError:
        found = self.found
        reason = f" ({found.left_out[name]})" if name in found.left_out else ""
        if name in self.models:
            return UnknownModel(
                f"model {name!r} has no client{reason}: send it the v2 protocol, a body with inputs"
            )
        exists = sorted({*found.clients, *(self.models if name else ())})
        unnamed = (
            "the request names no model (modelname in the JSON or in the query), and there is no default"
        )
        which = f"no model {name[:200]!r}{reason}" if name else unnamed
        return UnknownModel(f"{which}; there are: {', '.join(exists) or 'none'}", models=exists)

    def default(self, requested: str) -> str:
        """Return the default: what ``requested``, the setting, names; else the client that answers such
        requests, the only client, or the only model.
        """
        clients, models = self.found.clients, self.models
        exists = {*clients, *models, *self.found.errors}
        if requested and requested not in exists:
            raise StartError(
                f"SAGEMAKER_TRITON_DEFAULT_MODEL_NAME={requested!r} is not served; there are: "
                f"{', '.join(sorted(exists)) or 'none'}."
            )
        choices = ([name for name, client in clients.items() if client.answers_unnamed], clients, models)
        only_name = next((next(iter(names)) for names in choices if len(names) == 1), "")
        return requested or only_name


def models_of(clients: Mapping[str, Client], models: tuple[str, ...] = ()) -> Models:
    """Return a table of clients, and of models that Triton serves."""
    return Models(RepositoryLoader(DiscoveredClients(clients), models))
