"""Read a file that an operator names: a regular file of a limited size, and nothing else."""

from __future__ import annotations

from pathlib import Path


def read_bounded(path: Path, max_bytes: int, error: type[ValueError]) -> bytes:
    """Read the whole file.

    Args:
        path: the file.
        max_bytes: a longer file is refused.
        error: the class of what is raised.

    Raises:
        error: the file cannot be read, is too long, or is not a regular file. The message names the path and
            shows nothing of the content.
    """
    if path.exists() and not path.is_file():  # opening a fifo would block
        raise error(f"{path} is not a file")
    try:
        with path.open("rb") as file:
            content = file.read(max_bytes + 1)
    except OSError as failure:
        raise error(f"{path} cannot be read: {failure.strerror}") from None
    if len(content) > max_bytes:
        raise error(f"{path} is larger than {max_bytes} bytes")
    return content
