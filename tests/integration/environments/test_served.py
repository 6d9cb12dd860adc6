"""Models in environments of their own, run by a real Triton."""

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
from tests.support.environments import pack
from tests.support.greeting_model import BODY, GREETS
from tests.support.packed_environments import Made
from tests.support.tritons import TritonProcess, prepare_triton


@pytest.fixture(scope="module")
def greeting(made: Made, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonProcess]:
    """``other`` has the environment, ``shares`` uses it, ``packed`` has it as an archive."""
    serving = prepare_triton(tmp_path_factory.mktemp("greeting"), [])
    repository = serving.box.repository
    for name, where in {"other": "env", "shares": "../other/env", "packed": "env.tar.gz"}.items():
        replace(GREETS, environment=f"$$TRITON_MODEL_DIRECTORY/{where}").write(repository / name)
    shutil.copytree(made.folder, repository / "other" / "env", symlinks=True, copy_function=os.link)
    archive = repository / "packed" / "env.tar.gz"
    completed = pack("env", "--requirements", made.requirements, "-o", archive, cache=made.cache)
    assert completed.returncode == 0, completed.stderr
    serving.start()
    yield serving
    serving.stop()


@pytest.mark.parametrize("name", ["other", "shares", "packed"])
def test_triton_runs_a_model_with_packages_that_the_box_has_not(greeting: TritonProcess, name: str) -> None:
    url = f"http://127.0.0.1:{greeting.box.http_port}/v2/models/{name}/infer"
    response = requests.post(url, json=BODY, timeout=30)
    assert response.status_code == 200, (response.text, server.failures(greeting.box.http_port))
    said, back = response.json()["outputs"][0]["data"]
    seen = json.loads(said)
    assert (seen["word"], back) == ("ahoy", "back")
    assert sys.version_info >= (3, 13) or seen["numpy"].startswith("1.")
    assert Path(seen["prefix"]) in Path(seen["at"]).parents
    assert not Path(seen["prefix"]).is_relative_to(sys.prefix)
    assert not Path(seen["prefix"]).is_relative_to(sys.base_prefix)
