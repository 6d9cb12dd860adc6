"""A real Triton runs models in environments of their own."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import requests

from sm.triton import server
from tests.integration.environments.environments import run_pack_env
from tests.integration.environments.greeting_model import BODY, GREETING_MODEL
from tests.integration.environments.packed_environments import PackedEnvironment
from tests.support.other_triton import STUB_NEEDS_NUMPY_1
from tests.support.tritons import TritonProcess, prepare_triton


@pytest.fixture(scope="module")
def greeting_triton(
    packed_environment: PackedEnvironment, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TritonProcess]:
    """The model ``other`` has the environment, ``shares`` uses it, and ``packed`` has it as an archive."""
    triton = prepare_triton(tmp_path_factory.mktemp("greeting"), [])
    repository = triton.box.repository
    for name, environment in {"other": "env", "shares": "../other/env", "packed": "env.tar.gz"}.items():
        replace(GREETING_MODEL, environment=f"$$TRITON_MODEL_DIRECTORY/{environment}").write(
            repository / name
        )
    shutil.copytree(
        packed_environment.folder, repository / "other" / "env", symlinks=True, copy_function=os.link
    )
    archive = repository / "packed" / "env.tar.gz"
    completed = run_pack_env(
        "env",
        "--requirements",
        packed_environment.requirements,
        "-o",
        archive,
        cache=packed_environment.cache,
    )
    assert completed.returncode == 0, completed.stderr
    triton.start()
    yield triton
    triton.stop()


@pytest.mark.parametrize("name", ["other", "shares", "packed"])
def test_triton_runs_a_model_with_packages_that_the_box_lacks(
    greeting_triton: TritonProcess, name: str
) -> None:
    url = f"http://127.0.0.1:{greeting_triton.box.http_port}/v2/models/{name}/infer"
    response = requests.post(url, json=BODY, timeout=30)
    assert response.status_code == 200, (response.text, server.failures(greeting_triton.box.http_port))
    report, constant = response.json()["outputs"][0]["data"]
    environment = json.loads(report)
    assert (environment["word"], constant) == ("ahoy", "back")
    assert not STUB_NEEDS_NUMPY_1 or environment["numpy"].startswith("1.")
    assert Path(environment["prefix"]) in Path(environment["at"]).parents
    assert not Path(environment["prefix"]).is_relative_to(sys.prefix)
    assert not Path(environment["prefix"]).is_relative_to(sys.base_prefix)
