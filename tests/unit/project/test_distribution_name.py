"""The package is called ``trireme-serving``; on PyPI, ``trireme`` is somebody else's."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from sm.settings import HERE

#: ``trireme`` as the name of a distribution: with an extra, with a version, or after ``install``.
WRONG_NAME = re.compile(
    r"""(?<![\w./-])trireme(?:\[\w|[=~<>]=\s?\d)|\b(?:pip|pipx|uv|tool|install|versions|download)\s+['"]?trireme(?![\w./:-])"""
)
#: Folders that are not the repository's own, and benchmark results.
SKIPPED_FOLDERS = {".git", ".venv", "build", "dist", "node_modules", "__pycache__", "vendor", "results"}
TEXT_SUFFIXES = {"", ".md", ".rst", ".py", ".toml", ".yml", ".yaml", ".sh", ".txt", ".json", ".html", ".js"}


def text_files() -> Iterator[Path]:
    for folder, folders, names in os.walk(HERE):
        folders[:] = [name for name in folders if name not in SKIPPED_FOLDERS and not name.endswith("_cache")]
        yield from (Path(folder, name) for name in names if Path(name).suffix in TEXT_SUFFIXES)


def test_no_page_or_message_names_somebody_elses_package() -> None:
    wrong_mentions, files_with_the_name = [], 0
    for path in text_files():
        text = path.read_text(encoding="utf-8", errors="replace")
        files_with_the_name += "trireme-serving" in text
        if path != Path(__file__):
            wrong_mentions += [f"{path.relative_to(HERE)}: {match[0]}" for match in WRONG_NAME.finditer(text)]
    assert files_with_the_name > 3
    assert wrong_mentions == []
