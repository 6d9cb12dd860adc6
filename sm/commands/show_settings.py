"""``sm settings``: print every variable with its value and source."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from dataclasses import fields

from sm.settings import Settings, find_misspelled, format_value, help_texts, source


def add_arguments(_: argparse.ArgumentParser) -> None:
    """Add nothing: the environment has the settings."""


def run(_: argparse.Namespace) -> int:
    """Print the table."""
    rows = table(os.environ)
    for sentence in find_misspelled(os.environ):
        sys.stderr.write(f"warning: {sentence}\n")
    width = max(len(row["name"].split()[0]) for row in rows)
    for row in rows:
        name, *others = row["name"].split()
        origin = "(default)" if row["source"] == "default" else f"(environment: {row['source']})"
        other_names = f" Also: {', '.join(others)}." if others else ""
        sys.stdout.write(f"{name:<{width}}  {row['value'] or '-':<24} {origin}\n")
        sys.stdout.write(f"{'':<{width}}  {row['help']}{other_names}\n")
    return 0


def table(environment: Mapping[str, str]) -> list[dict[str, str]]:
    """Return every setting with its value and the source of the value, for people to read."""
    current, helps = Settings.read(environment), help_texts()
    rows = []
    for row in fields(Settings):
        name = source(row.metadata["names"], environment)
        rows.append(
            {
                "name": " ".join(row.metadata["names"]),
                "value": format_value(getattr(current, row.name)),
                "source": name or "default",
                "help": helps[row.name],
            }
        )
    return rows
