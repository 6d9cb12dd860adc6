"""What a build reads: the files of the checkout that the image is made of, and what makes it."""

from __future__ import annotations

import hashlib
import io
import re
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from sm.errors import CommandError

IGNORE_FILE = ".dockerignore"
#: What is needed, whatever the ignore file says.
NEEDED = (IGNORE_FILE, "Dockerfile", "build_and_push.sh")
#: Bytes of the packed files. More is a model or a cache by mistake.
MAX_BYTES = 50 << 20
#: The time of all files, so that the same files are the same archive.
EPOCH = (1980, 1, 1, 0, 0, 0)


def pack(folder: Path) -> bytes:
    """Return the archive. Raises :class:`CommandError` if it is too large."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted({*NEEDED, *files(folder)}):
            source = folder / name
            if source.is_file():
                entry = zipfile.ZipInfo(name, EPOCH)
                entry.compress_type = zipfile.ZIP_DEFLATED
                entry.external_attr = (0o755 if source.stat().st_mode & 0o100 else 0o644) << 16
                archive.writestr(entry, source.read_bytes())
            if packed.tell() > MAX_BYTES:
                raise CommandError(
                    f"the files for the build have over {MAX_BYTES >> 20} MB, packed, with {name}: "
                    f"what the image does not need belongs in {folder / IGNORE_FILE}."
                )
    return packed.getvalue()


def files(folder: Path) -> Iterator[str]:
    """Yield the files that the ignore file lets a build see, as Docker reads it."""
    path = folder / IGNORE_FILE
    patterns = read_patterns(path.read_text("utf-8") if path.exists() else "")
    for file in folder.rglob("*"):
        name = file.relative_to(folder).as_posix()
        if file.is_file() and not name.startswith(".git/") and not is_ignored(name, patterns):
            yield name


Pattern = tuple[re.Pattern[str], bool]


def read_patterns(text: str) -> list[Pattern]:
    """Return each line's pattern, and whether it ignores (a line with ``!`` does not)."""
    patterns = []
    for line in (line.strip() for line in text.splitlines()):
        if line and not line.startswith("#"):
            pattern = line.removeprefix("!").strip().strip("/")
            patterns.append((re.compile(_to_regex(pattern)), not line.startswith("!")))
    return patterns


def is_ignored(name: str, patterns: Sequence[Pattern]) -> bool:
    """True if the last pattern that matches the name, or a folder above it, ignores."""
    parts = name.split("/")
    paths = ["/".join(parts[: count + 1]) for count in range(len(parts))]
    ignored = False
    for pattern, ignores in patterns:
        if any(pattern.fullmatch(path) for path in paths):
            ignored = ignores
    return ignored


def _to_regex(pattern: str) -> str:
    """Translate Go's ``filepath.Match`` with Docker's ``**``."""
    translated = ""
    for part in re.findall(r"\*\*/?|\*|\?|\[[^\]]*\]|\\.|.", pattern):
        if part in ("**", "**/"):
            translated += "(?:.*/)?" if part == "**/" else ".*"
        elif part in ("*", "?"):
            translated += "[^/]*" if part == "*" else "[^/]"
        else:
            translated += (
                part if part.startswith("[") and len(part) > 1 else re.escape(part.removeprefix("\\") or part)
            )
    return translated


def digest(*contents: bytes) -> str:
    """Return what tells builds of different content apart."""
    found = hashlib.sha256()
    for content in contents:
        found.update(hashlib.sha256(content).digest())
    return found.hexdigest()
