"""Find a client, and the model repository with its models."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from sm.client.base import Client, TensorClient
from sm.commands.selftest import find_sources
from sm.errors import CommandError
from sm.plugins.loading import ClientSource, discover
from sm.plugins.registry import choose_model
from sm.repository import models
from sm.server.startup import choose_repository
from sm.settings import Settings


def find(name: str, settings: Settings) -> ClientSource:
    """Find the client ``name``: the box's, the repository's ``code``, or one of ``clients`` in this
    folder.
    """
    sources = {client.name: client for client in find_sources(settings) if not client.module}
    if name not in sources:
        raise CommandError(
            f"there is no client {name!r}; there are: {', '.join(sorted(sources)) or 'none'}. "
            "They are looked for in TRIREME_CLIENTS, in code/ of the repository and in ./clients."
        )
    return sources[name]


def find_box_clients(settings: Settings) -> dict[str, ClientSource]:
    """Return the clients that came with the box, by name; other clients may not replace them by accident."""
    return {source.name: source for source in discover(settings.clients) if source.is_bundled}


def choose_models(source: ClientSource, client: Client, settings: Settings) -> Path:
    """Choose the first repository with all models of ``client``, and set the client's model names
    accordingly.

    Raises:
        CommandError: None has them; the sentence names the folders that were searched.
    """
    searched = [folder for folder in dict.fromkeys(_repositories(source, settings)) if folder.is_dir()]
    own_model = client.model if isinstance(client, TensorClient) else ""
    for folder in searched:
        if isinstance(client, TensorClient):
            client.model = own_model
            client.model = choose_model(client, folder, partial(is_servable, folder))
        if all(is_servable(folder, model) for model in client.required_models()):
            return folder
    if isinstance(client, TensorClient):
        client.model = own_model
    required = ", ".join(client.required_models())
    raise CommandError(
        f"no model repository has {required}: looked in {', '.join(map(str, searched)) or 'none'}. "
        "Set TRIREME_MODEL_REPOSITORY to the one that has."
    )


def is_servable(repository: Path, name: str) -> bool:
    """True if a model has a version: a recipe's folder has only a configuration."""
    model = repository / name
    return model.is_dir() and models.is_model(model) and bool(models.versions(model))


def _repositories(source: ClientSource, settings: Settings) -> Iterator[Path]:
    """Yield the repository that is set, the one beside the client, and the demo's."""
    if settings.repository:
        yield settings.repository.absolute()
    home = source.file.parent.parent if source.has_folder else source.file.parent
    yield home  # of a model with a task.json
    yield home.parent / "model"
    yield home.parent
    yield settings.cache / "repository" / "cpu"
    yield choose_repository(settings)
