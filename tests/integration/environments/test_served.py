"""A real Triton runs models in environments of their own."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from tests.integration.environments.environments import BODY, PackedEnvironment, greeting_model, run_pack_env
from tests.support.other_triton import STUB_NEEDS_NUMPY_1
from tests.support.tritons import TritonProcess, prepare_triton


@pytest.fixture(scope="module")
def triton(
    packed_environment: PackedEnvironment, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TritonProcess]:
    """The model ``other`` has the environment, ``shares`` uses it, and ``packed`` has it as an archive."""
    triton = prepare_triton(tmp_path_factory.mktemp("greeting"), [])
    repository = triton.box.repository
    for name, environment in {"other": "env", "shares": "../other/env", "packed": "env.tar.gz"}.items():
        greeting_model(environment).write(repository / name)
    packed, other = packed_environment, repository / "other" / "env"
    shutil.copytree(packed.folder, other, symlinks=True, copy_function=os.link)
    archive = repository / "packed" / "env.tar.gz"
    completed = run_pack_env("--requirements", packed.requirements, "-o", archive, cache=packed.cache)
    assert completed.returncode == 0, completed.stderr
    triton.start()
    yield triton
    triton.stop()


@pytest.mark.parametrize("name", ["other", "shares", "packed"])
def test_triton_runs_a_model_with_packages_that_the_box_lacks(triton: TritonProcess, name: str) -> None:
    url = f"http://127.0.0.1:{triton.box.http_port}/v2/models/{name}/infer"
    response = requests.post(url, json=BODY, timeout=30)
    assert response.status_code == 200, response.text
    report, constant = response.json()["outputs"][0]["data"]
    said = json.loads(report)
    assert (said["word"], constant) == ("ahoy", "back")
    assert not STUB_NEEDS_NUMPY_1 or said["numpy"].startswith("1.")
    assert Path(said["prefix"]) in Path(said["at"]).parents
    assert not Path(said["prefix"]).is_relative_to(sys.prefix)
    assert not Path(said["prefix"]).is_relative_to(sys.base_prefix)
