"""Clients whose models Triton does not serve yet, as after a restart. A request for one checks again."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sm.client.base import Client, TensorClient, Triton
from sm.errors import StartError, TriremeError, UnknownModel
from sm.plugins.loading import ClientSource, plain_names
from sm.repository import config_files

#: The parameter in a model's ``config.pbtxt`` that names the client.
PARAMETER = "trireme_client"


def choose_model(client: TensorClient, repository: Path, is_callable: Callable[[str], bool]) -> str:
    """Choose the model of ``repository`` that a client calls; the client's own name if there is none.

    Args:
        is_callable: Returns True if a model of a name can be called.

    Raises:
        StartError: Two models name the client.
    """
    models = sorted(find_models_naming(client.name, repository))
    if len(models) > 1:
        raise StartError(
            f"{' and '.join(models)} both have the parameter {PARAMETER} {client.name!r} in config.pbtxt: "
            "remove it from all but one."
        )
    if models:
        return models[0]
    return next((name for name in (client.model, *client.aliases) if is_callable(name)), client.model)


def find_models_naming(client: str, repository: Path) -> Iterator[str]:
    """Yield the models in a repository whose ``config.pbtxt`` names the client."""
    for path in repository.glob("*/config.pbtxt"):
        try:
            parameters = config_files.read(path).parameters
        except ValueError:
            continue  # Triton reports what is wrong with it.
        if PARAMETER in parameters and parameters[PARAMETER].string_value == client:
            yield path.parent.name


def is_served(triton: Triton, name: str) -> bool:
    """True if Triton has a model of that name."""
    try:
        triton.metadata(name)
    except UnknownModel:
        return False
    return True


log = logging.getLogger(__name__)
#: Seconds between two checks of one client: each calls Triton.
RETRY_INTERVAL_S = 1.0


class ModelMissing(Exception):
    """A client's model is not in the repository. ``model``: its name."""

    def __init__(self, model: str) -> None:
        super().__init__(f"its model {model!r} is not served by Triton")
        self.model = model


@dataclass(frozen=True)
class UnservedClient:
    """A loaded client that waits for its models, and the ``check`` that it has to pass then."""

    client: Client
    source: ClientSource
    triton: Triton
    check: Callable[[Client, ClientSource, Triton], None]

    def has_models(self) -> bool:
        """True if Triton serves its models now."""
        try:
            return all(is_served(self.triton, model) for model in self.client.required_models())
        except TriremeError:  # Triton is restarting
            return False

    def can_serve(self) -> bool:
        """True if it passes the check now."""
        if not self.has_models():
            return False
        try:
            with plain_names(self.source):
                self.check(self.client, self.source, self.triton)
        except (ModelMissing, TriremeError):
            return False
        except StartError as error:
            log.error("left out: %s", error)
            return False
        return True


class LateClients(Mapping[str, Client]):
    """The clients of a worker. Those without their models are added when Triton serves them."""

    def __init__(self, clients: Mapping[str, Client], unserved: Mapping[str, UnservedClient]) -> None:
        self._clients, self._unserved = dict(clients), dict(unserved)
        self._lock = threading.Lock()
        self._next_check: dict[str, float] = {}
        self._on_change: Callable[[], None] = lambda: None

    def __getitem__(self, name: str) -> Client:
        if name in self._unserved:
            self._check(name)
        return self._clients[name]

    def get(self, name: str, default: Any = None) -> Any:
        """Return the client of that name; shorter than the way that :class:`Mapping` has."""
        if name in self._unserved:
            self._check(name)
        return self._clients.get(name, default)

    def __iter__(self) -> Iterator[str]:
        return iter(self._clients)

    def __len__(self) -> int:
        return len(self._clients)

    def watch(self, on_change: Callable[[], None]) -> None:
        """Call ``on_change`` after a client was added."""
        self._on_change = on_change

    def _check(self, name: str) -> None:
        """Add the client if its models are served now."""
        with self._lock:
            unserved, now = self._unserved.get(name), time.monotonic()
            if unserved is None or now < self._next_check.get(name, 0.0):
                return
            self._next_check[name] = now + RETRY_INTERVAL_S
            if not unserved.can_serve():
                return
            # A new dictionary: another thread may be iterating over the old one.
            self._clients = {**self._clients, name: unserved.client}
            del self._unserved[name]
        log.info("the client %r is served now: its model was missing when this worker started", name)
        self._on_change()
