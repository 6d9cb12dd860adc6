"""The API key that a command sends to a box."""

from __future__ import annotations

from pathlib import Path

from sm.errors import StartError


def read_api_key(file: Path | None) -> str:
    """Read the one key in the file of ``--api-key``; empty without a file. Raises :class:`StartError`."""
    if file is None:
        return ""
    try:
        words = file.read_text(encoding="ascii").split()
    except (OSError, UnicodeDecodeError) as error:
        raise StartError(f"--api-key {file} cannot be read: {error}.") from None
    if len(words) != 1:
        raise StartError(f"--api-key {file} does not have one key and nothing else.")
    return words[0]
