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
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import requests

from sm.run_state import Box
from sm.settings import HERE, Settings
from sm.triton import server
from tests.integration.reference.article import (
    JSON,
    PICTURES,
    request,
    write_repository,
)
from tests.support.aws import ENVIRONMENT, REGION
from tests.support.boxes import RunningBox, free_port, free_ports
from tests.support.other_triton import OTHER_TRITON
from tests.support.pages import code_blocks
from tests.support.played_aws import IMAGE, ROLE, played_aws

PAGE = "start/from-the-article.md"
START_TIMEOUT_S = 120.0
#: Triton's, for HTTP, gRPC and metrics.
Ports = tuple[int, int, int]
#: The page's code blocks by the path in their first line.
CODE = {
    path.removeprefix("# "): code
    for language in ("python", "nginx", "dockerfile")
    for path, _, code in (block.partition("\n") for block in code_blocks(PAGE, language))
}
PATH = f"{Path(sys.executable).parent}:{os.environ['PATH']}:/usr/sbin"
CALL_TRITON = """
import json, sys, cv2
from inference import Resnet
print(json.dumps(Resnet().inference(cv2.imread(sys.argv[1]))))
"""


@pytest.fixture(scope="module")
def repository(demo: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The article's model repository, with the client on the page."""
    folder = write_repository(tmp_path_factory.mktemp("page") / "here", demo)
    client = folder / "code" / "resnet" / "client.py"
    client.parent.mkdir(parents=True)
    client.write_text(CODE["here/code/resnet/client.py"])
    return folder


@contextmanager
def running(command: list[str], folder: Path, port: int, **environment: str) -> Iterator[RunningBox]:
    """Run a command in a session of its own, with its output in ``folder/log``, and end all of it."""
    variables = {**os.environ, "PATH": PATH, **environment}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            command, cwd=folder, env=variables, stdout=log, stderr=log, start_new_session=True
        )
    try:
        yield RunningBox(process, port, folder / "log")
    finally:
        process.terminate()
        process.wait(30)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)


@contextmanager
def articles_service(folder: Path, repository: Path, ports: Ports) -> Iterator[str]:
    """Run the article's service as the page has it, with ``folder`` instead of /opt/program and free ports for its
    Triton. Yields its URL.
    """
    port = free_port()
    for path, code in CODE.items():
        if path.startswith("there/") and path != "there/Dockerfile":
            code = with_port(code, ports).replace("/tmp/", f"{folder}/").replace("/opt/program", str(folder))
            target = folder / path.removeprefix("there/")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(code.replace("listen 8080", f"listen 127.0.0.1:{port}"))
    (folder / "models").mkdir()
    (folder / "models" / "resnet").symlink_to(repository / "resnet")
    write_tritonserver_command(folder, ports)
    environment = {"PATH": f"{folder / 'bin'}:{PATH}", "MODEL_SERVER_WORKERS": "1"}
    with running([sys.executable, "serve"], folder, port, **environment) as service:
        service.wait_ready(START_TIMEOUT_S)
        yield service.url


def with_port(code: str, ports: Ports) -> str:
    """Return a page's code with another port of Triton's gRPC: a Triton of this machine may have the usual one."""
    return code.replace("localhost:8001", f"localhost:{ports[1]}")


def write_tritonserver_command(folder: Path, ports: Ports) -> None:
    """Write a ``tritonserver`` command, as NVIDIA's image has one, that runs the tests' server on these ports."""
    (folder / "run").mkdir()
    box = Box(f"there{os.getpid()}", folder / "run", folder / "models", *ports, "nginx", 0)
    command = server.command(Settings.read(OTHER_TRITON), box, {"PATH": os.environ["PATH"]})
    arguments = [word for word in command.arguments if not word.startswith("--model-repository")]
    exports = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in command.environment.items())
    script = folder / "bin" / "tritonserver"
    script.parent.mkdir()
    script.write_text(f'#!/bin/sh\n{exports}exec {shlex.join(arguments)} "$@"\n')
    script.chmod(0o755)


def assert_same_rows(rows: list[str], expected: list[str]) -> None:
    for row, expected_row in zip(rows, expected, strict=True):
        (score, label), (expected_score, expected_label) = row.split(":", 1), expected_row.split(":", 1)
        assert label == expected_label
        # The two services decode a JPEG with different libraries.
        assert float(score) == pytest.approx(float(expected_score), abs=0.05)


@pytest.mark.exhaustive
def test_the_articles_service_and_client_and_ours_give_the_same_answer(
    repository: Path, tmp_path: Path, short_path: Path
) -> None:
    """Its client and its service, unchanged, and the page's one command for ours, in a checkout beside ``here``."""
    (command,) = code_blocks(PAGE)
    for name in ("serve", "sm", "clients", "nginx.conf"):
        (tmp_path / name).symlink_to(HERE / name)
    (tmp_path / "here").symlink_to(repository)
    http, grpc, metrics = free_ports(3)
    ports = http, grpc, metrics
    (tmp_path / "inference.py").write_text(with_port(CODE["there/resnet/inference.py"], ports))
    short_path.chmod(0o755)  # nginx's workers run as another user and must reach the socket
    port, body = free_port(), request("resnet").encode()
    ours_command = ["bash", "-c", f"exec env {command}"]
    with (
        articles_service(short_path, repository, ports) as url,
        running(ours_command, tmp_path, port, SAGEMAKER_BIND_TO_PORT=str(port)) as box,
    ):
        box.wait_ready(START_TIMEOUT_S)
        ours = box.send(body, JSON, headers={"Accept": JSON}).json()
        headers = {"Content-Type": JSON, "Accept": JSON}
        theirs = requests.post(f"{url}/invocations", data=body, headers=headers, timeout=60).json()
        assert requests.get(f"{url}/other", timeout=5).status_code == 404
        call = [sys.executable, "-c", CALL_TRITON, str(PICTURES["resnet"])]
        printed = subprocess.run(call, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60)
    assert list(ours) == list(theirs) == ["modelname", "result"]
    assert_same_rows(ours["result"], theirs["result"])
    assert_same_rows(ours["result"], json.loads(printed.stdout))


@pytest.mark.exhaustive
def test_the_notebooks_calls_run_on_the_simulated_platform(repository: Path, tmp_path: Path) -> None:
    """moto and a simulated host stand in for AWS. The box is real."""
    shutil.copy(PICTURES["yolov5"], tmp_path / "dog.jpg")
    with played_aws(tmp_path / "boxes") as aws:
        archive, s3 = shutil.make_archive(str(tmp_path / "model"), "gztar", repository), aws.client("s3")
        s3.create_bucket(Bucket="team", CreateBucketConfiguration={"LocationConstraint": REGION})
        s3.upload_file(archive, "team", "article/model.tar.gz")
        data = "s3://team/article/model.tar.gz"
        assignments = f"image = {IMAGE!r}\nrole = {ROLE!r}\nmodel_data = {data!r}\n"
        (tmp_path / "notebook.py").write_text(assignments + CODE["notebook.py"])
        environment = {**os.environ, **ENVIRONMENT, "AWS_ENDPOINT_URL": aws.url}
        command = [sys.executable, "notebook.py"]
        completed = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=300
        )
        assert completed.returncode == 0, completed.stderr
        assert not aws.client("sagemaker").list_endpoints()["Endpoints"]
    answers = [json.loads(line) for line in completed.stdout.splitlines()]
    assert [answer["modelname"] for answer in answers] == ["resnet", "yolov5", "bert_base"]
    assert [len(answers[at]["result"]) for at in (0, 2)] == [3, 5]
