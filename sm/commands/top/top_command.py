"""Show a box's numbers until the reader presses Ctrl-C, or once."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from sm.commands import local_boxes
from sm.commands.api_key import read_api_key
from sm.commands.top.box_numbers import BoxNumbers
from sm.commands.top.tables import BAD, show
from sm.errors import CommandError
from sm.settings import Settings, names_of


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--url", help="the box, such as http://localhost:8080; without it the one on this machine"
    )
    command.add_argument("--api-key", type=Path, metavar="FILE", help="a file with the box's API key")
    form = command.add_mutually_exclusive_group()
    form.add_argument("--once", action="store_true", help="print the tables once, and end")
    form.add_argument(
        "--json", action="store_true", help="print the numbers of the last minute once, as JSON, and end"
    )


INTERVAL_S = 2.0
#: Columns for programs and files, so that no table is wrapped.
PLAIN_COLUMNS = 200


def run(options: argparse.Namespace) -> int:
    """Show the tables; return 0 at Ctrl-C. Raises :class:`CommandError` if no box answers at the start."""
    box = BoxNumbers(options.url or find_url(), read_api_key(options.api_key))
    numbers = box.read()
    if options.json:
        json.dump(numbers, sys.stdout, indent=2)
        sys.stdout.write("\n")
        return 0
    console = Console() if sys.stdout.isatty() else Console(width=PLAIN_COLUMNS)
    tables = show(numbers, box.url)
    if options.once or not console.is_terminal:
        console.print(tables)
        return 0
    # The alternate screen: what was in the terminal before comes back at the end.
    try:
        with Live(tables, console=console, screen=True, auto_refresh=False) as live:
            while True:
                time.sleep(INTERVAL_S)
                tables, failure = _refresh(box, tables)
                live.update(Group(Text(failure, BAD), tables) if failure else tables, refresh=True)
    except KeyboardInterrupt:
        return 0


def find_url() -> str:
    """Return the address of the box on this machine: at the port that is set, else the newest."""
    boxes = local_boxes.running()
    if not boxes or any(name in os.environ for name in names_of("port")):
        return f"http://localhost:{Settings.read(os.environ).port}"
    if others := local_boxes.name_others(boxes[0], boxes, "--url"):
        sys.stderr.write(f"these are the numbers{others}\n")
    return boxes[0].url


def _refresh(box: BoxNumbers, before: Group) -> tuple[Group, str]:
    """Return the new tables; if the box does not answer, the old ones and the reason."""
    try:
        return show(box.read(), box.url), ""
    except CommandError as error:
        return before, str(error)
