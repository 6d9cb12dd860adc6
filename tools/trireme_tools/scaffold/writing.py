"""Write a new client, and its identity model if there is no model yet, completely or not at all.

The templates are in ``templates/<kind>`` and, for all kinds, in ``templates/common``: ``client`` becomes
``clients/NAME``, ``model`` becomes ``model/MODEL`` for each model of the kind. ``templates/of_model/<kind>``
is for a client of a model that exists.
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

from sm.errors import CommandError
from sm.plugins.sources import discover
from sm.settings import HERE
from trireme_tools.scaffold.real_model import opened

TEMPLATES = Path(__file__).parent / "templates"
#: Names that Python, Triton and the platform's headers all accept.
NAME = re.compile(r"[a-z][a-z0-9_]{0,62}")
DEFAULT_KIND = "image"
#: A suffix, so that linters do not read templates as modules.
SUFFIX = ".txt"


@dataclass(frozen=True)
class NewClient:
    """The client to write: its ``modelname``, its kind, and the repository with its model if that exists."""

    name: str
    kind: str | None = None
    repository: Path | None = None

    @property
    def models(self) -> tuple[str, ...]:
        """The identity models of the kind."""
        if self.repository:
            return ()
        if self.kind == "pipeline":
            return f"{self.name}_first", f"{self.name}_second"
        return (self.name,)

    def write(self, into: Path) -> list[str]:
        """Write the folders. Returns what was written, and what the author has to fill in, in a line each.

        Raises:
            CommandError: A folder exists or cannot be written, or the model's tensors are unknown.
        """
        targets = (into / "clients" / self.name, *(into / "model" / model for model in self.models))
        self._check(targets)
        try:
            into.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=".new-client-", dir=into) as staged:
                to_fill_in = self._fill(Path(staged))
                _move(Path(staged), into, targets)
        except OSError as error:
            raise CommandError(f"{into} cannot be written to: {error.strerror}.") from None
        return [*(f"wrote {target}" for target in targets), *to_fill_in]

    def _check(self, targets: tuple[Path, ...]) -> None:
        if not NAME.fullmatch(self.name) or keyword.iskeyword(self.name):
            raise CommandError(
                f"{self.name!r} is not a name for a client: small letters, digits and _, a letter first."
            )
        for target in targets:
            if target.exists():
                raise CommandError(f"{target} already exists; nothing was written.")
        if self.name in {source.name for source in discover((HERE / "clients",))}:
            raise CommandError(f"the box comes with a client {self.name!r}: give yours another name.")

    def _fill(self, folder: Path) -> list[str]:
        client = folder / "clients" / self.name
        if self.repository:
            with opened(self.repository, self.name) as model:
                kind, tensors = model.choose_kind(self.kind), model.words()
                for template in ("common", f"of_model/{kind}"):
                    self._copy(TEMPLATES / template / "client", client, tensors)
                return model.write_sample(client)
        for kind in ("common", self.kind or DEFAULT_KIND):
            self._copy(
                TEMPLATES / kind / "client", client, {"golden_source": "both belong to the identity model"}
            )
            for model_name in self.models:
                self._copy(TEMPLATES / kind / "model", folder / "model" / model_name, {"model": model_name})
        return []

    def _copy(self, source: Path, target: Path, words: dict[str, str]) -> None:
        words = {"name": self.name, "Name": class_name(self.name), **words}
        for file in _files(source):
            # The tests of two clients have two names, so that "pytest clients" can import both.
            place = target / str(file.relative_to(source).with_suffix("")).replace("NAME", self.name)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(Template(file.read_text("utf-8")).substitute(words), "utf-8")


def class_name(name: str) -> str:
    """Convert ``street_signs`` to ``StreetSigns``."""
    return "".join(part.capitalize() for part in name.split("_"))


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.rglob(f"*{SUFFIX}")) if path.is_file())


def _move(staged: Path, into: Path, targets: tuple[Path, ...]) -> None:
    """Move each folder in one step; if one fails, those that were moved are removed."""
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
