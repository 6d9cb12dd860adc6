"""Find a client, and the models of its repository or of a running box."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from sm.client.base import Client, ModelMetadata, TensorClient, TensorMetadata
from sm.commands.local_boxes import fetch
from sm.commands.selftest import find_sources
from sm.errors import CommandError
from sm.plugins.checks import choose_model
from sm.plugins.sources import ClientSource, discover
from sm.repository import models
from sm.server.startup import choose_repository
from sm.settings import Settings


def find(name: str, settings: Settings) -> ClientSource:
    """Find the client ``name``: the box's, the repository's ``code``, or one of ``clients`` in this
    folder.
    """
    sources = {client.name: client for client in find_sources(settings) if not client.takes_folder}
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


SERIES = re.compile(
    r'trireme_invocation_duration_seconds_sum\{model="(?P<model>[^"]*)",stage="(?P<stage>[^"]*)",'
    r'status="[^"]*"\} (?P<value>\S+)'
)


def metadata(url: str, model: str) -> ModelMetadata:
    """Describe a model. Raises :class:`CommandError` if the box does not have it."""
    served, config = (fetch_json(f"{url}/v2/models/{model}{path}") for path in ("", "/config"))
    batch = int(config.get("max_batch_size", 0))
    return ModelMetadata(
        model,
        tuple(served.get("versions", ())),
        batch,
        _tensors(served["inputs"], batch),
        _tensors(served["outputs"], batch),
    )


def model_of(url: str, client: str) -> str:
    """Return the model of the box's client; empty if it calls none or several."""
    rows = [row for row in fetch_json(f"{url}/models").get("models", ()) if row.get("modelName") == client]
    models = list(rows[0].get("models") or []) if rows else []
    return str(models[0]) if len(models) == 1 else ""


def stages(url: str, client: str) -> dict[str, float]:
    """Return the seconds that the box spent on the client's requests, by stage, from ``/metrics``."""
    series = (SERIES.fullmatch(line) for line in _fetch(f"{url}/metrics").decode().splitlines())
    totals: dict[str, float] = {}
    for match in series:
        if match and match["model"] == client:
            totals[match["stage"]] = totals.get(match["stage"], 0.0) + float(match["value"])
    return totals


def _tensors(rows: Sequence[dict[str, Any]], batch: int) -> dict[str, TensorMetadata]:
    return {
        row["name"]: TensorMetadata(row["name"], row["datatype"], tuple(row["shape"])[1 if batch else 0 :])
        for row in rows
    }


def fetch_json(url: str, api_key: str = "") -> dict[str, Any]:
    """Fetch a document of a box. Raises :class:`CommandError`."""
    try:
        return dict(json.loads(_fetch(url, api_key)))
    except ValueError:
        raise CommandError(f"what answers at {url} is not a box.") from None


def _fetch(url: str, api_key: str = "") -> bytes:
    status, content = fetch(url, "", api_key=api_key)
    if status >= 400:
        raise CommandError(f"{url} answers {status}: {content[:200].decode(errors='replace')}")
    return content
