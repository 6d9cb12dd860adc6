"""An environment travels in an archive, and the real box runs a model in it."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import requests

from tests.support.boxes import running_box
from tests.support.greeting_model import BODY, GREETS
from tests.support.package_repositories import packed, unpacked
from tests.support.packed_environments import Made


@pytest.fixture(scope="module")
def repository(made: Made, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """``other`` has the environment, ``shares`` uses it."""
    folder = tmp_path_factory.mktemp("travelling") / "repository"
    for name, where in {"other": "env", "shares": "../other/env"}.items():
        replace(GREETS, environment=f"$$TRITON_MODEL_DIRECTORY/{where}").write(folder / name)
    shutil.copytree(made.folder, folder / "other" / "env", symlinks=True, copy_function=os.link)
    yield folder


def word(response: requests.Response) -> str:
    assert response.status_code == 200, response.text
    return str(json.loads(response.json()["outputs"][0]["data"][0])["word"])


def test_one_archive_of_models_that_share_it(repository: Path, tmp_path: Path) -> None:
    packed(repository, cwd=tmp_path)
    served = unpacked(tmp_path / "model.tar.gz", tmp_path / "served")
    with running_box(tmp_path, served, clients=()) as box:
        for name in ("other", "shares"):
            answer = requests.post(f"{box.url}/v2/models/{name}/infer", json=BODY, timeout=60)
            assert word(answer) == "ahoy"


def test_in_multi_model_mode_each_archive_has_its_own(repository: Path, tmp_path: Path) -> None:
    packed(repository, "--mme", cwd=tmp_path)
    home = tmp_path / "models"
    folder = unpacked(tmp_path / "archives" / "shares.tar.gz", home / "h1" / "model")
    with running_box(tmp_path, None, SAGEMAKER_MULTI_MODEL="true", TRIREME_MODEL_ARCHIVES=str(home)) as box:
        body = {"model_name": "h1", "url": str(folder)}
        loaded = requests.post(f"{box.url}/models", json=body, timeout=120)
        assert loaded.status_code == 200, loaded.text
        assert word(requests.post(f"{box.url}/models/h1/invoke", json=BODY, timeout=60)) == "ahoy"
