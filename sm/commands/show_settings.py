"""``sm settings``: print every variable with its value and source."""

from __future__ import annotations

import argparse
import os
import sys

from sm import settings as variables


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("--markdown", action="store_true", help="print the rows of docs/run/settings.md")


def run(options: argparse.Namespace) -> int:
    """Print the table."""
    rows = variables.table({} if options.markdown else os.environ)
    if options.markdown:
        sys.stdout.writelines(f"{line}\n" for line in variables.markdown(rows))
        return 0
    for sentence in variables.find_misspelled(os.environ):
        sys.stderr.write(f"warning: {sentence}\n")
    width = max(len(row["name"].split()[0]) for row in rows)
    for row in rows:
        name, *others = row["name"].split()
        source = "(default)" if row["source"] == "default" else f"(environment: {row['source']})"
        other_names = f" Also: {', '.join(others)}." if others else ""
        sys.stdout.write(f"{name:<{width}}  {row['value'] or '-':<24} {source}\n")
        sys.stdout.write(f"{'':<{width}}  {row['help']}{other_names}\n")
    return 0
