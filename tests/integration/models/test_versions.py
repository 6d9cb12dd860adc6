"""Models that are replaced while the box serves them, on a real box and a real Triton."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import numpy as np
import pytest
import requests
import tritonclient.http

from sm.settings import HERE
from tests.integration.models.pushed_model import CLIENT, Pushed, expected, pushed, write
from tests.support.box_fixture import Boxes
from tests.support.boxes import wait_until
from tests.support.model_archives import multiplying_model
from tests.support.multi_model_endpoint import REQUEST_BODY


@pytest.fixture(scope="module")
def model(boxes: Boxes, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pushed]:
    folder = tmp_path_factory.mktemp("versions")
    multiplying_model(7).write(folder / "repository" / "other")
    with pushed(boxes, folder) as model:
        yield model


def test_a_new_version_takes_the_place_of_the_old_one_on_every_route(model: Pushed) -> None:
    box, repository = model.box, model.repository
    assert model.factor() == 1
    write(repository, 2)
    assert model.factor() == 1
    answer = model.push()
    assert answer.json() == {"modelName": "scaled", "state": "serves"}, answer.text
    assert model.factor() == 2
    for path in ("v2/models/scaled/infer", "invocations?modelname=scaled"):
        v2 = requests.post(f"{box.url}/{path}", json=REQUEST_BODY, timeout=60).json()
        assert (v2["model_name"], v2["outputs"][0]["data"]) == ("scaled", [2, 4])
    assert requests.get(f"{box.url}/v2/models/scaled", timeout=60).json()["name"] == "scaled"
    assert binary_answer(box.url) == ("scaled", [2, 4])
    assert 'model="scaled-' not in box.scrape().partition("nv_inference")[0]
    assert model.push().json()["state"] == "unchanged"
    assert box.ping()[0] == 200
    assert model.row()["ready"]
    wait_until(lambda: model.left() == 1, description="one left")
    assert model.factor() == 2
    box.kill_and_wait_for_restart("triton")
    assert model.factor() == 2


def binary_answer(url: str) -> tuple[str, list[float]]:
    """Ask Triton's own client, which sends and takes tensors in binary."""
    with tritonclient.http.InferenceServerClient(url.removeprefix("http://")) as triton:
        (tensor,) = REQUEST_BODY["inputs"]
        x = tritonclient.http.InferInput(tensor["name"], tensor["shape"], tensor["datatype"])
        x.set_data_from_numpy(np.array(tensor["data"], np.float32).reshape(tensor["shape"]))
        answer = triton.infer("scaled", [x])
        return answer.get_response()["model_name"], answer.as_numpy("y").ravel().tolist()


@pytest.mark.exhaustive
def test_what_is_written_to_the_repository_changes_nothing_before_it_is_pushed(model: Pushed) -> None:
    """Whatever is started again meanwhile: a worker, the model's process, Triton."""
    box, before = model.box, model.factor()
    wait_until(lambda: model.left() == 1, description="one version left")
    write(model.repository, 3)
    os.kill(box.pid("/repository/scaled"), signal.SIGKILL)
    assert model.factor() == before
    box.kill_and_wait_for_restart("triton")
    os.kill(box.workers()[0], signal.SIGKILL)
    box.wait_for_workers(2)
    assert {model.factor() for _ in range(12)} == {before}
    assert model.push().json()["state"] == "serves"
    assert model.factor() == 3


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ({"failing": "RuntimeError('no weights')"}, "no weights"),
        ({"client": "import nothing_of_that_name"}, "nothing_of_that_name"),
        ({"client": CLIENT.replace("label.txt", "other.txt")}, "other.txt"),
    ],
)
def test_a_version_that_fails_leaves_the_old_one_serving(
    model: Pushed, fault: dict[str, str], reason: str
) -> None:
    before = model.factor()
    write(model.repository, 9, **fault)
    answer = model.push()
    assert (answer.status_code, reason in answer.text) == (400, True), answer.text
    assert model.factor() == before
    assert reason in model.row()["version_error"]
    assert model.box.metric("trireme_model_versions_total", model="scaled", outcome="failed") > 0
    assert model.box.ping()[0] == 200


def test_a_version_whose_golden_answer_differs_is_refused(model: Pushed) -> None:
    repository = model.repository
    write(repository, 20)
    sample = repository / "code" / "scaled" / "sample"
    sample.mkdir(parents=True)
    (repository / "code" / "scaled.py").rename(sample.parent / "client.py")
    (sample / "payload.json").write_text('{"x": [1, 2]}')
    (sample / "golden.json").write_text(json.dumps(expected(20)))
    assert model.push().json()["state"] == "serves"
    multiplying_model(21).write(repository.parent / "wrong")
    shutil.copytree(repository.parent / "wrong", repository / "scaled", dirs_exist_ok=True)
    answer = model.push()
    assert answer.status_code == 400
    assert model.factor() == 20
    shutil.rmtree(sample.parent)


def test_the_commands_of_the_page_replace_a_model(model: Pushed) -> None:
    box, repository = model.box, model.repository
    page = (HERE / "docs/run/models.md").read_text().partition("## Replace while it runs")[2]
    (serve, *commands), canary = (
        block.splitlines() for block in re.findall(r"```sh\n(.*?)\n```", page, re.DOTALL)
    )
    assert serve.startswith("TRIREME_MODEL_POLL=0 sm serve")
    write(repository, 30)
    (repository / "scaled").rename(repository.parent / "new-cats")
    shutil.copytree(repository.parent / "new-cats", repository / "scaled")
    multiplying_model(31).write(repository.parent / "newer")
    shutil.copytree(repository.parent / "newer", repository.parent / "new-cats", dirs_exist_ok=True)
    multiplying_model(32).write(repository.parent / "newest-cats")
    for command in (*commands, "cp -r newest-cats/. /srv/models/cats/", *canary):
        for words, here in (
            ("sm push", f"{sys.executable} -m sm.cli push"),
            ("localhost:8080", f"localhost:{box.port}"),
            ("/srv/models", str(repository)),
        ):
            command = command.replace(words, here)
        command = re.sub(r"(?<!-)\bcats\b", "scaled", command)
        subprocess.run(command, shell=True, check=True, cwd=repository.parent)
    assert model.ask().json()["result"] == ["label 30", "client 30", [32, 64]]


@pytest.mark.exhaustive
def test_callers_lose_nothing_while_versions_are_replaced(model: Pushed) -> None:
    write(model.repository, 10)
    assert model.push().status_code == 200
    with model.callers(8) as statuses:
        for factor in range(11, 18):
            write(model.repository, factor)
            answer = model.push()
            assert answer.status_code == 200, answer.text
        time.sleep(0.5)
    assert set(statuses) == {"200"}
    assert model.seen == {*range(10, 18)}
