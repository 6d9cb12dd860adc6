"""Which archives a repository becomes: one with everything, or one for each model that is called."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.protobuf import text_format

from sm.errors import StartError
from sm.inspection import models
from sm.inspection.ensembles import steps
from sm.inspection.models import ENVIRONMENT, OWN_FOLDER, Model
from sm.mme.staging import CONFIG, renamed
from sm.packaging.contents import Contents, Entry, is_cache

CODE = "code"


@dataclass(frozen=True)
class Shipment:
    """What goes into one archive, ``<name>.tar.gz``."""

    name: str
    entries: Sequence[Entry]

    def sizes(self) -> dict[str, int]:
        """Bytes by the first part of the names: by model."""
        found: dict[str, int] = {}
        for entry in self.entries:
            top = entry.name.partition("/")[0]
            found[top] = found.get(top, 0) + entry.size
        return found


def whole(repository: Path, but: Path) -> Shipment:
    """Models at the top and ``code/`` beside them, without hidden files and the archive ``but`` itself."""
    contents = Contents(repository)
    tops = [
        path
        for path in sorted(repository.iterdir())
        if path.name[0] != "." and not is_cache(path) and path.absolute() != but.absolute()
    ]
    return Shipment("model", [entry for path in tops for entry in contents.of(path, path.name)])


def apart(repository: Path, copies: int = 0) -> list[Shipment]:
    """An archive for each model that is not a step of another; an ensemble's has its steps.

    With ``copies`` each is there so many times, as ``<name>-1`` and so on, and has no client: that would call
    the model by the name it had.
    """
    found = {model.name: model for model in models.read(repository)}
    asked = {name for model in found.values() for name in steps(model)}
    tops = [model for name, model in found.items() if name not in asked]
    if not tops:
        raise StartError(f"{repository} has no model; without --mme it is packed as it is.")
    made = Separate(repository, found, alone=len(tops) == 1)
    if not copies:
        return [made.shipment(model, "") for model in tops]
    return [made.shipment(model, f"-{number}") for model in tops for number in range(1, copies + 1)]


class Separate:
    """Archives of single models. ``alone``: there is only one, so all of ``code/`` is its."""

    def __init__(self, repository: Path, found: Mapping[str, Model], alone: bool) -> None:
        self._repository, self._found, self._alone = repository, found, alone
        self._contents = Contents(repository)

    def shipment(self, model: Model, ending: str) -> Shipment:
        """The model, its steps and its client; or a copy without, all names with this ``ending``."""
        names = {name: f"{name}{ending}" for name in self._with_steps(model.name)}
        entries = [entry for name in names for entry in self._model(self._found[name], names)]
        code = [] if ending else self._code(model.name)
        return Shipment(names[model.name], [*code, *entries])

    def _with_steps(self, name: str) -> list[str]:
        """By name, so that the order is always the same."""
        wanted, left = set[str](), [name]
        while left:
            each = left.pop()
            if each not in wanted:
                wanted.add(each)
                left += steps(self._found[each])
        return sorted(wanted)

    def _model(self, model: Model, names: Mapping[str, str]) -> list[Entry]:
        name = names[model.name]
        entries = self._contents.of(model.folder, name)
        if model.config is None:
            return entries
        config, environment = self._own_environment(model, model.config, name)
        if name != model.name:
            config = renamed(config, name, names)
        if config == model.config:
            return entries
        text = text_format.MessageToString(config).encode()
        path = f"{name}/{CONFIG}"
        written = [Entry(path, each.source, text) if each.name == path else each for each in entries]
        return [*written, *environment]

    def _own_environment(self, model: Model, config: Any, name: str) -> tuple[Any, list[Entry]]:
        """An environment of another folder goes into the model's: the archive has no such neighbour."""
        path = model.environment
        if path is None or ".." not in path.relative_to(model.folder).parts:
            return config, []
        made = type(config)()
        made.CopyFrom(config)
        made.parameters[ENVIRONMENT].string_value = f"{OWN_FOLDER}/{path.name}"
        return made, self._contents.of(path, f"{name}/{path.name}")

    def _code(self, name: str) -> list[Entry]:
        """``code/`` without the clients of other models."""
        code = self._repository / CODE
        if not code.is_dir():
            return []
        return [
            entry
            for entry in self._contents.of(code, CODE)
            if self._alone or not self._another(code, entry, name)
        ]

    def _another(self, code: Path, entry: Entry, name: str) -> bool:
        top = entry.name.split("/")[1:2]
        return bool(top) and top[0] != name and (code / top[0] / "client.py").is_file()
