"""The API key that a command sends to a box."""

from __future__ import annotations

from pathlib import Path

from sm.errors import CommandError


def read_api_key(file: Path | None) -> str:
    """Read the one key in the file of ``--api-key``; empty without a file. Raises :class:`CommandError`."""
    if file is None:
        return ""
    try:
        words = file.read_text(encoding="ascii").split()
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"--api-key {file} cannot be read: {error}.") from None
    if len(words) != 1:
        raise CommandError(f"--api-key {file} does not have one key and nothing else.")
    return words[0]
