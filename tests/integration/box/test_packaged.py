"""Archives of ``sm package``, unpacked as the platform does and served by the real box."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import requests

from sm.settings import HERE
from tests.support.boxes import running_box
from tests.support.echo_requests import ECHO_REQUEST
from tests.support.package_repositories import package_successfully, unpack, write_chain

SAMPLE = HERE / "clients" / "resnet" / "sample"


def load_model(url: str, name: str, folder: Path) -> None:
    response = requests.post(f"{url}/models", json={"model_name": name, "url": str(folder)}, timeout=120)
    assert response.status_code == 200, response.text


@pytest.mark.exhaustive
def test_the_packed_demo_gives_its_golden_answers(demo: Path, tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    shutil.copytree(demo, repository, copy_function=lambda a, b: Path(b).hardlink_to(a))
    shutil.copytree(HERE / "clients" / "resnet", repository / "code" / "resnet_again")
    client = repository / "code" / "resnet_again" / "client.py"
    client.write_text(client.read_text())
    package_successfully(repository, cwd=tmp_path)
    unpacked_repository = unpack(tmp_path / "model.tar.gz", tmp_path / "served")
    with running_box(tmp_path, unpacked_repository, clients=()) as box:
        for name in ("resnet", "resnet_again"):
            response = box.invoke(name, json.loads((SAMPLE / "payload.json").read_text()))
            assert response.status_code == 200, response.text
            assert [row.partition(":")[2] for row in response.json()["result"]] == [
                row.partition(":")[2] for row in json.loads((SAMPLE / "golden.json").read_text())
            ]


def test_copies_of_an_ensemble_are_loaded_side_by_side_in_multi_model_mode(tmp_path: Path) -> None:
    write_chain(tmp_path / "repository", "whole", "pre", "post")
    package_successfully("repository", "--mme", "--copies", 2, cwd=tmp_path)
    archives = tmp_path / "models"
    with running_box(
        tmp_path, None, SAGEMAKER_MULTI_MODEL="true", TRIREME_MODEL_ARCHIVES=str(archives)
    ) as box:
        for name in ("whole-1", "whole-2"):
            load_model(
                box.url, name, unpack(tmp_path / "archives" / f"{name}.tar.gz", archives / name / "model")
            )
        for name in ("whole-1", "whole-2"):
            response = requests.post(f"{box.url}/models/{name}/invoke", json=ECHO_REQUEST, timeout=30)
            assert response.json()["outputs"][0]["data"] == [4, 8]


def test_a_models_own_client_serves_its_archive_in_multi_model_mode(demo: Path, tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    shutil.copytree(demo / "resnet", repository / "resnet", copy_function=lambda a, b: Path(b).hardlink_to(a))
    shutil.copytree(HERE / "clients" / "resnet", repository / "code" / "resnet")
    package_successfully("repository", "--mme", cwd=tmp_path)
    archives = tmp_path / "models"
    folder = unpack(tmp_path / "archives" / "resnet.tar.gz", archives / "cats" / "model")
    with running_box(
        tmp_path, None, SAGEMAKER_MULTI_MODEL="true", TRIREME_MODEL_ARCHIVES=str(archives)
    ) as box:
        load_model(box.url, "cats", folder)
        body = {"payload": json.loads((SAMPLE / "payload.json").read_text())}
        response = requests.post(f"{box.url}/models/cats/invoke", json=body, timeout=60)
        assert response.status_code == 200, response.text
        assert response.json()["result"][0].endswith(":espresso")
