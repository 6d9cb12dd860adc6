"""Print the rows of docs/run/settings.md: ``python -m tests.support.settings_page``."""

from __future__ import annotations

import sys

from sm.commands.show_settings import table
from sm.settings import HERE, user_cache


def markdown() -> list[str]:
    """Return the settings as the lines of a Markdown table; paths of this machine are shortened."""
    caches = user_cache()
    short = {f"{HERE}/": "", str(caches): "~/.cache", str(caches.parent): "~"}
    lines = ["| variable | default | effect |", "|---|---|---|"]
    for row in table({}):
        first, *others = row["name"].split()
        value = row["value"]
        for path, shorter in short.items():
            value = value.replace(path, shorter)
        also = f" Also read from {', '.join(f'`{name}`' for name in others)}." if others else ""
        lines.append(f"| `{first}` | {f'`{value}`' if value else ''} | {row['help']}{also} |")
    return lines


if __name__ == "__main__":
    sys.stdout.writelines(f"{line}\n" for line in markdown())
