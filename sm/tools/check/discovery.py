"""Where a client is, and the model repository that has its models."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from sm.client.base import Client, TensorClient
from sm.errors import StartError
from sm.plugins.loading import ClientSource, discover
from sm.plugins.model_choice import choose_model
from sm.plugins.name_conflicts import select_sources
from sm.repository import models
from sm.run_state import CODE, choose_repository
from sm.settings import Settings


def find(name: str, settings: Settings) -> ClientSource:
    """The client called ``name``: the box's, the repository's ``code``, or one of ``clients`` here."""
    repository = choose_repository(settings)
    folders = dict.fromkeys(
        folder.absolute() for folder in (*settings.clients, repository / CODE, Path("clients"))
    )
    everything = select_sources(discover(tuple(reversed(folders))))
    found = {client.name: client for client in everything if not client.module}
    if name not in found:
        raise StartError(
            f"there is no client {name!r}; there are: {', '.join(sorted(found)) or 'none'}. "
            "They are looked for in TRIREME_CLIENTS, in code/ of the repository and in ./clients."
        )
    return found[name]


def of_the_box(settings: Settings) -> dict[str, ClientSource]:
    """The clients that came with the box, by name: no other may take their place unawares."""
    return {found.name: found for found in discover(settings.clients) if found.bundled}


def choose_models(found: ClientSource, client: Client, settings: Settings) -> Path:
    """Find the first repository with all models of ``client``, which then calls those that it has there.

    Raises:
        StartError: None has them; the sentence names the folders that were searched.
    """
    looked = [folder for folder in dict.fromkeys(_repositories(found, settings)) if folder.is_dir()]
    own = client.model if isinstance(client, TensorClient) else ""
    for folder in looked:
        if isinstance(client, TensorClient):
            client.model = own
            client.model = choose_model(client, folder, partial(_is_servable, folder))
        if all(_is_servable(folder, model) for model in client.required_models()):
            return folder
    if isinstance(client, TensorClient):
        client.model = own
    wanted = ", ".join(client.required_models())
    raise StartError(
        f"no model repository has {wanted}: looked in {', '.join(map(str, looked)) or 'none'}. "
        "Set TRIREME_MODEL_REPOSITORY to the one that has."
    )


def _is_servable(repository: Path, name: str) -> bool:
    """Whether it is a model with a version: a recipe's folder has only a configuration."""
    model = repository / name
    return model.is_dir() and models.is_model(model) and bool(models.versions(model))


def _repositories(found: ClientSource, settings: Settings) -> Iterator[Path]:
    """The one that is set; beside the client, as new-client and a model archive have it; the demo's."""
    if settings.repository:
        yield settings.repository.absolute()
    home = found.file.parent.parent if found.file.name == "client.py" else found.file.parent
    yield home.parent / "model"
    yield home.parent
    yield settings.cache / "repository" / "cpu"
    yield choose_repository(settings)
