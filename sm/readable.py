"""Check that this process may read a model repository: a container without root rights often may not."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from sm.errors import StartError


def check_readable(repository: Path) -> None:
    """Raise :class:`StartError` for the first folder or file that this user may not read."""
    for path in unreadable(repository):
        raise StartError(
            f"{path} cannot be read by user {os.geteuid()}: make the models readable for everybody (chmod -R "
            "a+rX), or run the container as a user who may read them (docker run --user)."
        )


def unreadable(folder: Path) -> Iterator[Path]:
    """Yield every folder and file below ``folder`` that may not be read. Links are not followed."""
    listing_errors: list[OSError] = []
    for parent, folders, files in os.walk(folder, onerror=listing_errors.append):
        # Skip hidden folders, and one that file systems create.
        folders[:] = [name for name in folders if name != "lost+found" and not name.startswith(".")]
        # A folder that can be listed but not entered hides its files.
        if not os.access(parent, os.X_OK):
            yield Path(parent)
            continue
        for path in (Path(parent, name) for name in files if not name.startswith(".")):
            if not path.is_symlink() and not os.access(path, os.R_OK):
                yield path
    for error in listing_errors:
        if isinstance(error, PermissionError):
            yield Path(error.filename)
