"""Load a repository's clients as a start does, in a process of their own:
``python -m sm.commands.client_loading [--mme] REPOSITORY [FOLDER...]``.

``setup()`` is not called: it may need Triton.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import cast

from sm.client.base import Client, TensorClient, Triton
from sm.errors import CommandError
from sm.plugins.checks import choose_model
from sm.plugins.discovery import check_name, find_sources
from sm.plugins.loading import load
from sm.plugins.sources import ClientSource
from sm.repository import models
from sm.repository.models import CLIENT_FILE, CODE, REQUIREMENTS_FILE, CodeFolder
from sm.repository.problems import Problem
from sm.settings import HERE, Settings

LOAD_TIMEOUT_S = 60.0
MME = "--mme"


class NoTriton:
    """Stands for Triton before it runs: a client may call it in ``setup``, but not when it is created."""

    def __getattr__(self, name: str) -> object:
        raise CommandError(f"it asks Triton ({name}) while it is loaded; do so in setup().")


def find_problems(repository: Path, folders: Sequence[Path] = (), *, mme: bool = False) -> list[Problem]:
    """Return the problems of the clients in ``code/`` and in ``folders``.

    ``mme``: each client will be alone with its model, as in multi-model mode.
    """
    if not folders and not (repository / CODE).is_dir():
        return []
    # -B: nothing is written into the repository.
    paths = [str(path.absolute()) for path in (repository, *folders)]
    command = [sys.executable, "-B", "-m", __name__, *([MME] if mme else []), *paths]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    try:
        process = subprocess.run(
            command, capture_output=True, timeout=LOAD_TIMEOUT_S, check=False, env=environment
        )
        output, end = process.stdout, f"it ends the process that loads it (exit code {process.returncode})"
    except subprocess.TimeoutExpired as error:
        output, end = error.stdout or b"", f"it does not load within {LOAD_TIMEOUT_S:g} s"
    *lines, last = map(json.loads, output.splitlines() or [b'""'])
    found = [Problem(**line) for line in lines if isinstance(line, dict)]
    return found if last is None else [*found, Problem(f"{last or repository / CODE}: {end}.")]


def main(arguments: Sequence[str]) -> None:
    """Write a line of JSON before each client (its path), for each problem, and at the end (null)."""
    mme = arguments[0] == MME
    repository, *folders = map(Path, arguments[mme:])
    # The clients' own prints go to standard error.
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    sources = find_sources(
        (HERE / "clients", *folders),
        CodeFolder(repository / CODE, Settings.read(os.environ).program),
        repository,
    )
    own = [source for source in sources if not source.is_bundled]
    others = {} if mme else {source.name: source for source in sources if source.is_bundled}
    for source in own:
        # An archive for multi-model mode has its client in client.py; a file beside it is a module.
        if mme and source.file.name != CLIENT_FILE and not source.takes_folder:
            continue
        out.write(f"{json.dumps(source.display_path)}\n")
        for sentence, is_certain in _problems(source, repository, others, mme):
            out.write(f"{json.dumps({'sentence': sentence, 'is_certain': is_certain})}\n")
    out.write("null\n")


def _problems(
    source: ClientSource, repository: Path, others: dict[str, ClientSource], mme: bool
) -> Iterator[tuple[str, bool]]:
    """Load a client and yield its problems, with whether they would stop each start."""
    try:
        client = load(source, cast("Triton", NoTriton()), repository)
        if not mme:
            check_name(client, source, others)
            others[client.name] = source
            for model in _missing_models(client, repository):
                yield f"{source.display_path}: its model {model!r} is not in {repository}.", True
    except CommandError as error:
        missing_package = isinstance(error.__cause__, ModuleNotFoundError)
        requirements = source.home / REQUIREMENTS_FILE, source.home.parent / REQUIREMENTS_FILE
        # The box may have installed what this machine does not have.
        yield str(error), not (missing_package and any(file.is_file() for file in requirements))


def _missing_models(client: Client, repository: Path) -> list[str]:
    def is_there(model: str) -> bool:
        return (repository / model).is_dir() and models.is_model(repository / model)

    if isinstance(client, TensorClient):
        client.model = choose_model(client, repository, is_there)
    return [model for model in client.required_models() if not is_there(model)]


if __name__ == "__main__":
    main(sys.argv[1:])
