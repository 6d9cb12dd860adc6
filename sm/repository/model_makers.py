"""The door for makers of models: a source that is not a model repository becomes one at a start.

A row of the group ``sm.model_makers`` is a :class:`ModelMaker`. A start runs this module in a process of its
own, so that PID 1 imports no row: with ``make FOLDER SUBJECT``, and with ``rebuild VERSION OUT TIMES`` for
each TensorRT plan that is missing.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from sm import entry_points
from sm.errors import StartError
from sm.repository.machine import Machine
from sm.repository.manifest import Manifest
from sm.settings import Settings

GROUP = "sm.model_makers"


class RepositorySource(NamedTuple):
    """A source that a start shall make a model repository of."""

    #: A folder, or what names one elsewhere, as the deployment writes it.
    folder: Path
    #: The setting or the address that names it, for the sentences of errors.
    subject: str


class ModelMaker(NamedTuple):
    """Makes models. A row has the functions for what it can."""

    #: Makes a model repository of a source, for a machine, in a folder that is not there yet. Returns a
    #: sentence for the log, empty for none; None if the source is of another form. Raises
    #: :class:`StartError` if it lacks something.
    make: Callable[[RepositorySource, Settings, Machine, Path], str | None] = lambda *_: None
    #: Builds a version with a TensorRT plan again for this machine's GPU: from its folder into another one,
    #: with a file of TensorRT's measurements for later builds. Raises :class:`StartError` without a plan.
    rebuild: Callable[[Path, Path, Path], None] | None = None
    #: Returns what ``sm inspect`` says on this machine of a version, beside its target: of its folder, its
    #: manifest, and the model's ``config.pbtxt`` as JSON has it. Empty for nothing.
    describe: Callable[[Path, Manifest, Mapping[str, Any]], str] = lambda *_: ""


def rows() -> tuple[ModelMaker, ...]:
    """Return the makers that are installed."""
    return entry_points.load(GROUP)


def make(settings: Settings, source: RepositorySource) -> tuple[Path, str]:
    """Make a repository for this box with the first maker that knows the source's form.

    Returns:
        The repository, and a sentence for the log.

    Raises:
        StartError: The source lacks something, or no maker knows its form.
    """
    repository = settings.cache / "hugging_face" / str(settings.port)
    shutil.rmtree(repository, ignore_errors=True)
    machine = Machine.find(settings)
    for maker in rows():
        if (said := maker.make(source, settings, machine, repository)) is not None:
            return repository, said
    raise StartError(
        f"{source.subject}: {source.folder} is not a model repository, and nothing that is installed makes "
        f"one of it. For a model of Hugging Face's form: {entry_points.INSTALL_EXTENSIONS}."
    )


def rebuild(version: Path, out: Path, times: Path) -> None:
    """Build the plan of a version again, with the maker that can. Raises :class:`StartError`."""
    for maker in rows():
        if maker.rebuild:
            return maker.rebuild(version, out, times)
    raise StartError(
        f"{version}: nothing that is installed builds its plan: {entry_points.INSTALL_EXTENSIONS}."
    )


def main(arguments: Sequence[str]) -> int:
    """Make what is asked for; print what :func:`make` returns, or what is wrong."""
    verb, *words = arguments
    line, code = "", 0
    try:
        if verb == "make":
            repository, said = make(Settings.read(os.environ), RepositorySource(Path(words[0]), words[1]))
            line = json.dumps([str(repository), said])
        else:
            rebuild(*map(Path, words))
    except (StartError, ValueError, OSError) as error:
        line, code = str(error), 1
    sys.stdout.write(f"{line}\n")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
