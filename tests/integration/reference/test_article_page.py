"""docs/start/from-the-article.md: the article's code and ours on the page both run, with the same answers.

TensorRT and NVIDIA's base image are missing here: python models and the wheel's Triton stand in.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import requests

from sm.run_state import Box
from sm.settings import HERE, Settings
from sm.triton import server
from tests.integration.reference.article import JSON, PICTURES, request
from tests.integration.reference.article_repositories import write_bert, write_resnet, write_yolov5
from tests.integration.reference.usual_ports import PORTS, are_free, usual_ports
from tests.support.aws import REGION
from tests.support.box_fixture import Boxes
from tests.support.boxes import RunningBox, free_port, wait_until
from tests.support.other_triton import OTHER_TRITON
from tests.support.pages import code_blocks
from tests.support.played_aws import IMAGE, ROLE, Account, played_aws

PAGE = "start/from-the-article.md"
START_TIMEOUT_S = 120.0


def code_by_path() -> dict[str, str]:
    """The page's code blocks by the path in their first line."""
    blocks_by_path = {}
    for language in ("python", "nginx", "dockerfile"):
        for block in code_blocks(PAGE, language):
            path, _, code = block.partition("\n")
            blocks_by_path[path.removeprefix("# ")] = code
    return blocks_by_path


CODE = code_by_path()


@pytest.fixture(scope="module")
def repository(demo: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The article's model repository, with the client on the page."""
    folder = tmp_path_factory.mktemp("page") / "here"
    write_resnet(folder / "resnet", demo / "resnet" / "labels.txt")
    write_yolov5(folder / "yolov5s")
    write_bert(folder / "bert_base")
    client = folder / "code" / "resnet" / "client.py"
    client.parent.mkdir(parents=True)
    client.write_text(CODE["here/code/resnet/client.py"])
    return folder


@contextmanager
def start_articles_service(folder: Path, repository: Path) -> Iterator[str]:
    """Start the article's service as the page has it, with ``folder`` instead of /opt/program. Yields its URL."""
    port = free_port()

    def with_local_paths(code: str) -> str:
        code = code.replace("/tmp/", f"{folder}/")
        code = code.replace("/opt/program", str(folder))
        return code.replace("listen 8080", f"listen 127.0.0.1:{port}")

    for path, code in CODE.items():
        if path.startswith("there/") and path != "there/Dockerfile":
            target = folder / path.removeprefix("there/")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(with_local_paths(code))
    models = folder / "models"
    models.mkdir()
    (models / "resnet").symlink_to(repository / "resnet")
    write_tritonserver_command(folder, models)
    environment = {
        **os.environ,
        "PATH": f"{folder / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}:/usr/sbin",
        "MODEL_SERVER_WORKERS": "1",
    }
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "serve"],
            cwd=folder,
            env=environment,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        wait_until(lambda: triton_is_ready() or process.poll() is not None, START_TIMEOUT_S, "its Triton")
        assert process.poll() is None, (folder / "log").read_text()[-3000:]
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(30)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        wait_until(are_free, START_TIMEOUT_S, "the end of its Triton")


def make_enterable(folder: str) -> Path:
    """Let every user enter the folder."""
    Path(folder).chmod(0o755)
    return Path(folder)


def triton_is_ready() -> bool:
    try:
        return requests.get("http://127.0.0.1:8000/v2/health/ready", timeout=2).status_code == 200
    except requests.RequestException:
        return False


def write_tritonserver_command(folder: Path, models: Path) -> None:
    """Write a ``tritonserver`` command, as NVIDIA's image has one, that runs the tests' server on Triton's ports."""
    run = folder / "run"
    run.mkdir()
    box = Box(f"there{os.getpid()}", run, models, *PORTS, "nginx", 0)
    command = server.command(Settings.read(OTHER_TRITON), box, {"PATH": os.environ["PATH"]})
    arguments = [word for word in command.arguments if not word.startswith("--model-repository")]
    exports = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in command.environment.items())
    script = folder / "bin" / "tritonserver"
    script.parent.mkdir()
    script.write_text(f'#!/bin/sh\n{exports}exec {shlex.join(arguments)} "$@"\n')
    script.chmod(0o755)


def assert_same_rows(rows: list[str], expected: list[str]) -> None:
    assert [row.partition(":")[2] for row in rows] == [row.partition(":")[2] for row in expected]
    scores, expected_scores = ([float(row.partition(":")[0]) for row in lines] for lines in (rows, expected))
    # The two services decode a JPEG with different libraries.
    assert scores == pytest.approx(expected_scores, abs=0.05)


@pytest.mark.exhaustive
def test_the_articles_service_and_client_and_ours_give_the_same_answer(
    boxes: Boxes, repository: Path, tmp_path: Path
) -> None:
    """Its client, unchanged, calls our box's open ports; then its own service takes them."""
    body = request("resnet").encode()
    (tmp_path / "inference.py").write_text(CODE["there/resnet/inference.py"])
    program = "import json, sys, cv2; from inference import Resnet; "
    program += "print(json.dumps(Resnet().inference(cv2.imread(sys.argv[1]))))"
    with usual_ports():
        with boxes.own(repository, TRIREME_TRITON_PORTS="loopback") as box:
            ours = box.send(body, JSON, headers={"Accept": JSON}).json()
            completed = subprocess.run(
                [sys.executable, "-c", program, str(PICTURES["resnet"])],
                cwd=tmp_path,
                capture_output=True,
                text=True,
                check=True,
                timeout=60,
            )
        assert_same_rows(ours["result"], json.loads(completed.stdout))
        # nginx's workers run as another user and must reach the socket, as they do in /tmp itself.
        with (
            tempfile.TemporaryDirectory(prefix="article-") as folder,
            start_articles_service(make_enterable(folder), repository) as url,
        ):
            assert wait_until(lambda: requests.get(f"{url}/ping", timeout=5).status_code == 200)
            response = requests.post(
                f"{url}/invocations", data=body, headers={"Content-Type": JSON, "Accept": JSON}, timeout=60
            )
            assert response.status_code == 200, (Path(folder) / "log").read_text()[-3000:]
            assert requests.get(f"{url}/other", timeout=5).status_code == 404
    assert list(ours) == list(response.json()) == ["modelname", "result"]
    assert_same_rows(ours["result"], response.json()["result"])


@pytest.mark.exhaustive
def test_the_pages_one_command_serves_the_repository(repository: Path, tmp_path: Path) -> None:
    """The command as written, in a checkout with the repository in ``here``."""
    (command,) = code_blocks(PAGE)
    assert command == "TRIREME_MODEL_REPOSITORY=here ./serve\n"
    for name in ("serve", "sm", "clients", "nginx.conf"):
        (tmp_path / name).symlink_to(HERE / name)
    (tmp_path / "here").symlink_to(repository)
    port = free_port()
    environment = {**os.environ, "SAGEMAKER_BIND_TO_PORT": str(port)}
    environment["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            ["bash", "-c", f"exec env {command}"], cwd=tmp_path, env=environment, stdout=log, stderr=log
        )
    box = RunningBox(process, port, tmp_path / "log")
    try:
        box.wait_ready(START_TIMEOUT_S)
        assert len(box.send(request("resnet").encode()).json()["result"]) == 3
    finally:
        box.stop()


@pytest.mark.exhaustive
def test_the_notebooks_calls_run_on_the_simulated_platform(repository: Path, tmp_path: Path) -> None:
    """moto and a simulated host stand in for AWS. The box is real."""
    shutil.copy(PICTURES["yolov5"], tmp_path / "dog.jpg")
    with played_aws(tmp_path / "boxes") as aws:
        account = Account(aws.url)
        model_data = account.upload("article/model.tar.gz", repository)
        variables = {"image": IMAGE, "role": ROLE, "model_data": model_data}
        assignments = "".join(f"{name} = {value!r}\n" for name, value in variables.items())
        (tmp_path / "notebook.py").write_text(assignments + CODE["notebook.py"])
        keys = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
        completed = subprocess.run(
            [sys.executable, "notebook.py"],
            cwd=tmp_path,
            env={**os.environ, **keys, "AWS_ENDPOINT_URL": aws.url, "AWS_DEFAULT_REGION": REGION},
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        assert completed.returncode == 0, completed.stderr
        assert not account.sagemaker.list_endpoints()["Endpoints"]
    answers = [json.loads(line) for line in completed.stdout.splitlines()]
    assert [answer["modelname"] for answer in answers] == ["resnet", "yolov5", "bert_base"]
    assert len(answers[0]["result"]) == 3
    assert len(answers[2]["result"]) == 5
