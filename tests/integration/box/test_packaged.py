"""Archives of ``sm package``, unpacked as the platform does and served by the real box."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from sm.settings import HERE
from tests.support.box_fixture import Boxes
from tests.support.multi_model_endpoint import MultiModelEndpoint
from tests.support.package_repositories import package_successfully, unpack, write_chain

SAMPLE = HERE / "clients" / "resnet" / "sample"


@pytest.mark.exhaustive
def test_the_packed_demo_gives_its_golden_answers(boxes: Boxes, demo: Path, tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    shutil.copytree(demo, repository, copy_function=lambda a, b: Path(b).hardlink_to(a))
    shutil.copytree(HERE / "clients" / "resnet", repository / "code" / "resnet_again")
    client = repository / "code" / "resnet_again" / "client.py"
    client.write_text(client.read_text())
    package_successfully(repository, cwd=tmp_path)
    unpacked_repository = unpack(tmp_path / "model.tar.gz", tmp_path / "served")
    with boxes.own(unpacked_repository) as box:
        for name in ("resnet", "resnet_again"):
            response = box.invoke(name, json.loads((SAMPLE / "payload.json").read_text()))
            assert response.status_code == 200, response.text
            assert [row.partition(":")[2] for row in response.json()["result"]] == [
                row.partition(":")[2] for row in json.loads((SAMPLE / "golden.json").read_text())
            ]


@pytest.mark.exhaustive
def test_copies_of_an_ensemble_and_a_models_own_client_are_loaded_side_by_side(
    boxes: Boxes, demo: Path, tmp_path: Path
) -> None:
    """In multi-model mode."""
    write_chain(tmp_path / "chain", "whole", "pre", "post")
    package_successfully("chain", "--mme", "--copies", 2, cwd=tmp_path)
    repository = tmp_path / "repository"
    shutil.copytree(demo / "resnet", repository / "resnet", copy_function=lambda a, b: Path(b).hardlink_to(a))
    shutil.copytree(HERE / "clients" / "resnet", repository / "code" / "resnet")
    package_successfully("repository", "--mme", cwd=tmp_path)
    with boxes.own(mode="multi-model") as box:
        endpoint = MultiModelEndpoint(box)
        for name in ("whole-1", "whole-2", "resnet"):
            folder = endpoint.platform.home / name / "model"
            endpoint.load_successfully(name, str(unpack(tmp_path / "archives" / f"{name}.tar.gz", folder)))
        assert [endpoint.infer_y(name) for name in ("whole-1", "whole-2")] == [[4, 8]] * 2
        response = endpoint.invoke("resnet", {"payload": json.loads((SAMPLE / "payload.json").read_text())})
        assert response.status_code == 200, response.text
        assert response.json()["result"][0].endswith(":espresso")
