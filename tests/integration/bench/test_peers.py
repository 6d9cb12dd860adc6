"""Peers differ only in their server."""

from __future__ import annotations

from pathlib import Path

import pytest

from sm.settings import HERE

REQUIREMENTS = HERE / "bench" / "contestants"
#: The libraries that do the work in every peer.
COMMON_LIBRARIES = ("onnxruntime", "numpy", "opencv-python-headless", "pillow", "tokenizers")


@pytest.mark.parametrize("name", [path.stem for path in REQUIREMENTS.glob("*.txt")])
def test_each_peer_uses_the_same_library_versions_as_the_box(name: str) -> None:
    assert pinned_versions(REQUIREMENTS / f"{name}.txt") == pinned_versions(HERE / "requirements.lock")


def pinned_versions(requirements: Path) -> set[str]:
    """The lines that pin :data:`COMMON_LIBRARIES`, with their Python version markers, here or in included files."""
    lines = requirements.read_text().splitlines()
    included = (requirements.parent / line.removeprefix("-r ") for line in lines if line.startswith("-r "))
    lines += [line for file in included for line in file.read_text().splitlines()]
    return {line.removesuffix(" \\") for line in lines if line.split("==")[0] in COMMON_LIBRARIES}
