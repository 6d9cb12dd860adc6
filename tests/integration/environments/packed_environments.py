"""Fixture: a packed environment that several tests share, because packing takes seconds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.integration.environments.environments import run_pack_env, write_requirements


@dataclass(frozen=True)
class PackedEnvironment:
    """The requirements, the packed folder and the cache of an environment."""

    requirements: Path
    folder: Path
    cache: Path


@pytest.fixture(scope="session")
def packed_environment(tmp_path_factory: pytest.TempPathFactory) -> PackedEnvironment:
    home = tmp_path_factory.mktemp("environments")
    environment = PackedEnvironment(write_requirements(home), home / "env", home / "cache")
    completed = run_pack_env(
        "env", "--requirements", environment.requirements, "-o", environment.folder, cache=environment.cache
    )
    assert completed.returncode == 0, completed.stderr
    assert 'string_value: "$$TRITON_MODEL_DIRECTORY/env"' in completed.stdout
    return environment
