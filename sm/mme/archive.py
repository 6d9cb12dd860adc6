"""A model archive as the platform unpacked it: which models are in it, and which of them is called.

Two layouts: the folder is a model (``config.pbtxt`` and ``1/``), or each folder in it is one. In the second
an ensemble that is no other ensemble's step is the one called. ``code/`` may hold a client.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sm.errors import BadInput
from sm.inspection import models
from sm.inspection.ensembles import is_ensemble, steps
from sm.inspection.models import Model
from sm.toolkit.code import Code

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
        script = Code(code).script
        if script:
            return cls(script, Code(code).module)
        files = [file for file in (code / "client.py",) if file.is_file()] or list(code.glob("*/client.py"))
        if len(files) > 1:
            raise BadInput(f"{code} has {len(files)} clients; one is expected")
        for file in files:
            _compiles(file)
        return cls(files[0]) if files else None


def _compiles(file: Path) -> None:
    """Who loads an archive is told of a slip of the pen; what else is wrong its first caller is told."""
    try:
        ast.parse(file.read_bytes())
    except (SyntaxError, ValueError) as error:
        raise BadInput(f"{file}, line {getattr(error, 'lineno', 1)}: {error}") from None


@dataclass(frozen=True)
class Archive:
    """``models`` by their names in the archive, in an order to load them in: the one called comes last."""

    folder: Path
    #: What the platform is told was registered.
    url: Path
    models: Mapping[str, Model]
    #: The name of the model that requests are for; empty if only the archive's client knows.
    entry: str
    #: The archive's client.
    plugin: Plugin | None

    @property
    def roots(self) -> list[str]:
        """What to load: an ensemble brings its steps, and would have them loaded again if they were there."""
        asked = set().union(*map(steps, self.models.values()))
        return [name for name in self.models if name not in asked]

    @classmethod
    def read(cls, url: str, home: Path) -> Archive:
        """The archive in the folder ``url``, below ``home``; :class:`BadInput` says what is wrong with it."""
        folder = checked(url, home)
        plugin = Plugin.find(folder / "code")
        single = Model.read(folder)
        if single.config is not None or single.fault or single.versions:
            found: tuple[Model, ...] = (single,)
            registered = folder.parent
        else:
            found, registered = models.read(folder), folder
        for model in found:
            if model.fault:
                raise BadInput(f"the archive cannot be loaded: {model.fault}")
        found = tuple(model for model in found if model.config is not None or model.versions)
        entry = _entry(found, folder, plugin is not None)
        ordered = sorted(found, key=lambda model: (model is entry, is_ensemble(model)))
        return cls(
            folder, registered, {model.name: model for model in ordered}, entry.name if entry else "", plugin
        )


def checked(url: str, home: Path) -> Path:
    """The folder that ``url`` names, if it may be loaded."""
    path = Path(url)
    if not path.is_absolute() or ".." in path.parts or "\0" in url:
        raise BadInput(f"url must be an absolute path without ..: {url[:200]!r}")
    if url.startswith(tuple(f"{place}/" for place in NO_FILES)) or home not in path.parents:
        raise BadInput(f"url must be below {home}: {url[:200]!r}")
    # A link may lead elsewhere, and the home may be reached through one.
    if home.resolve() not in path.resolve().parents:
        raise BadInput(f"url leads out of {home}: {url[:200]!r}")
    if not path.is_dir():
        raise BadInput(f"there is no folder {url[:200]!r}")
    return path


def _entry(found: tuple[Model, ...], folder: Path, has_client: bool) -> Model | None:
    if not found and not has_client:
        raise BadInput(
            f"there is no model in {folder}: neither a config.pbtxt nor a folder 1 in it or one folder below"
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
