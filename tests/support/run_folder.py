"""The files of the run folder, as docs/inside/run-folder.md has them."""

from __future__ import annotations

import re
from pathlib import Path

from sm.settings import HERE

#: A file that replaces another has a process's number behind its name.
STAGED = re.compile(r"\.\d+$")


def names_on_the_page() -> set[str]:
    """Return the names in the first column of the page's table."""
    page = (HERE / "docs/inside/run-folder.md").read_text()
    cells = re.findall(r"^\| (`[^|]+) \|", page, re.M)
    return {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}


def unknown_files(folder: Path) -> set[str]:
    """Return the names of files in a run folder that the page does not have."""
    return {STAGED.sub("", path.name) for path in folder.iterdir()} - names_on_the_page()
