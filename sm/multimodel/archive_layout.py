"""Read a model archive: its folder, its models, and which of them is the entry.

There are two layouts: the folder is a model (``config.pbtxt`` and ``1/``), or each folder in it is one. In
the second, the entry is the ensemble that is no other ensemble's step. ``code/`` may hold a client.
"""

from __future__ import annotations

import ast
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sm.code_folder import CodeFolder
from sm.errors import BadInput
from sm.inspection import problems
from sm.inspection.machine import Machine
from sm.multimodel.copying import MAX_COPIED_FILE_BYTES
from sm.repository import models
from sm.repository.ensembles import is_ensemble, steps
from sm.repository.models import Model

log = logging.getLogger(__name__)
#: Folders of Linux with entries that are no files.
NO_FILES = ("/dev", "/proc", "/sys")


@dataclass(frozen=True)
class Plugin:
    """A client's file. A toolkit script has the ``module`` name to import it as."""

    file: Path
    module: str = ""

    @classmethod
    def find(cls, code: Path) -> Plugin | None:
        """Find the client in ``code``: a toolkit script, ``client.py``, or one folder with it."""
        if CodeFolder(code).file.is_file():
            _check_size(CodeFolder(code).file)
        script = CodeFolder(code).script
        if script:
            return cls(script, CodeFolder(code).module)
        files = [file for file in (code / "client.py",) if file.is_file()] or list(code.glob("*/client.py"))
        if len(files) > 1:
            raise BadInput(f"{code} has {len(files)} clients; one is expected")
        for file in files:
            _compiles(file)
        return cls(files[0]) if files else None


def _check_size(file: Path) -> None:
    if file.stat().st_size > MAX_COPIED_FILE_BYTES:
        raise BadInput(f"{file} has more than {MAX_COPIED_FILE_BYTES} bytes: a client is shorter")


def _compiles(file: Path) -> None:
    """Check the syntax: whoever loads an archive learns of a syntax error. Other faults appear at the first
    request.
    """
    _check_size(file)
    try:
        ast.parse(file.read_bytes())
    except (RecursionError, MemoryError):
        raise BadInput(f"{file}: it is nested too deep to be parsed") from None
    except (SyntaxError, ValueError) as error:
        raise BadInput(f"{file}, line {getattr(error, 'lineno', 1)}: {error}") from None


@dataclass(frozen=True)
class Archive:
    """``models`` by their names in the archive, in the order in which they are loaded, the entry last."""

    folder: Path
    models: Mapping[str, Model]
    #: The model that requests call; empty if the archive's client decides.
    entry: str
    #: The archive's client.
    plugin: Plugin | None
    #: Models that ask for a GPU and run on the CPU because there is none.
    on_cpu: frozenset[str] = frozenset()

    @property
    def roots(self) -> list[str]:
        """The models to load. Steps are left out, as their ensemble loads them."""
        steps_of_ensembles = set().union(*map(steps, self.models.values()))
        return [name for name in self.models if name not in steps_of_ensembles]

    @classmethod
    def read(cls, folder: Path, source: Path, machine: Machine = Machine()) -> Archive:
        """Inspect an archive.

        Args:
            folder: The archive, or a copy of it that no other process changes.
            source: Where the platform put it.
            machine: What its models will run on.

        Raises:
            BadInput: It cannot be loaded. The sentence says why, and names files below ``source``.
        """
        try:
            return cls._inspect(folder, machine)
        except BadInput as error:
            raise BadInput(error.sentence.replace(str(folder), str(source))) from None

    @classmethod
    def _inspect(cls, folder: Path, machine: Machine) -> Archive:
        plugin = Plugin.find(folder / "code")
        if models.is_model(folder):
            checked: tuple[Model, ...] = (Model.read(folder),)
        else:
            checked = models.read(folder)
        checked = tuple(model for model in checked if models.is_model(model.folder))
        _check(checked, machine)
        entry = _entry(checked, folder, plugin is not None)
        ordered = sorted(checked, key=lambda model: (model is entry, is_ensemble(model)))
        _check_names(ordered)
        return cls(
            folder,
            {model.name: model for model in ordered},
            entry.name if entry else "",
            plugin,
            frozenset(model.name for model in problems.on_cpu(checked, machine)),
        )


def check_model(url: str, home: Path) -> Path:
    """Resolve the folder that ``url`` names, if it may be loaded."""
    path = Path(url)
    if not path.is_absolute() or ".." in path.parts or "\0" in url:
        raise BadInput(f"url must be an absolute path without ..: {url[:200]!r}")
    if url.startswith(tuple(f"{place}/" for place in NO_FILES)) or home not in path.parents:
        raise BadInput(f"url must be below {home}: {url[:200]!r}")
    try:
        real = path.resolve()
        if not real.is_dir():
            raise BadInput(f"there is no folder {url[:200]!r}")
    except (OSError, RuntimeError):
        # The name is too long, not readable, or a link to itself.
        raise BadInput(f"there is no folder {url[:200]!r}") from None
    # A link may lead elsewhere, and the home itself may be reached through one.
    if home.resolve() not in real.parents:
        raise BadInput(f"url leads out of {home}: {url[:200]!r}")
    return real


def _check(checked: tuple[Model, ...], machine: Machine) -> None:
    """Refuse what Triton would refuse, and what it would wait for without end."""
    wrong = [problem for model in checked for problem in problems.of_model(model, machine)]
    for problem in (*wrong, *problems.gpu_problems(checked, machine)):
        if problem.is_certain:
            raise BadInput(f"the archive cannot be loaded: {problem.sentence.rstrip('.')}")
        log.warning("%s", problem.sentence)


def _check_names(checked: list[Model]) -> None:
    """Check the names that the archive's client may use: each means one model, and can be a folder's name."""
    owners: dict[str, str] = {}
    for model in checked:
        for name in parameters_of_call(model):
            if name in (".", "..") or "/" in name or not name.isprintable() or len(name.encode()) > 255:
                raise BadInput(f"{model.folder / 'config.pbtxt'} names the model {name[:200]!r}")
            if owners.setdefault(name, model.name) != model.name:
                raise BadInput(f"the models {owners[name]!r} and {model.name!r} are both called {name!r}")


def parameters_of_call(model: Model) -> set[str]:
    """Return the names by which an archive's own code may call a model: its folder's and its
    configuration's.
    """
    config_name = model.config.name if model.config else ""
    return {model.name, config_name} - {""}


def _entry(checked: tuple[Model, ...], folder: Path, has_client: bool) -> Model | None:
    if not checked and not has_client:
        raise BadInput(
            f"there is no model in {folder}: no config.pbtxt in it or one folder below, nor a file "
            "that tells Triton what it is, such as 1/model.onnx"
        )
    ensembles = [model for model in checked if is_ensemble(model)]
    step_names = set().union(*map(steps, ensembles))
    tops = [model for model in ensembles if model.name not in step_names]
    if len(checked) == 1 or len(tops) == 1:
        return (tops or list(checked))[0]
    if has_client:
        return None
    names = ", ".join(model.name for model in checked)
    raise BadInput(
        f"{folder} has {len(checked)} models ({names}) and {len(tops) or 'no'} ensembles that could be the "
        "one to call: make it one, or put a client into code/"
    )
