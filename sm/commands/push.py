"""``sm push``: let a running box replace a model by its new version."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from urllib.parse import quote

from sm.commands.api_keys import read_api_key
from sm.commands.local_boxes import ask
from sm.errors import CommandError

#: The box answers when the new version serves or has failed, after SageMaker's time for a load at most.
TIMEOUT_S = 365.0


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("model", help="the name of the model in the box's repository")
    command.add_argument(
        "--to", default="http://localhost:8080", metavar="URL", help="the box (http://localhost:8080)"
    )
    command.add_argument("--api-key", type=Path, metavar="FILE", help="a file with an API key of the box")


def run(options: argparse.Namespace) -> int:
    """Ask the box to look at its repository, and print what serves then."""
    key, path = read_api_key(options.api_key), f"/models/{quote(options.model, safe='')}/versions"
    status, answer = ask(options.to, path, b"", api_key=key, timeout_s=TIMEOUT_S)
    if "state" not in answer:
        raise CommandError(f"{options.model} is not replaced: {answer.get('error', status)}.")
    serving = "the new version serves" if answer["state"] == "serves" else "it has not changed"
    sys.stdout.write(f"{options.model}: {serving}\n")
    return 0
