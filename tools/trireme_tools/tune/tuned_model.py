"""The model that is tuned: its client, the client's sample, and its configuration on disk."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from sm.client.base import Triton
from sm.commands.inspect.client_loading import NoTriton
from sm.errors import CommandError
from sm.plugins.loading import load
from sm.repository import ensembles, models
from sm.repository.models import CONFIG
from sm.settings import Settings
from trireme_tools.check import discovery


@dataclass(frozen=True)
class TunedModel:
    """The model, its client and a request to measure with."""

    #: The name in Triton.
    name: str
    client: str
    #: The folder of the client, and the model repository.
    clients: Path
    repository: Path
    #: All models that the client calls, with the steps of ensembles.
    parts: tuple[str, ...]
    #: The text of its ``config.pbtxt``, and the parsed ``ModelConfig``.
    text: str
    config: Any
    #: The body of a request with the client's sample, and its golden result if there is one.
    body: bytes
    golden: Any = None

    @property
    def file(self) -> Path:
        return self.repository / self.name / CONFIG

    @property
    def takes_threads(self) -> bool:
        """True for a model of the CPU target, whose engine has a parameter for its threads."""
        return any(self.file.parent.glob("*/engines.py"))

    @staticmethod
    def result(body: bytes) -> Any:
        """Return the result in an answer's body."""
        return json.loads(body).get("result")


def find(name: str, part: str | None, settings: Settings) -> TunedModel:
    """Find the model that the client ``name`` calls. Raises :class:`CommandError`.

    ``part``: the model to tune if the client calls several.
    """
    source = discovery.find(name, settings)
    client = load(source, cast("Triton", NoTriton()), source.file.parent)
    repository = discovery.choose_models(source, client, settings)
    parts = parts_of(repository, client.required_models())
    model = choose_part(name, parts, part)
    file = repository / model / CONFIG
    try:
        text = file.read_text() if file.exists() else ""
        config = models.parse_config(text)
    except (OSError, ValueError) as error:
        raise CommandError(f"{file}: {error}") from None
    if config.HasField("ensemble_scheduling"):
        raise CommandError(
            f"{model!r} is an ensemble, which has no instances: tune one of its steps with --part, "
            f"such as {parts[-1]}."
        )
    body, golden = read_sample(name, source.file.parent / "sample")
    clients = source.file.parent.parent if source.has_folder else source.file.parent
    return TunedModel(model, name, clients, repository, parts, text, config, body, golden)


def choose_part(name: str, parts: tuple[str, ...], part: str | None) -> str:
    if part is None and len(parts) == 1:
        return parts[0]
    if part in parts:
        return str(part)
    names = ", ".join(parts) or "none"
    if part is not None:
        raise CommandError(f"{name!r} does not call a model {part!r}; it calls {names}.")
    raise CommandError(f"{name!r} calls {names}: name the one to tune with --part.")


def read_sample(name: str, folder: Path) -> tuple[bytes, Any]:
    """Return the body of a request, and the golden result if there is one."""
    file = folder / "payload.json"
    try:
        payload = json.loads(file.read_bytes())
        golden = folder / "golden.json"
        result = json.loads(golden.read_bytes()) if golden.exists() else None
    except FileNotFoundError:
        raise CommandError(
            f"{name!r} has no sample to send: write the payload of a typical request to {file}."
        ) from None
    except (OSError, ValueError) as error:
        raise CommandError(f"the sample in {folder} cannot be read: {error}.") from None
    return json.dumps({"modelname": name, "payload": payload}).encode(), result


def parts_of(repository: Path, required: tuple[str, ...]) -> tuple[str, ...]:
    """Return the models with the steps of those that are ensembles."""
    by_name = {model.name: model for model in models.read(repository)}
    unvisited, parts = list(required), dict.fromkeys(required)
    while unvisited:
        model = by_name.get(unvisited.pop())
        steps = ensembles.steps(model) if model else ()
        unvisited += [step for step in steps if step not in parts]
        parts.update(dict.fromkeys(steps))
    return tuple(parts)
