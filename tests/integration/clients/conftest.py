"""A Triton with the real weights of the two clients, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sm.settings import Settings
from sm.triton.transport import Transport
from tests.support.tritons import SETTINGS, prepare_triton
from trireme_tools.prepare.demo import prepare


@pytest.fixture(scope="session")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("clients") / "repository"
    folder.mkdir()
    for name in ("bert_base", "resnet"):
        (folder / name).symlink_to(prepare(Settings.read({})) / name)
    return folder


@pytest.fixture(scope="session")
def transport(repository: Path) -> Iterator[Transport]:
    triton = prepare_triton(repository.parent, [])
    try:
        triton.start()
        connected = Transport(SETTINGS, triton.box)
        yield connected
        connected.close()
    finally:
        triton.stop()
