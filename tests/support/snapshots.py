"""Compare generated text with a file in ``tests/snapshots``; ``make snapshots`` writes the files again.

Plain files of the text's own type, which people and their tools read, and no plugin that every process loads.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping

from sm.settings import HERE

FOLDER = HERE / "tests" / "snapshots"
#: ``make snapshots`` sets it, after it has removed the files.
RENEWS = os.environ.get("TRIREME_RENEW_SNAPSHOTS") == "true"


def check_snapshot(name: str, text: str) -> None:
    """Check that the text is the file's. Versions, dates and paths have no place in it."""
    path = FOLDER / name
    if RENEWS:
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, "utf-8")
    kept = path.read_text("utf-8") if path.exists() else ""
    assert text.splitlines() == kept.splitlines(), f"{name} has changed; if it should, run: make snapshots"


def changes(plain: str, others: Mapping[str, str]) -> str:
    """Return the lines in which each of the other texts differs from the plain one."""
    lines = []
    for title, text in others.items():
        # Without the numbers of the lines, which one new line would change everywhere.
        difference = difflib.unified_diff(plain.splitlines(), text.splitlines(), n=1, lineterm="")
        lines += [
            "",
            f"# {title}",
            *("@@" if line.startswith("@@") else line for line in list(difference)[2:]),
        ]
    return "\n".join(lines[1:]) + "\n"
