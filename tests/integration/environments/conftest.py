"""One packed environment for all tests of this folder: making it takes seconds."""

from __future__ import annotations

import pytest

from tests.integration.environments.environments import PackedEnvironment, run_pack_env, write_requirements


@pytest.fixture(scope="session")
def packed_environment(tmp_path_factory: pytest.TempPathFactory) -> PackedEnvironment:
    home = tmp_path_factory.mktemp("environments")
    packed = PackedEnvironment(write_requirements(home), home / "env", home / "cache")
    completed = run_pack_env("--requirements", packed.requirements, "-o", packed.folder, cache=packed.cache)
    assert completed.returncode == 0, completed.stderr
    assert 'string_value: "$$TRITON_MODEL_DIRECTORY/env"' in completed.stdout
    return packed
