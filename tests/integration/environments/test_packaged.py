"""An archive can contain an environment, and the real box runs a model in it."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import requests

from tests.integration.environments.greeting_model import BODY, GREETING_MODEL
from tests.integration.environments.packed_environments import PackedEnvironment
from tests.support.box_fixture import Boxes
from tests.support.multi_model_endpoint import MultiModelEndpoint
from tests.support.package_repositories import package_successfully, unpack


@pytest.fixture(scope="module")
def repository(
    packed_environment: PackedEnvironment, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    """The model ``other`` has the environment, and the model ``shares`` uses the same one."""
    folder = tmp_path_factory.mktemp("travelling") / "repository"
    for name, environment in {"other": "env", "shares": "../other/env"}.items():
        replace(GREETING_MODEL, environment=f"$$TRITON_MODEL_DIRECTORY/{environment}").write(folder / name)
    shutil.copytree(packed_environment.folder, folder / "other" / "env", symlinks=True, copy_function=os.link)
    yield folder


def greeting_word(response: requests.Response) -> str:
    assert response.status_code == 200, response.text
    return str(json.loads(response.json()["outputs"][0]["data"][0])["word"])


@pytest.mark.exhaustive
def test_models_of_one_archive_may_share_an_environment(
    boxes: Boxes, repository: Path, tmp_path: Path
) -> None:
    package_successfully(repository, cwd=tmp_path)
    unpacked_repository = unpack(tmp_path / "model.tar.gz", tmp_path / "served")
    with boxes.own(unpacked_repository) as box:
        for name in ("other", "shares"):
            response = requests.post(f"{box.url}/v2/models/{name}/infer", json=BODY, timeout=60)
            assert greeting_word(response) == "ahoy"


@pytest.mark.exhaustive
def test_in_multi_model_mode_each_archive_has_a_copy_of_the_environment(
    boxes: Boxes, repository: Path, tmp_path: Path
) -> None:
    package_successfully(repository, "--mme", cwd=tmp_path)
    with boxes.own(mode="multi-model") as box:
        endpoint = MultiModelEndpoint(box)
        folder = endpoint.platform.home / "h1" / "model"
        endpoint.load_successfully("h1", str(unpack(tmp_path / "archives" / "shares.tar.gz", folder)))
        assert greeting_word(endpoint.invoke("h1", BODY)) == "ahoy"
