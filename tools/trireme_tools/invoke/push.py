"""``sm push``: let a running box replace a model by its new version, at once or with a canary first."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from sm.commands.local_boxes import ask
from sm.errors import CommandError
from trireme_tools.arguments import whole_number
from trireme_tools.invoke.url import read_api_key

#: The box answers when the new version serves or has failed, after SageMaker's time for a load at most.
TIMEOUT_S = 365.0
#: Seconds between two looks at a canary, and looks without an answer in a row after which it is left alone.
INTERVAL_S, MAX_UNANSWERED = 1.0, 60
ROLLED_BACK = "the old version serves. Put its files back: a box that starts again serves what is there"


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("model", help="the name of the model in the box's repository")
    command.add_argument(
        "--to", default="http://localhost:8080", metavar="URL", help="the box (http://localhost:8080)"
    )
    command.add_argument("--api-key", type=Path, metavar="FILE", help="a file with an API key of the box")
    step = command.add_mutually_exclusive_group()
    step.add_argument(
        "--canary",
        type=whole_number("a percentage", 1, 99),
        metavar="PERCENT",
        help="send it only this share of the requests, 1 to 99",
    )
    step.add_argument("--promote", action="store_true", help="let the canary serve all requests")
    step.add_argument("--rollback", action="store_true", help="let the old version serve all requests again")
    command.add_argument(
        "--auto",
        action="store_true",
        help="with --canary: the box promotes it or rolls it back by errors and times; wait for that",
    )


class PushedModel:
    """A model of the box at ``url``."""

    def __init__(self, url: str, name: str, api_key: str) -> None:
        self._url, self._name, self._api_key = url, name, api_key

    def call(self, method: str, path: str = "", body: object = None) -> dict[str, Any]:
        """Call the model's route, and return the answer. Raises :class:`CommandError` with the reason."""
        route = f"/models/{quote(self._name, safe='')}{path}"
        content = json.dumps(body).encode() if body else b""
        status, answer = ask(
            self._url,
            route,
            None if method == "GET" else content,
            method=method,
            api_key=self._api_key,
            timeout_s=TIMEOUT_S,
        )
        if status != 200:
            raise CommandError(f"{self._name} is not replaced: {answer.get('error', status)}.")
        return answer


def run(options: argparse.Namespace) -> int:
    """Ask the box to look at its repository, or to end a canary, and print what serves then."""
    if options.auto and not options.canary:
        raise CommandError("--auto decides about a canary: add --canary 10.")
    model = PushedModel(options.to, options.model, read_api_key(options.api_key))
    if options.promote or options.rollback:
        model.call("PATCH", "/versions", {"action": "promote" if options.promote else "rollback"})
        say(options, "the new version serves" if options.promote else ROLLED_BACK)
        return 0
    canary = {"canary": options.canary, "auto": options.auto} if options.canary else None
    state = model.call("POST", "/versions", canary)["state"]
    if state == "canary":
        return follow(model, options)
    say(options, "the new version serves" if state == "serves" else "it has not changed")
    return 0


def say(options: argparse.Namespace, sentence: str) -> None:
    sys.stdout.write(f"{options.model}: {sentence}\n")


def follow(model: PushedModel, options: argparse.Namespace) -> int:
    """Show a canary: on a terminal or with ``--auto`` until it ends, else once. Ctrl-C leaves it as it is."""
    console = Console() if sys.stdout.isatty() else Console(width=200)  # no table is wrapped for a program
    row = model.call("GET")
    if not (console.is_terminal or options.auto):
        console.print(show(row))
        say(options, next_step(options))
        return 0
    identity, unanswered = row.get("canary", {}).get("version_id"), 0
    try:
        with Live(show(row), console=console, auto_refresh=False) as live:
            while "canary" in row:
                live.update(show(row), refresh=console.is_terminal)
                time.sleep(INTERVAL_S)
                try:
                    row, unanswered = model.call("GET"), 0
                except CommandError:  # its control plane may be starting again
                    unanswered += 1
                    if unanswered == MAX_UNANSWERED:
                        raise
    except KeyboardInterrupt:
        say(options, next_step(options))
        return 0
    if identity in (None, row.get("version_id")):
        say(options, "the new version serves")
        return 0
    raise CommandError(f"{options.model}: the old version serves. {row.get('version_error', '')}")


def show(row: dict[str, Any]) -> Group:
    """Return the table of a model's two versions, and the verdict."""
    canary = row.get("canary")
    if not canary:
        return Group()
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("", "version", "share", "requests", "errors", "rate", "p50", "p99"):
        table.add_column(name, justify="left" if name in ("", "version") else "right")
    for name, identity, percent in (
        ("stable", row.get("version_id", ""), 100 - canary["percent"]),
        ("canary", canary["version_id"], canary["percent"]),
    ):
        numbers = canary[name]
        rate = numbers["error_rate"]
        table.add_row(
            name,
            identity,
            f"{percent} %",
            str(numbers["requests"]),
            str(numbers["errors"]),
            "–" if rate is None else f"{rate:.1%}",
            _milliseconds(numbers["p50_ms"]),
            _milliseconds(numbers["p99_ms"]),
        )
    decision = "the box decides" if canary["auto"] else "you decide"
    return Group(table, Text(f"{canary['verdict']}: {canary['reason']} ({decision})"))


def next_step(options: argparse.Namespace) -> str:
    """Say how a canary goes on."""
    key = ("--api-key", str(options.api_key)) if options.api_key else ()
    command = shlex.join(("sm", "push", options.model, "--to", options.to, *key))
    decides = (
        "the box decides about the canary, or you" if options.auto else "the canary goes on until you decide"
    )
    return f"{decides}: {command} --promote, or --rollback"


def _milliseconds(number: float | None) -> str:
    return "-" if number is None else f"{number:.3g} ms"
