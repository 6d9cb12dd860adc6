"""Files that all contestants of a benchmark use, prepared once."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import files
from sm.settings import Settings
from trireme_tools.prepare.demo import prepare


@pytest.fixture(scope="session")
def contestant_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    settings = Settings.read({})
    prepare(settings)
    folder = tmp_path_factory.mktemp("files")
    files.prepare(folder, settings)
    return folder
