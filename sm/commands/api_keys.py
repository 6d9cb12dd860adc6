"""``sm new-key``: create an API key for callers of a box."""

from __future__ import annotations

import argparse
import os
import sys
from functools import partial
from pathlib import Path

from sm.errors import CommandError
from sm.server.access import keys
from sm.server.access.keys import KeyFileError


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the options of ``sm new-key``."""
    command.add_argument(
        "name", metavar="NAME", help="the key's owner: the log shows this name, never the key"
    )
    command.add_argument(
        "--file", type=Path, metavar="FILE", help="append the line to this file and print only the key"
    )
    command.add_argument(
        "--rate", type=float, metavar="N", help="requests per second (default: TRIREME_RATE_LIMIT)"
    )
    command.add_argument(
        "--burst",
        type=int,
        metavar="N",
        help="requests at once after a pause (default: as many as in one second)",
    )


def run(options: argparse.Namespace) -> int:
    """Print the key, and its line unless that goes into a file."""
    key = keys.generate()
    line = keys.format_line(options.name, key, options.rate, options.burst)
    try:
        if options.file is None:
            keys.parse(line.encode(), Path("the line"))
            sys.stdout.write(f"key:  {key}\nline: {line}\n")
        else:
            append(line, options.file)
            sys.stdout.write(f"{key}\n")
            sys.stderr.write(f"{options.file} has the key's hash; the key itself is shown this once\n")
    except KeyFileError as error:
        raise CommandError(f"{error}.") from None
    return 0


def append(line: str, file: Path) -> None:
    """Add a line to a key file that a box may be reading. :class:`KeyFileError` if the result is invalid."""
    present = keys.read_file(file) if file.exists() else b""
    separator = b"" if not present or present.endswith(b"\n") else b"\n"
    addition = separator + line.encode() + b"\n"
    keys.parse(present + addition, file)
    try:
        with open(file, "ab", opener=partial(os.open, mode=0o600)) as stream:
            stream.write(addition)
    except OSError as error:
        raise KeyFileError(f"{file} cannot be written: {error.strerror}") from None
