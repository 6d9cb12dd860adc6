"""Read a model archive: its folder, its models, and which of them is the entry.

There are two layouts: the folder is a model (``config.pbtxt`` and ``1/``), or each folder in it is a model.
In the second, the entry is the ensemble that is not a step of another one. ``code/`` may hold a client.
"""

from __future__ import annotations

import ast
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from sm.errors import BadInput
from sm.plugins.sources import ClientSource, discover
from sm.repository import ensembles, models, problems
from sm.repository.ensembles import is_ensemble, steps
from sm.repository.machine import Machine
from sm.repository.models import CLIENT_FILE, CODE, CodeFolder, Model
from sm.repository.problems import Problem

log = logging.getLogger(__name__)
#: Bytes of a client's file or a toolkit script. The control plane parses it: three bytes may cost 2,700
#: bytes of memory. Modules and data beside it are not parsed.
MAX_CLIENT_BYTES = 2**17


def find_client(code: Path, source: Path) -> ClientSource | None:
    """Find the client in an archive's ``code``, a copy of the folder ``source``: one that takes the whole
    folder, or the only other one.

    Raises:
        BadInput: There are several, or one is too large or damaged.
    """
    folder = CodeFolder(code, is_archive=True)
    for file in {*folder.files(), *([folder.file] if folder.file.is_file() else [])}:
        _check_size(file, source / file.relative_to(code))
    sources = list(discover((code,), is_archive=True))
    sources = [client for client in sources if client.takes_folder] or sources
    if len(sources) > 1:
        raise BadInput(f"{source} has {len(sources)} clients; one is expected")
    for client in sources:
        if client.file.name == CLIENT_FILE:
            _check_syntax(client.file, source / client.file.relative_to(code))
    return sources[0] if sources else None


def _check_size(file: Path, shown: Path) -> None:
    if file.stat().st_size > MAX_CLIENT_BYTES:
        raise BadInput(
            f"{shown} has more than {MAX_CLIENT_BYTES} bytes: put code and data into files beside it"
        )


def _check_syntax(file: Path, shown: Path) -> None:
    """Check a client's syntax, so that the load fails. Other errors appear at the first request."""
    try:
        ast.parse(file.read_bytes())
    except (RecursionError, MemoryError):
        raise BadInput(f"{shown}: it is nested too deep to be parsed") from None
    except (SyntaxError, ValueError) as error:
        raise BadInput(f"{shown}, line {getattr(error, 'lineno', 1)}: {error}") from None


@dataclass(frozen=True)
class Archive:
    """``models`` by their names in the archive, in the order in which they are loaded, the entry last."""

    folder: Path
    models: Mapping[str, Model]
    #: The model that requests call; empty if the archive's client decides.
    entry: str
    #: The archive's client.
    plugin: ClientSource | None
    #: Models that ask for a GPU and run on the CPU because there is none.
    on_cpu: frozenset[str] = frozenset()

    @property
    def roots(self) -> list[str]:
        """The models to load. Steps are left out, as their ensemble loads them."""
        steps_of_ensembles = set().union(*map(steps, self.models.values()))
        return [name for name in self.models if name not in steps_of_ensembles]

    @classmethod
    def read(
        cls, folder: Path, source: Path, machine: Machine = Machine(), is_model: bool = False
    ) -> Archive:
        """Inspect an archive.

        Args:
            folder: The archive, or a copy of it that no other process changes.
            source: The folder in which the platform put it.
            machine: The machine that its models will run on.
            is_model: True if the folder's name is the model's, as in a repository.

        Raises:
            BadInput: It cannot be loaded. The sentence says why, and names files below ``source``.
        """
        plugin = find_client(folder / CODE, source / CODE)
        is_flat = models.is_model(folder)
        all_models = (Model.read(folder, source),) if is_flat else models.read(folder, source)
        all_models = tuple(model for model in all_models if models.is_model(model.folder))
        # Elsewhere the name of a flat archive's folder is the platform's, and no name in Triton.
        if is_model or not is_flat:
            _refuse(problem for model in all_models for problem in problems.name_problems(model))
        _check_problems(all_models, machine)
        entry = _choose_entry(all_models, source, plugin is not None)
        ordered = sorted(all_models, key=lambda model: (model is entry, is_ensemble(model)))
        _check_names(ordered)
        return cls(
            folder,
            {model.name: model for model in ordered},
            entry.name if entry else "",
            plugin,
            frozenset(model.name for model in problems.on_cpu(all_models, machine)),
        )


def resolve_folder(url: str, home: Path) -> Path:
    """Return the folder that ``url`` names, without links. :class:`BadInput` if it may not be loaded."""
    path = Path(url)
    if not path.is_absolute() or ".." in path.parts or "\0" in url:
        raise BadInput(f"url must be an absolute path without ..: {url[:200]!r}")
    if home not in path.parents:
        raise BadInput(f"url must be below {home}: {url[:200]!r}")
    try:
        real = path.resolve()
        if not real.is_dir():
            raise BadInput(f"there is no folder {url[:200]!r}")
    except (OSError, RuntimeError):
        # The path is too long, cannot be read, or is a link to itself.
        raise BadInput(f"there is no folder {url[:200]!r}") from None
    # A link may lead out of the home, and the home itself may be a link.
    if home.resolve() not in real.parents:
        raise BadInput(f"url leads out of {home}: {url[:200]!r}")
    return real


def _check_problems(all_models: tuple[Model, ...], machine: Machine) -> None:
    """Reject models that Triton would reject, or whose load would never end."""
    model_problems = [problem for model in all_models for problem in problems.of_model(model, machine)]
    # An ensemble's steps come from its own archive: another archive's models come and go.
    ensemble_problems = map(problems.Problem, ensembles.problems(all_models))
    _refuse((*model_problems, *ensemble_problems, *problems.gpu_problems(all_models, machine)))


def _refuse(found: Iterable[Problem]) -> None:
    """Raise :class:`BadInput` for a certain problem, and log the others."""
    for problem in found:
        if problem.is_certain:
            raise BadInput(problem.sentence.rstrip("."))
        log.warning("%s", problem.sentence)


def _check_names(all_models: list[Model]) -> None:
    """Check the names that the archive's client may use: each names one model and can name a folder."""
    owners: dict[str, str] = {}
    for model in all_models:
        for name in callable_names(model):
            if name in (".", "..") or "/" in name or not name.isprintable() or len(name.encode()) > 255:
                raise BadInput(f"{model.shown('config.pbtxt')} names the model {name[:200]!r}")
            if owners.setdefault(name, model.name) != model.name:
                raise BadInput(f"the models {owners[name]!r} and {model.name!r} are both called {name!r}")


def callable_names(model: Model) -> set[str]:
    """Return the names by which an archive's own code may call a model: its folder's and its
    configuration's.
    """
    config_name = model.config.name if model.config else ""
    return {model.name, config_name} - {""}


def _choose_entry(all_models: tuple[Model, ...], source: Path, has_client: bool) -> Model | None:
    if not all_models and not has_client:
        raise BadInput(
            f"there is no model in {source}: no config.pbtxt in it or one folder below, nor a file "
            "that tells Triton what it is, such as 1/model.onnx"
        )
    ensembles = [model for model in all_models if is_ensemble(model)]
    step_names = set().union(*map(steps, ensembles))
    outer_ensembles = [model for model in ensembles if model.name not in step_names]
    if len(all_models) == 1 or len(outer_ensembles) == 1:
        return (outer_ensembles or list(all_models))[0]
    if has_client:
        return None
    names = ", ".join(model.name for model in all_models)
    raise BadInput(
        f"{source} has {len(all_models)} models ({names}) and {len(outer_ensembles) or 'no'} ensembles that "
        "could be the one to call: make it one, or put a client into code/"
    )
