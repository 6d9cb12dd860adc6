"""``sm push``: let a running box replace a model by its new version."""

from __future__ import annotations

import argparse
import json
import sys
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import quote

from sm.commands.api_keys import read_api_key
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
    key = read_api_key(options.api_key)
    request = urllib.request.Request(  # noqa: S310 - the user's own box
        f"{options.to.rstrip('/')}/models/{quote(options.model, safe='')}/versions",
        data=b"",
        headers={"X-Api-Key": key} if key else {},
        method="POST",
    )
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:  # noqa: S310
            state = json.loads(answer.read())["state"]
    except urllib.error.HTTPError as error:
        body = error.read()
        reason = json.loads(body).get("error", "") if body.startswith(b"{") else ""
        raise CommandError(f"{options.model} is not replaced: {reason or error}.") from None
    except OSError as error:
        raise CommandError(f"{options.to} does not answer: {error}.") from None
    serving = "the new version serves" if state == "serves" else "it has not changed"
    sys.stdout.write(f"{options.model}: {serving}\n")
    return 0
