"""Read a model archive: its folder, its models, and which of them is the entry.

Two layouts: the folder is a model (``config.pbtxt`` and ``1/``), or each folder in it is one. In the second
an ensemble that is no other ensemble's step is the one called. ``code/`` may hold a client.
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
#: Where Linux shows things that are no files.
NO_FILES = ("/dev", "/proc", "/sys")


@dataclass(frozen=True)
class Plugin:
    """A client's file; of the toolkit's kind if it has a ``module`` to be imported as."""

    file: Path
    module: str = ""

    @classmethod
    def find(cls, code: Path) -> Plugin | None:
        """The client in ``code``: a script of the toolkit's kind, ``client.py``, or one folder with it."""
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
    """Who loads an archive is told of a slip of the pen; what else is wrong its first caller is told."""
    _check_size(file)
    try:
        ast.parse(file.read_bytes())
    except (RecursionError, MemoryError):
        raise BadInput(f"{file}: it is nested too deep to be parsed") from None
    except (SyntaxError, ValueError) as error:
        raise BadInput(f"{file}, line {getattr(error, 'lineno', 1)}: {error}") from None


@dataclass(frozen=True)
class Archive:
    """``models`` by their names in the archive, in an order to load them in: the one called comes last."""

    folder: Path
    models: Mapping[str, Model]
    #: The name of the model that requests are for; empty if only the archive's client knows.
    entry: str
    #: The archive's client.
    plugin: Plugin | None
    #: The models that ask for a GPU and run on the CPU, as there is none.
    on_cpu: frozenset[str] = frozenset()

    @property
    def roots(self) -> list[str]:
        """What to load: an ensemble brings its steps, and would have them loaded again if they were there."""
        asked = set().union(*map(steps, self.models.values()))
        return [name for name in self.models if name not in asked]

    @classmethod
    def read(cls, folder: Path, source: Path, machine: Machine = Machine()) -> Archive:
        """Inspect an archive.

        Args:
            folder: The archive, or a copy of it that nobody changes.
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
            found: tuple[Model, ...] = (Model.read(folder),)
        else:
            found = models.read(folder)
        found = tuple(model for model in found if models.is_model(model.folder))
        _check(found, machine)
        entry = _entry(found, folder, plugin is not None)
        ordered = sorted(found, key=lambda model: (model is entry, is_ensemble(model)))
        _check_names(ordered)
        return cls(
            folder,
            {model.name: model for model in ordered},
            entry.name if entry else "",
            plugin,
            frozenset(model.name for model in problems.on_cpu(found, machine)),
        )


def check_model(url: str, home: Path) -> Path:
    """The folder that ``url`` names, without links on the way, if it may be loaded."""
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
        # Too long, not to be read, or a link to itself.
        raise BadInput(f"there is no folder {url[:200]!r}") from None
    # A link may lead elsewhere, and the home may be reached through one.
    if home.resolve() not in real.parents:
        raise BadInput(f"url leads out of {home}: {url[:200]!r}")
    return real


def _check(found: tuple[Model, ...], machine: Machine) -> None:
    """Refuse what Triton would refuse, and what it would wait for without end."""
    wrong = [problem for model in found for problem in problems.of_model(model, machine)]
    for problem in (*wrong, *problems.gpu_problems(found, machine)):
        if problem.is_certain:
            raise BadInput(f"the archive cannot be loaded: {problem.sentence.rstrip('.')}")
        log.warning("%s", problem.sentence)


def _check_names(found: list[Model]) -> None:
    """Check the names that the archive's client may say: each means one model, and can be a folder's name."""
    owners: dict[str, str] = {}
    for model in found:
        for name in parameters_of_call(model):
            if name in (".", "..") or "/" in name or not name.isprintable() or len(name.encode()) > 255:
                raise BadInput(f"{model.folder / 'config.pbtxt'} names the model {name[:200]!r}")
            if owners.setdefault(name, model.name) != model.name:
                raise BadInput(f"the models {owners[name]!r} and {model.name!r} are both called {name!r}")


def parameters_of_call(model: Model) -> set[str]:
    """The names that an archive's own code may call a model by: its folder's and its configuration's."""
    said = model.config.name if model.config else ""
    return {model.name, said} - {""}


def _entry(found: tuple[Model, ...], folder: Path, has_client: bool) -> Model | None:
    if not found and not has_client:
        raise BadInput(
            f"there is no model in {folder}: no config.pbtxt in it or one folder below, nor a file "
            "that tells Triton what it is, such as 1/model.onnx"
        )
    ensembles = [model for model in found if is_ensemble(model)]
    asked = set().union(*map(steps, ensembles))
    tops = [model for model in ensembles if model.name not in asked]
    if len(found) == 1 or len(tops) == 1:
        return (tops or list(found))[0]
    if has_client:
        return None
    names = ", ".join(model.name for model in found)
    raise BadInput(
        f"{folder} has {len(found)} models ({names}) and {len(tops) or 'no'} ensembles that could be the one "
        "to call: make it one, or put a client into code/"
    )
