"""Decide which archives a repository becomes: one with everything, or one for each model that is called."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sm.errors import CommandError
from sm.models.staging import CONFIG, rename_config
from sm.plugins.discovery import find_differences
from sm.plugins.sources import ClientSource, discover
from sm.repository import models
from sm.repository.ensembles import steps
from sm.repository.models import ENVIRONMENT, OWN_FOLDER, Model, is_own
from trireme_tools.package.contents import ArchiveEntry, Contents, ExcludedFiles, is_cache

CODE = "code"


@dataclass(frozen=True)
class ArchivePlan:
    """The content of one archive, ``<name>.tar.gz``."""

    name: str
    entries: Sequence[ArchiveEntry]

    def sizes(self) -> dict[str, int]:
        """Return the bytes of each model, by the first part of the names."""
        by_top: dict[str, int] = {}
        for entry in self.entries:
            top = entry.name.partition("/")[0]
            by_top[top] = by_top.get(top, 0) + entry.size
        return by_top


@dataclass(frozen=True)
class Copies:
    """``count`` copies of each model from number ``start`` on, named by ``pattern``."""

    count: int
    start: int = 1
    pattern: str = "{model}-{number}"

    def __post_init__(self) -> None:
        if self.count < 1 or self.start < 0:
            raise CommandError("--copies is a number from 1, and --copies-from a number from 0.")
        example = self.pattern.replace("{model}", "m").replace("{number}", "1")
        if not {"{model}", "{number}"} <= set(re.findall(r"{\w+}", self.pattern)) or not re.fullmatch(
            r"\w[\w.-]*", example
        ):
            raise CommandError(
                f"--copy-name {self.pattern!r} is not a name for copies: it has {{model}} and {{number}}, "
                "and else letters, digits, '.', '_' and '-'."
            )

    def numbers(self) -> range:
        return range(self.start, self.start + self.count)

    def name(self, model: str, number: int) -> str:
        return self.pattern.replace("{model}", model).replace("{number}", str(number))


def plan_one(
    repository: Path, output: Path, exclusion: ExcludedFiles, client_folders: Sequence[Path] = ()
) -> ArchivePlan:
    """Return one archive: models at the top and ``code/`` beside them, without hidden files and the archive
    ``output`` itself. The clients of ``client_folders`` are packed into ``code/``.
    """
    contents = Contents(repository, exclusion.excludes)
    tops = [
        path
        for path in sorted(repository.iterdir())
        if is_own(path.name)
        and not is_cache(path)
        and path.absolute() != output.absolute()
        and not exclusion.excludes(path)
    ]
    entries = [entry for path in tops for entry in contents.of(path, path.name)]
    client_files = client_entries(repository, client_folders, exclusion)
    return ArchivePlan("model", [*entries, *_code_folder(entries, repository, client_files), *client_files])


def client_entries(repository: Path, folders: Sequence[Path], exclusion: ExcludedFiles) -> list[ArchiveEntry]:
    """Return the clients of ``folders`` as ``code/<name>``, without those that the repository has already.

    Raises:
        CommandError: a folder does not exist, or ``code/`` has another client of that name.
    """
    sources = [source for folder in folders for source in _clients(folder)]
    in_code = {source.name: source for source in discover((repository / CODE,)) if not source.takes_folder}
    entries = []
    for source in sources:
        other = in_code.setdefault(source.name, source)
        if other is not source:
            if differing := next(iter(find_differences(other, source)), ""):
                raise CommandError(
                    f"{source.file} and {other.file} are two clients of one name; they differ in {differing}."
                )
            continue
        path = source.file.parent if source.file.name == "client.py" else source.file
        entries += Contents(path.parent, exclusion.excludes).of(path, f"{CODE}/{path.name}")
    return entries


def _clients(folder: Path) -> list[ClientSource]:
    if not folder.is_dir():
        raise CommandError(f"--clients {folder} is not a folder.")
    return [source for source in discover((folder.absolute(),)) if not source.takes_folder]


def _code_folder(
    entries: Sequence[ArchiveEntry], repository: Path, added: Sequence[ArchiveEntry]
) -> list[ArchiveEntry]:
    """Return the entry of ``code`` itself, if clients are added and there is none."""
    exists = any(entry.name == CODE for entry in entries)
    return [] if exists or not added else [ArchiveEntry(CODE, repository)]


def plan_each(
    repository: Path,
    exclusion: ExcludedFiles,
    copies: Copies | None = None,
    client_folders: Sequence[Path] = (),
) -> list[ArchivePlan]:
    """An archive for each model that is not another's step; an ensemble's contains its steps. Each gets
    its client of ``client_folders``, and a single model all of them.

    Copies have no client, as it would call the model by its original name.
    """
    by_name = {model.name: model for model in models.read(repository) if not exclusion.excludes(model.folder)}
    step_names = {name for model in by_name.values() for name in steps(model)}
    tops = [model for name, model in by_name.items() if name not in step_names]
    if not tops:
        raise CommandError(f"{repository} has no model; without --mme it is packed as it is.")
    archives = SingleModelArchives(
        repository, by_name, Contents(repository, exclusion.excludes), alone=len(tops) == 1
    )
    if copies is None:
        client_files = client_entries(repository, client_folders, exclusion)
        return [archives.plan(model, client_files) for model in tops]
    return [archives.copy(model, copies, number) for model in tops for number in copies.numbers()]


@dataclass(frozen=True)
class SingleModelArchives:
    """Plans archives of single models. ``alone``: there is only one model, so it gets all of ``code/``."""

    repository: Path
    by_name: Mapping[str, Model]
    contents: Contents
    alone: bool

    def plan(self, model: Model, clients: Sequence[ArchiveEntry] = ()) -> ArchivePlan:
        """Return the archive of a model, its steps and its client. ``clients`` has those of all models."""
        names = {name: name for name in self._with_steps(model.name)}
        code = self._code(model.name)
        own = [entry for entry in clients if self.alone or entry.name.split("/")[1] == model.name]
        top = _code_folder(code, self.repository, own)
        return ArchivePlan(model.name, [*code, *top, *own, *self._models(names)])

    def copy(self, model: Model, copies: Copies, number: int) -> ArchivePlan:
        """Return a copy of the model and its steps under other names."""
        names = {name: copies.name(name, number) for name in self._with_steps(model.name)}
        return ArchivePlan(names[model.name], self._models(names))

    def _models(self, names: Mapping[str, str]) -> list[ArchiveEntry]:
        return [entry for name in names for entry in self._model(self.by_name[name], names)]

    def _with_steps(self, name: str) -> list[str]:
        """Return the model and its steps, sorted by name."""
        needed = [name]
        for each in needed:  # which grows meanwhile
            needed += set(steps(self.by_name[each])).difference(needed)
        return sorted(needed)

    def _model(self, model: Model, names: Mapping[str, str]) -> list[ArchiveEntry]:
        name = names[model.name]
        entries = self.contents.of(model.folder, name)
        if model.config is None:
            return entries
        config, environment = self._own_environment(model, model.config, name)
        if name != model.name:
            config = rename_config(config, name, names)
        if config == model.config:
            return entries
        text = models.write_config(config).encode()
        path = f"{name}/{CONFIG}"
        written = [
            ArchiveEntry(path, entry.source, text) if entry.name == path else entry for entry in entries
        ]
        return [*written, *environment]

    def _own_environment(self, model: Model, config: Any, name: str) -> tuple[Any, list[ArchiveEntry]]:
        """Move an environment of another folder into the model's, as the archive has no such neighbour."""
        path = model.environment
        if path is None or not model.has_own_environment or ".." not in path.relative_to(model.folder).parts:
            return config, []
        changed = type(config)()
        changed.CopyFrom(config)
        changed.parameters[ENVIRONMENT].string_value = f"{OWN_FOLDER}/{path.name}"
        return changed, self.contents.of(path, f"{name}/{path.name}")

    def _code(self, name: str) -> list[ArchiveEntry]:
        """Return ``code/`` without the clients of other models."""
        code = self.repository / CODE
        if not code.is_dir():
            return []
        return [
            entry
            for entry in self.contents.of(code, CODE)
            if self.alone or not self._is_of_another(code, entry, name)
        ]

    def _is_of_another(self, code: Path, entry: ArchiveEntry, name: str) -> bool:
        top = entry.name.split("/")[1:2]
        return bool(top) and top[0] != name and (code / top[0] / "client.py").is_file()
