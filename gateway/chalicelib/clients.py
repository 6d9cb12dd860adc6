"""The box's clients, each loaded with the first request for its model: a cold start loads only one."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

from sm.client.base import Client, Triton
from sm.errors import ClientFailed, StartError, UnknownModel
from sm.plugins import checks
from sm.plugins.checks import ModelMissing
from sm.plugins.loading import load
from sm.plugins.sources import ClientSource, discover

from .model_files import ModelFiles
from .plain import PlainModel
from .repository import ModelBucket

log = logging.getLogger(__name__)
LOCK_COUNT = 16


class Clients:
    """Loads and keeps clients. ``folder`` has the files beside the models, which clients read at setup."""

    def __init__(self, folders: tuple[Path, ...], triton: Triton, bucket: ModelBucket, folder: Path) -> None:
        # The first folder with a client of a name wins.
        self._sources = {source.name: source for source in reversed(list(discover(folders)))}
        self._triton, self._files, self._folder = triton, ModelFiles(bucket, folder), folder
        self._clients: dict[str, Client] = {}
        # A client that loads slowly blocks only the names with the same lock.
        self._locks = [threading.Lock() for _ in range(LOCK_COUNT)]

    def get(self, name: str) -> Client:
        """Return the client. Raises :class:`UnknownModel` if Triton lacks the model, or one that it calls."""
        client = self._clients.get(name)
        if client is not None:
            return client
        with self._locks[hash(name) % LOCK_COUNT]:
            if name not in self._clients:
                self._clients[name] = self._create(name)
            return self._clients[name]

    def has(self, name: str) -> bool:
        """True if :meth:`get` returns it without calls to S3 or Triton."""
        return name in self._clients

    def forget(self, model: str) -> None:
        """Forget the files and clients of a model that has been loaded again."""
        self._files.forget(model)
        for name, client in list(self._clients.items()):
            if model in (name, *client.required_models()):
                self._clients.pop(name, None)

    def _create(self, name: str) -> Client:
        source = self._sources.get(name)
        if source is None:
            self._triton.metadata(name)
            self._files.fetch(name)
            return PlainModel.of(name, self._triton, self._folder)
        try:
            return self._load(source)
        except ModelMissing as missing:
            raise UnknownModel(f"{name!r}: {missing}") from None
        except StartError as error:
            log.error("%s", error)
            raise ClientFailed(f"the client of {name!r} cannot be loaded; the log says why") from None

    def _load(self, source: ClientSource) -> Client:
        client = load(source, self._triton, self._folder)
        for model in client.required_models():
            self._files.fetch(model)
        checks.check(client, source, self._triton)
        return client
