"""A new client and its identity model, written whole or not at all.

The templates lie in ``templates/<kind>`` and, what all kinds share, in ``templates/common``: ``client``
becomes ``clients/NAME``, ``model`` becomes ``model/MODEL`` for each model of the kind.
"""

from __future__ import annotations

import keyword
import re
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from string import Template

from sm.errors import StartError
from sm.plugins.loading import discover
from sm.settings import HERE

TEMPLATES = Path(__file__).parent / "templates"
#: What Python, Triton and the platform's headers all take for a name.
NAME = re.compile(r"[a-z][a-z0-9_]{0,62}")
#: So that no linter takes a template for a module.
SUFFIX = ".txt"


@dataclass(frozen=True)
class NewClient:
    """A client that is to be: its ``modelname`` and its kind."""

    name: str
    kind: str

    @property
    def models(self) -> tuple[str, ...]:
        """The identity models it begins with."""
        if self.kind == "pipeline":
            return f"{self.name}_first", f"{self.name}_second"
        return (self.name,)

    def write(self, into: Path) -> tuple[Path, ...]:
        """Write the folders and give them; :class:`StartError` if one is there or cannot be written."""
        targets = (into / "clients" / self.name, *(into / "model" / model for model in self.models))
        self._check(targets)
        try:
            into.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=".new-client-", dir=into) as staged:
                self._fill(Path(staged))
                _move(Path(staged), into, targets)
        except OSError as error:
            raise StartError(f"{into} cannot be written to: {error.strerror}.") from None
        return targets

    def _check(self, targets: tuple[Path, ...]) -> None:
        if not NAME.fullmatch(self.name) or keyword.iskeyword(self.name):
            raise StartError(
                f"{self.name!r} is no name for a client: small letters, digits and _, a letter first."
            )
        for target in targets:
            if target.exists():
                raise StartError(f"{target} is there already; nothing was written.")
        if self.name in {found.name for found in discover((HERE / "clients",))}:
            raise StartError(f"the box comes with a client {self.name!r}: give yours another name.")

    def _fill(self, folder: Path) -> None:
        for kind in ("common", self.kind):
            self._copy(TEMPLATES / kind / "client", folder / "clients" / self.name, self.name)
            for model in self.models:
                self._copy(TEMPLATES / kind / "model", folder / "model" / model, model)

    def _copy(self, source: Path, target: Path, model: str) -> None:
        words = {"name": self.name, "Name": class_name(self.name), "kind": self.kind, "model": model}
        for file in _files(source):
            place = target / file.relative_to(source).with_suffix("")
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(Template(file.read_text("utf-8")).substitute(words), "utf-8")


def class_name(name: str) -> str:
    """``street_signs`` to ``StreetSigns``."""
    return "".join(part.capitalize() for part in name.split("_"))


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.rglob(f"*{SUFFIX}")) if path.is_file())


def _move(staged: Path, into: Path, targets: tuple[Path, ...]) -> None:
    """Each folder in one step; those that are there already go again if a later one cannot be had."""
    moved: list[Path] = []
    try:
        for target in targets:
            target.parent.mkdir(parents=True, exist_ok=True)
            (staged / target.relative_to(into)).rename(target)
            moved.append(target)
    except OSError:
        for target in moved:
            shutil.rmtree(target, ignore_errors=True)
        raise
