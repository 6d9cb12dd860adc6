"""docs/start/from-the-article.md: its code runs, that of the article's design and ours, with the same answers.

TensorRT and NVIDIA's base image are not here: python models and the wheel's Triton stand in.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import requests

from sm.run_state import Box
from sm.settings import HERE, Settings
from sm.triton import server
from tests.support.aws import fake_aws
from tests.support.boxes import RunningBox, free_port, running_box, wait_until
from tests.support.pages import blocks
from tests.support.platform.account import IMAGE, ROLE, Account
from tests.support.platform.host import REGION, Host
from tests.support.platform.machines import Processes
from tests.support.reference.article import JSON, PICTURES, request
from tests.support.reference.repositories import write_bert, write_resnet, write_yolov5
from tests.support.reference.usual_ports import PORTS, are_free, usual_ports

PAGE = "start/from-the-article.md"
LONG = 120.0


def files() -> dict[str, str]:
    """The code of the page by the path in its first line."""
    found = {}
    for kind in ("python", "nginx", "dockerfile"):
        for block in blocks(PAGE, kind):
            path, _, code = block.partition("\n")
            found[path.removeprefix("# ")] = code
    return found


FILES = files()


@pytest.fixture(scope="module")
def repository(demo: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The article's, with the client that the page has."""
    folder = tmp_path_factory.mktemp("page") / "here"
    write_resnet(folder / "resnet", demo / "resnet" / "labels.txt")
    write_yolov5(folder / "yolov5s")
    write_bert(folder / "bert_base")
    client = folder / "code" / "resnet" / "client.py"
    client.parent.mkdir(parents=True)
    client.write_text(FILES["here/code/resnet/client.py"])
    return folder


@pytest.fixture(scope="module")
def ours(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBox]:
    with running_box(tmp_path_factory.mktemp("ours"), repository, clients=()) as box:
        yield box


@contextmanager
def theirs(folder: Path, repository: Path) -> Iterator[str]:
    """The page's service of the article's design, in ``folder`` in the place of /opt/program."""
    port = free_port()

    def local(code: str) -> str:
        code = code.replace("/tmp/", f"{folder}/")
        code = code.replace("/opt/program", str(folder))
        return code.replace("listen 8080", f"listen 127.0.0.1:{port}")

    for path, code in FILES.items():
        if path.startswith("there/") and path != "there/Dockerfile":
            target = folder / path.removeprefix("there/")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(local(code))
    models = folder / "models"
    models.mkdir()
    (models / "resnet").symlink_to(repository / "resnet")
    tritonserver(folder, models)
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
        wait_until(lambda: is_ready() or process.poll() is not None, LONG, "its Triton")
        assert process.poll() is None, (folder / "log").read_text()[-3000:]
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(30)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        wait_until(are_free, LONG, "the end of its Triton")


def shared(folder: str) -> Path:
    """A folder that every user may enter."""
    Path(folder).chmod(0o755)
    return Path(folder)


def is_ready() -> bool:
    try:
        return requests.get("http://127.0.0.1:8000/v2/health/ready", timeout=2).status_code == 200
    except requests.RequestException:
        return False


def tritonserver(folder: Path, models: Path) -> None:
    """The command, which NVIDIA's image has: the wheel's server on its usual ports."""
    run = folder / "run"
    run.mkdir()
    box = Box(f"there{os.getpid()}", run, models, *PORTS, "nginx", 0)
    command = server.command(Settings.read({}), box, {"PATH": os.environ["PATH"]})
    words = [word for word in command.arguments if not word.startswith("--model-repository")]
    variables = "".join(
        f"export {name}={shlex.quote(value)}\n" for name, value in command.environment.items()
    )
    script = folder / "bin" / "tritonserver"
    script.parent.mkdir()
    script.write_text(f'#!/bin/sh\n{variables}exec {shlex.join(words)} "$@"\n')
    script.chmod(0o755)


def assert_same(found: list[str], known: list[str]) -> None:
    assert [row.partition(":")[2] for row in found] == [row.partition(":")[2] for row in known]
    values, others = ([float(row.partition(":")[0]) for row in rows] for rows in (found, known))
    # The two decode a JPEG with libraries of their own.
    assert values == pytest.approx(others, abs=0.05)


def test_the_articles_service_and_ours_give_the_same_answer(repository: Path, ours: RunningBox) -> None:
    body = request("resnet").encode()
    # nginx' workers are another user's, and have to reach the socket, as they do in /tmp itself.
    with (
        usual_ports(),
        tempfile.TemporaryDirectory(prefix="article-") as made,
        theirs(shared(made), repository) as url,
    ):
        assert wait_until(lambda: requests.get(f"{url}/ping", timeout=5).status_code == 200)
        response = requests.post(
            f"{url}/invocations", data=body, headers={"Content-Type": JSON, "Accept": JSON}, timeout=60
        )
        assert response.status_code == 200, (Path(made) / "log").read_text()[-3000:]
        assert requests.get(f"{url}/other", timeout=5).status_code == 404
    found = ours.send(body, JSON, headers={"Accept": JSON}).json()
    assert list(found) == list(response.json()) == ["modelname", "result"]
    assert_same(found["result"], response.json()["result"])


def test_the_articles_client_works_as_it_is_on_our_open_ports(
    repository: Path, ours: RunningBox, tmp_path: Path
) -> None:
    client = tmp_path / "inference.py"
    client.write_text(FILES["there/resnet/inference.py"])
    program = "import json, sys, cv2; from inference import Resnet; "
    program += "print(json.dumps(Resnet().inference(cv2.imread(sys.argv[1]))))"
    with usual_ports(), running_box(tmp_path, repository, clients=(), TRIREME_TRITON_PORTS="loopback"):
        completed = subprocess.run(
            [sys.executable, "-c", program, str(PICTURES["resnet"])],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
    assert_same(ours.send(request("resnet").encode()).json()["result"], json.loads(completed.stdout))


def test_the_pages_one_command_serves_the_repository(repository: Path, tmp_path: Path) -> None:
    """As written, in a checkout that has the repository in ``here``."""
    (command,) = blocks(PAGE)
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
        box.wait_ready(LONG)
        assert len(box.send(request("resnet").encode()).json()["result"]) == 3
    finally:
        box.stop()


def test_the_notebooks_calls_run_on_the_played_platform(repository: Path, tmp_path: Path) -> None:
    """AWS is moto and a host of ours; the box is real."""
    shutil.copy(PICTURES["yolov5"], tmp_path / "dog.jpg")
    with fake_aws() as address:
        host = Host(f"http://{address}", Processes(), tmp_path / "machines")
        (tmp_path / "machines").mkdir()
        with host.follow():
            account = Account(host.url)
            given: dict[str, Any] = {
                "image": IMAGE,
                "role": ROLE,
                "model_data": account.upload("article/model.tar.gz", repository),
            }
            head = "".join(f"{name} = {value!r}\n" for name, value in given.items())
            (tmp_path / "notebook.py").write_text(head + FILES["notebook.py"])
            completed = subprocess.run(
                [sys.executable, "notebook.py"],
                cwd=tmp_path,
                env={
                    **os.environ,
                    "AWS_ENDPOINT_URL": host.url,
                    "AWS_DEFAULT_REGION": REGION,
                    "AWS_ACCESS_KEY_ID": "test",
                    "AWS_SECRET_ACCESS_KEY": "test",
                },
                capture_output=True,
                text=True,
                check=False,
                timeout=300,
            )
            assert completed.returncode == 0, completed.stderr
            wait_until(lambda: not account.sagemaker.list_endpoints()["Endpoints"], description="no endpoint")
    answers = [json.loads(line) for line in completed.stdout.splitlines()]
    assert [answer["modelname"] for answer in answers] == ["resnet", "yolov5", "bert_base"]
    assert len(answers[0]["result"]) == 3
    assert len(answers[2]["result"]) == 5


def test_every_block_of_the_page_is_run_here() -> None:
    """What the tests above take by its path; the Dockerfiles' bases cannot be had here."""
    text = (HERE / "docs" / PAGE).read_text()
    assert len(FILES) + len(blocks(PAGE)) == len(re.findall(r"^```\w+$", text, re.M))
    assert set(FILES) == {
        "there/resnet/inference.py",
        "there/predictor.py",
        "there/serve",
        "there/nginx.conf",
        "there/Dockerfile",
        "here/code/resnet/client.py",
        "here/Dockerfile",
        "notebook.py",
    }
