"""Show a box's numbers until the reader presses Ctrl-C, or once."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from sm.errors import StartError
from sm.settings import Settings
from sm.tools.top.box_numbers import BoxNumbers, read_api_key
from sm.tools.top.tables import BAD, show

INTERVAL_S = 2.0
#: Columns of a line that is read by a program or lies in a file: no table is folded.
PLAIN_COLUMNS = 200


def run(options: argparse.Namespace) -> int:
    """Return 0 when the reader has seen enough. A box that is not there at the beginning is an error."""
    url = options.url or f"http://localhost:{Settings.read(os.environ).port}"
    box = BoxNumbers(url, read_api_key(options.api_key) if options.api_key else "")
    numbers = box.read()
    if options.json:
        json.dump(numbers, sys.stdout, indent=2)
        sys.stdout.write("\n")
        return 0
    console = Console() if sys.stdout.isatty() else Console(width=PLAIN_COLUMNS)
    seen = show(numbers, box.url)
    if options.once or not console.is_terminal:
        console.print(seen)
        return 0
    # The alternate screen: what was in the terminal before comes back at the end.
    try:
        with Live(seen, console=console, screen=True, auto_refresh=False) as live:
            while True:
                time.sleep(INTERVAL_S)
                seen, failure = _look(box, seen)
                live.update(Group(Text(failure, BAD), seen) if failure else seen, refresh=True)
    except KeyboardInterrupt:
        return 0


def _look(box: BoxNumbers, before: Group) -> tuple[Group, str]:
    """Return the tables and, of a box that does not answer any more, the old ones with the reason."""
    try:
        return show(box.read(), box.url), ""
    except StartError as error:
        return before, str(error)
