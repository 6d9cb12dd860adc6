"""Models that are replaced while the box serves them, on a real box and a real Triton."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import requests

from sm.settings import HERE
from tests.support.boxes import RunningBox, running_box, wait_until
from tests.support.model_archives import multiplying_model
from tests.support.multi_model_endpoint import REQUEST_BODY

CLIENT = """
import numpy as np

from sm.client import Payload, TensorClient


class Numbers(Payload):
    x: list[float]


class Scaled(TensorClient):
    model, payload = "scaled", Numbers

    def setup(self):
        self.label = (self.repository / "scaled" / "label.txt").read_text()

    def preprocess(self, payload):
        return {"x": np.float32(payload.x)}

    def postprocess(self, outputs, payload):
        return [self.label, VERSION, outputs["y"].tolist()]
"""


def write(repository: Path, factor: int, failing: str = "", client: str = "") -> None:
    """Write a version of the model: weights, a file that its client reads, and the client."""
    staged = repository.parent / "staged"
    shutil.rmtree(staged, ignore_errors=True)
    multiplying_model(factor, failing=failing).write(staged)
    (staged / "label.txt").write_text(f"label {factor}")
    shutil.rmtree(repository / "scaled", ignore_errors=True)
    repository.mkdir(exist_ok=True)
    staged.rename(repository / "scaled")
    (repository / "code").mkdir(exist_ok=True)
    (repository / "code" / "scaled.py").write_text(
        (client or CLIENT).replace("VERSION", f'"client {factor}"')
    )


def push(box: RunningBox) -> requests.Response:
    return requests.post(f"{box.url}/models/scaled/versions", timeout=120)


def call(box: RunningBox) -> Any:
    answer = requests.post(
        f"{box.url}/invocations", json={"modelname": "scaled", "payload": {"x": [1, 2]}}, timeout=60
    )
    assert answer.status_code == 200, answer.text
    return answer.json()["result"]


def expected(factor: int) -> list[Any]:
    return [f"label {factor}", f"client {factor}", [factor, 2 * factor]]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningBox, Path]]:
    folder = tmp_path_factory.mktemp("versions")
    write(folder / "repository", 1)
    multiplying_model(7).write(folder / "repository" / "other")
    with running_box(
        folder,
        folder / "repository",
        clients=(),
        TRIREME_MODEL_POLL="0",
        TRIREME_DRAIN_SECONDS="1",
        SAGEMAKER_MODEL_SERVER_WORKERS="2",
    ) as box:
        yield box, folder / "repository"


def test_a_new_version_takes_the_place_of_the_old_one_on_every_route(shared: tuple[RunningBox, Path]) -> None:
    box, repository = shared
    assert call(box) == expected(1)
    write(repository, 2)
    assert call(box) == expected(1)
    answer = push(box)
    assert answer.json() == {"modelName": "scaled", "state": "serves"}, answer.text
    assert call(box) == expected(2)
    v2 = requests.post(f"{box.url}/v2/models/scaled/infer", json=REQUEST_BODY, timeout=60).json()
    assert (v2["model_name"], v2["outputs"][0]["data"]) == ("scaled", [2, 4])
    v2 = requests.post(
        f"{box.url}/invocations", params={"modelname": "scaled"}, json=REQUEST_BODY, timeout=60
    ).json()
    assert (v2["model_name"], v2["outputs"][0]["data"]) == ("scaled", [2, 4])
    assert requests.get(f"{box.url}/v2/models/scaled", timeout=60).json()["name"] == "scaled"
    assert 'model="scaled-' not in box.scrape().partition("nv_inference")[0]
    assert push(box).json()["state"] == "unchanged"
    assert box.ping()[0] == 200
    row = requests.get(f"{box.url}/models/scaled", timeout=10).json()
    assert row["ready"]
    wait_until(
        lambda: len(list((box.run_folder() / "repository").glob("scaled*"))) == 1, description="one left"
    )
    assert call(box) == expected(2)
    box.kill_and_wait_for_restart("triton")
    assert call(box) == expected(2)


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ({"failing": "RuntimeError('no weights')"}, "no weights"),
        ({"client": "import nothing_of_that_name"}, "nothing_of_that_name"),
        ({"client": CLIENT.replace("label.txt", "other.txt")}, "other.txt"),
    ],
)
def test_a_version_that_fails_leaves_the_old_one_serving(
    shared: tuple[RunningBox, Path], fault: dict[str, str], reason: str
) -> None:
    box, repository = shared
    before = call(box)
    write(repository, 9, **fault)
    answer = push(box)
    assert (answer.status_code, reason in answer.text) == (400, True), answer.text
    assert call(box) == before
    assert reason in requests.get(f"{box.url}/models/scaled", timeout=10).json()["version_error"]

    def is_logged() -> bool:
        # A version that failed before has such a line too, and this one's may come after the answer.
        lines = box.log.read_text().splitlines()
        return any("the old version serves on" in line and reason in line for line in lines)

    wait_until(is_logged, description="the reason in the log")
    assert box.metric("trireme_model_versions_total", model="scaled", outcome="failed") > 0
    assert box.ping()[0] == 200


def test_a_new_model_that_fails_is_listed_with_the_reason(shared: tuple[RunningBox, Path]) -> None:
    box, repository = shared
    multiplying_model(failing="RuntimeError('no weights')").write(repository / "broken")
    assert requests.post(f"{box.url}/models/broken/versions", timeout=120).status_code == 400
    row = requests.get(f"{box.url}/models/broken", timeout=10).json()
    assert (row["ready"], "no weights" in row["reason"]) == (False, True)
    shutil.rmtree(repository / "broken")


def test_a_version_whose_golden_answer_differs_is_refused(shared: tuple[RunningBox, Path]) -> None:
    box, repository = shared
    write(repository, 20)
    sample = repository / "code" / "scaled" / "sample"
    sample.mkdir(parents=True)
    (repository / "code" / "scaled.py").rename(sample.parent / "client.py")
    (sample / "payload.json").write_text('{"x": [1, 2]}')
    (sample / "golden.json").write_text(json.dumps(expected(20)))
    assert push(box).json()["state"] == "serves"
    multiplying_model(21).write(repository.parent / "wrong")
    shutil.copytree(repository.parent / "wrong", repository / "scaled", dirs_exist_ok=True)
    answer = push(box)
    assert (answer.status_code, "the golden answer of 'scaled' differs" in answer.text) == (400, True)
    assert call(box) == expected(20)
    shutil.rmtree(sample.parent)


def test_the_commands_of_the_page_replace_a_model(shared: tuple[RunningBox, Path]) -> None:
    box, repository = shared
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
    assert call(box) == ["label 30", "client 30", [32, 64]]


def test_what_is_written_to_the_repository_changes_nothing_before_it_is_pushed(tmp_path: Path) -> None:
    """Whatever is started again meanwhile: a worker, the model's process, Triton."""
    write(tmp_path / "repository", 1)
    with running_box(
        tmp_path,
        tmp_path / "repository",
        clients=(),
        TRIREME_MODEL_POLL="0",
        SAGEMAKER_MODEL_SERVER_WORKERS="1",
    ) as box:
        write(tmp_path / "repository", 2)
        os.kill(box.pid("triton_python_backend_stub"), signal.SIGKILL)
        assert call(box) == expected(1)
        box.kill_and_wait_for_restart("triton")
        before = box.workers()
        os.kill(before[0], signal.SIGKILL)
        wait_until(lambda: box.workers() not in ([], before), description="another worker")
        assert call(box) == expected(1)
        assert push(box).json()["state"] == "serves"
        assert call(box) == expected(2)


def test_callers_lose_nothing_while_versions_are_replaced(shared: tuple[RunningBox, Path]) -> None:
    box, repository = shared
    write(repository, 10)
    assert push(box).status_code == 200
    done, seen, failures = threading.Event(), Counter[int](), []

    def keep_calling() -> None:
        with requests.Session() as session:
            body = {"modelname": "scaled", "payload": {"x": [1, 2]}}
            while not done.is_set():
                answer = session.post(f"{box.url}/invocations", json=body, timeout=60)
                result = answer.json().get("result") if answer.status_code == 200 else None
                factor = int(result[2][0]) if result else 0
                if not result or result != expected(factor):
                    failures.append(answer.text)
                seen[factor] += 1

    with ThreadPoolExecutor(8) as pool:
        callers = [pool.submit(keep_calling) for _ in range(8)]
        for factor in range(11, 18):
            write(repository, factor)
            answer = push(box)
            assert answer.status_code == 200, answer.text
        time.sleep(0.5)
        done.set()
        for caller in callers:
            caller.result()
    assert failures == []
    assert set(seen) == {*range(10, 18)}
