"""The package is ``trireme-serving``: on the public index ``trireme`` is somebody else's."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from sm.settings import HERE

#: A name for an installer without ``-serving``: with an extra, with a version, or behind ``install``.
OTHER = re.compile(
    r"""(?<![\w./-])trireme(?:\[\w|[=~<>]=\s?\d)|\b(?:pip|pipx|uv|tool|install|versions|download)\s+['"]?trireme(?![\w./:-])"""
)
#: Folders that are not the repository's own, and results that nobody reads as instructions.
LEFT_OUT = {".git", ".venv", "build", "dist", "node_modules", "__pycache__", "vendor", "results"}
TEXT = {"", ".md", ".rst", ".py", ".toml", ".yml", ".yaml", ".sh", ".txt", ".json", ".html", ".js"}


def files() -> Iterator[Path]:
    for folder, folders, names in os.walk(HERE):
        folders[:] = [name for name in folders if name not in LEFT_OUT and not name.endswith("_cache")]
        yield from (Path(folder, name) for name in names if Path(name).suffix in TEXT)


def test_no_page_and_no_message_installs_somebody_elses_package() -> None:
    found, mentions = [], 0
    for path in files():
        text = path.read_text(encoding="utf-8", errors="replace")
        mentions += "trireme-serving" in text
        if path != Path(__file__):
            found += [f"{path.relative_to(HERE)}: {match[0]}" for match in OTHER.finditer(text)]
    assert mentions > 3
    assert found == []


@pytest.mark.parametrize(
    "wrong",
    ["pip install 'trireme[deploy]'", "pip install trireme", "pipx install trireme==1.0", "trireme>=0.2"],
)
def test_the_other_forms_are_found(wrong: str) -> None:
    assert OTHER.search(wrong)


@pytest.mark.parametrize(
    "right",
    ["pip install 'trireme-serving[deploy]'", "docker build -t trireme .", "~/.cache/trireme", "trireme:cpu"],
)
def test_the_right_forms_are_not(right: str) -> None:
    assert not OTHER.search(right)
