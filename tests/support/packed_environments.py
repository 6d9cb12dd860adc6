"""One environment for all of these tests: making it takes seconds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.environments import pack, requirements


@dataclass(frozen=True)
class Made:
    """What was asked for, where it is, and the cache it is in."""

    requirements: Path
    folder: Path
    cache: Path


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    home = tmp_path_factory.mktemp("environments")
    asked = Made(requirements(home), home / "env", home / "cache")
    done = pack("env", "--requirements", asked.requirements, "-o", asked.folder, cache=asked.cache)
    assert done.returncode == 0, done.stderr
    assert 'string_value: "$$TRITON_MODEL_DIRECTORY/env"' in done.stdout
    return asked
