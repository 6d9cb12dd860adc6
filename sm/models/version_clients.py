"""The clients of a worker whose models are replaced while it serves: one for each version of a model."""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sm.client.base import Client
from sm.errors import CommandError, UnknownModel
from sm.invocation import Hold, Invocation, running, turn
from sm.models.archive_clients import LoadedClients, RenamedModels
from sm.models.load_records import Record, State
from sm.models.versions import staged
from sm.plugins import registry
from sm.plugins.golden import differences
from sm.plugins.loading import ClientSource, load, plain_names
from sm.plugins.registry import Registry
from sm.run_state import Box, write_atomically
from sm.triton.transport import Transport

log = logging.getLogger(__name__)
#: Seconds for the golden answer of a new version.
GOLDEN_TIMEOUT_S = 60.0


class CurrentModels(RenamedModels):
    """Calls the version of each model that the request uses."""

    def __init__(self, triton: Transport, versions: LoadedClients) -> None:
        super().__init__(triton, {})
        self._versions = versions

    def _name(self, model: str) -> str:
        record = self._versions.find(model)
        return model if record is None else record.entry


class VersionClients(Mapping[str, Client]):
    """The clients by name, each as it is for the versions that the request uses.

    Args:
        first: The clients of the versions that the box started with.
        versions: Finds the version of a model.
        triton: What the clients call.
    """

    def __init__(self, first: Mapping[str, Client], versions: LoadedClients, triton: CurrentModels) -> None:
        self._first, self.versions, self._triton = first, versions, triton
        self._lock = threading.Lock()
        self._made: dict[tuple[str, ...], Client] = {}
        #: By the name of a client: its requests wait for each other, those of others do not.
        self._making: dict[str, threading.Lock] = {}

    def __getitem__(self, name: str) -> Client:
        first, own = self._first.get(name), self.versions.find(name)
        if first is None and (own is None or not own.client):
            raise KeyError(name)
        models = first.required_models() if first is not None else (name,)
        records = [record for model in models if (record := self.versions.find(model)) and record.folder]
        if own is not None and own.client and own not in records:
            records.insert(0, own)
        if not records:
            assert first is not None
            return first
        key = (name, *(record.id for record in records))
        client = self._made.get(key)
        if client is None:
            with self._lock:
                lock = self._making.setdefault(name, threading.Lock())
            with turn(lock, name):
                client = self._made.get(key) or self._make(name, first, records)
                with self._lock:
                    self._made[key] = client
        return client

    def __iter__(self) -> Iterator[str]:
        records = self.versions.refresh().records.values()
        own = (record.name for record in records if record.client and record.state is State.SERVES)
        return iter({*self._first, *own})

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def made(self) -> list[Client]:
        """Return the clients that exist, of each name the newest."""
        return list({each.name: each for each in self.all()}.values())

    def all(self) -> list[Client]:
        """Return the clients of all versions that exist, of each name the newest last."""
        return [*self._first.values(), *list(self._made.values())]

    def _make(self, name: str, first: Client | None, records: list[Record]) -> Client:
        """Make a client as at the start: its class, or the code that came with a version, then its checks."""
        own = (record for record in records if record.client and record.model == name)
        code = next(own, None)
        repository = Path(records[0].repository)
        if code is not None:
            source = ClientSource(f"version_{code.id}", Path(code.client), code.module)
            client = load(source, self._triton, repository)
            client.name = name
        else:
            assert first is not None
            is_in_model = first.folder.parent == first.repository
            folder = repository / first.folder.name if is_in_model else first.folder
            source = ClientSource(name, folder / "client.py")
            client = type(first)(self._triton, folder, repository)
            client.name = first.name
        with plain_names(source):
            registry.check(client, source, self._triton)
        return client

    def forget_old(self) -> None:
        """Drop the clients of versions that are unloaded."""
        ids = self.versions.refresh().ids
        with self._lock:
            self._made = {key: client for key, client in self._made.items() if ids.keys() >= {*key[1:]}}

    def prepare(self, record: Record) -> None:
        """Make the clients of a new version, and compare their golden answers. Raises why it cannot serve."""
        name = record.model
        names = [client for client, first in self._first.items() if name in first.required_models()] or (
            [name] if record.client else []
        )
        for client_name in names:
            request = Invocation(time.monotonic() + GOLDEN_TIMEOUT_S)
            request.holds = {name: Hold(record, lambda: None)}
            try:
                with running(request):
                    check_golden(self[client_name])
            finally:
                # The client may have used other models too.
                for hold in request.holds.values():
                    hold.give_back()


def check_golden(client: Client) -> None:
    """Compare the answer to the client's sample with its golden one, if it has both."""
    payload, golden = (client.folder / "sample" / f"{part}.json" for part in ("payload", "golden"))
    if not (payload.is_file() and golden.is_file()):
        return
    value = json.loads(payload.read_bytes())
    members = value if isinstance(value, dict) else {client.payload.main_field: value}
    result = client.inference(client.payload.model_validate(members))
    plain = json.loads(json.dumps(result, default=_to_plain))
    wrong = list(differences(plain, json.loads(golden.read_bytes())))
    if wrong:
        raise CommandError(f"the golden answer of {client.name!r} differs: {'; '.join(wrong[:3])}")


def _to_plain(value: object) -> Any:
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else str(value)


def prepare_staged(clients: VersionClients, box: Box) -> bool:
    """Prepare new versions; tell the control plane of each why it cannot serve. True if there was one."""
    clients.forget_old()
    found = False
    for record in list(clients.versions.refresh().loaded()):
        answer = box.prepared_folder / record.id / str(os.getpid())
        if not staged(record, box) or answer.exists():
            continue
        found = True
        try:
            clients.prepare(record)
            reason = ""
        except BaseException as error:  # also a client's sys.exit()
            reason = str(error) or type(error).__name__
        try:
            write_atomically(answer, reason)
        except FileNotFoundError:
            log.info("the version %s was given up meanwhile", record.name)
    return found


@dataclass(frozen=True)
class VersionRegistry(Registry):
    """A registry of clients and models of which new versions come while the box serves."""

    clients: VersionClients

    def get(self, name: str) -> Client:
        if name not in self.models and self.served_without_client(name):
            raise UnknownModel(f"model {name!r} has no client: send it the v2 protocol, a body with inputs")
        return super().get(name)

    def is_served(self, name: str) -> bool:
        return self._record(name) is not None or super().is_served(name)

    def served_without_client(self, name: str) -> bool:
        return self.is_served(name) and name not in self.clients

    def made_clients(self) -> Iterable[Client]:
        return self.clients.made()

    def asked_clients(self) -> Iterable[Client]:
        return self.clients.all()

    def is_repeatable(self, model: str) -> bool:
        records = self.clients.versions.refresh().loaded()
        return super().is_repeatable(
            next((record.model for record in records if record.entry == model), model)
        )

    def triton_model(self, name: str) -> str:
        record = self._record(super().triton_model(name))
        return super().triton_model(name) if record is None else record.entry

    def is_own_name(self, name: str) -> bool:
        record = self._record(name)
        return record is None or record.entry == name

    def name_in_answers(self, name: str) -> str:
        return super().triton_model(name)

    def _record(self, name: str) -> Record | None:
        return self.clients.versions.find(name)
