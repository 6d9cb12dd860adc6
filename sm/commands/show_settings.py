"""``sm settings``: print every variable with its value and source."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from dataclasses import fields

from sm.settings import HERE, Settings, find_misspelled, format_value, help_texts, source, user_cache


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("--markdown", action="store_true", help="print the rows of docs/run/settings.md")


def run(options: argparse.Namespace) -> int:
    """Print the table."""
    rows = table({} if options.markdown else os.environ)
    if options.markdown:
        sys.stdout.writelines(f"{line}\n" for line in markdown(rows))
        return 0
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


def markdown(rows: list[dict[str, str]]) -> list[str]:
    """Return the rows as the lines of a Markdown table; paths of this machine are shortened."""
    caches = user_cache()
    short = {f"{HERE}/": "", str(caches): "~/.cache", str(caches.parent): "~"}
    lines = ["| variable | default | effect |", "|---|---|---|"]
    for row in rows:
        first, *others = row["name"].split()
        value = row["value"]
        for path, shorter in short.items():
            value = value.replace(path, shorter)
        also = f" Also read from {', '.join(f'`{name}`' for name in others)}." if others else ""
        lines.append(f"| `{first}` | {f'`{value}`' if value else ''} | {row['help']}{also} |")
    return lines
