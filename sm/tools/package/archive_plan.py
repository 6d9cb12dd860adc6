"""Which archives a repository becomes: one with everything, or one for each model that is called."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.protobuf import text_format

from sm.errors import StartError
from sm.multimodel.staging import CONFIG, rename_config
from sm.repository import models
from sm.repository.ensembles import steps
from sm.repository.models import ENVIRONMENT, OWN_FOLDER, Model
from sm.tools.package.contents import Contents, Entry, is_cache
from sm.tools.package.exclusion import Exclusion

CODE = "code"


@dataclass(frozen=True)
class ArchivePlan:
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


@dataclass(frozen=True)
class Copies:
    """``count`` copies of each model from number ``start`` on, named by ``pattern``."""

    count: int
    start: int = 1
    pattern: str = "{model}-{number}"

    def __post_init__(self) -> None:
        if self.count < 1 or self.start < 0:
            raise StartError("--copies is a number from 1, and --copies-from a number from 0.")
        example = self.pattern.replace("{model}", "m").replace("{number}", "1")
        if not {"{model}", "{number}"} <= set(re.findall(r"{\w+}", self.pattern)) or not re.fullmatch(
            r"\w[\w.-]*", example
        ):
            raise StartError(
                f"--copy-name {self.pattern!r} is no name for copies: it has {{model}} and {{number}}, "
                "and else letters, digits, '.', '_' and '-'."
            )

    def numbers(self) -> range:
        return range(self.start, self.start + self.count)

    def name(self, model: str, number: int) -> str:
        return self.pattern.replace("{model}", model).replace("{number}", str(number))


def whole(repository: Path, but: Path, exclusion: Exclusion) -> ArchivePlan:
    """Models at the top and ``code/`` beside them, without hidden files and the archive ``but`` itself."""
    contents = Contents(repository, exclusion.excludes)
    tops = [
        path
        for path in sorted(repository.iterdir())
        if path.name[0] != "."
        and not is_cache(path)
        and path.absolute() != but.absolute()
        and not exclusion.excludes(path)
    ]
    return ArchivePlan("model", [entry for path in tops for entry in contents.of(path, path.name)])


def apart(repository: Path, exclusion: Exclusion, copies: Copies | None = None) -> list[ArchivePlan]:
    """An archive for each model that is not a step of another; an ensemble's has its steps.

    Copies have no client: it would call the model by the name it had.
    """
    found = {model.name: model for model in models.read(repository) if not exclusion.excludes(model.folder)}
    asked = {name for model in found.values() for name in steps(model)}
    tops = [model for name, model in found.items() if name not in asked]
    if not tops:
        raise StartError(f"{repository} has no model; without --mme it is packed as it is.")
    made = Separate(repository, found, Contents(repository, exclusion.excludes), alone=len(tops) == 1)
    if copies is None:
        return [made.shipment(model) for model in tops]
    return [made.copy(model, copies, number) for model in tops for number in copies.numbers()]


class Separate:
    """Archives of single models. ``alone``: there is only one, so all of ``code/`` is its."""

    def __init__(self, repository: Path, found: Mapping[str, Model], contents: Contents, alone: bool) -> None:
        self._repository, self._found, self._contents, self._alone = repository, found, contents, alone

    def shipment(self, model: Model) -> ArchivePlan:
        """The model, its steps and its client."""
        names = {name: name for name in self._with_steps(model.name)}
        return ArchivePlan(model.name, [*self._code(model.name), *self._models(names)])

    def copy(self, model: Model, copies: Copies, number: int) -> ArchivePlan:
        """The model and its steps by other names."""
        names = {name: copies.name(name, number) for name in self._with_steps(model.name)}
        return ArchivePlan(names[model.name], self._models(names))

    def _models(self, names: Mapping[str, str]) -> list[Entry]:
        return [entry for name in names for entry in self._model(self._found[name], names)]

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
            config = rename_config(config, name, names)
        if config == model.config:
            return entries
        text = text_format.MessageToString(config).encode()
        path = f"{name}/{CONFIG}"
        written = [Entry(path, each.source, text) if each.name == path else each for each in entries]
        return [*written, *environment]

    def _own_environment(self, model: Model, config: Any, name: str) -> tuple[Any, list[Entry]]:
        """An environment of another folder goes into the model's: the archive has no such neighbour."""
        path = model.environment
        if path is None or not model.has_own_environment or ".." not in path.relative_to(model.folder).parts:
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
