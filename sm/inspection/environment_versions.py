"""Find the Python version of a model's environment without unpacking it."""

from __future__ import annotations

import io
import re
import tarfile
import time
from collections.abc import Iterable
from pathlib import Path

#: For reading an archive's first files. After that the version is unknown.
MAX_READ_S = 3.0
#: The path of a file of Python in an environment. It leaves out ``python3.1``, a link that conda creates for
#: Python 3.10 and later.
LIBRARY = re.compile(r"^(?:\./)?lib/(?:lib)?python(3\.(?!1(?:/|$|\.so))\d+)(?:/|\.so|$)")


class _TimeLimitedFile(io.RawIOBase):
    """A file whose reads raise TimeoutError once the time is over."""

    def __init__(self, path: Path, seconds: float) -> None:
        self._file, self._deadline = path.open("rb", buffering=0), time.monotonic() + seconds

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        if time.monotonic() > self._deadline:
            raise TimeoutError
        return self._file.readinto(buffer)  # type: ignore[arg-type]

    def close(self) -> None:
        self._file.close()
        super().close()


def find_python(environment: Path, seconds: float = MAX_READ_S) -> str:
    """Return the minor version, such as 3.12; empty if it cannot be told in time."""
    try:
        if environment.is_dir():
            return _first_version(f"lib/{path.name}" for path in sorted((environment / "lib").iterdir()))
        with (
            io.BufferedReader(_TimeLimitedFile(environment, seconds)) as file,
            tarfile.open(fileobj=file, mode="r|*") as archive,
        ):
            return _first_version(member.name for member in archive)
    except (OSError, EOFError, tarfile.TarError):
        return ""


def _first_version(names: Iterable[str]) -> str:
    return next((match[1] for name in names if (match := LIBRARY.match(name))), "")
