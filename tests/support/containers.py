"""Build the image with Podman, start a container of it, inspect it and remove it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import requests

from sm.settings import HERE
from tests.support.boxes import free_port, wait_until
from tests.support.tritons import MODELS, Model

PAGE = (HERE / "docs" / "run" / "image.md").read_text()
#: TEST_IMAGE sets another tag, so that two checkouts on one machine do not overwrite each other's image.
IMAGE = os.environ.get("TEST_IMAGE", "localhost/trireme:test")
#: The base of the CPU flavour.
BASE = "docker.io/library/debian:trixie-slim"
PYTHON = "/opt/trireme/.venv/bin/python"
#: The source of a client for the model ``echo``, for an archive's ``code/``.
CLIENT_SOURCE = '''
from sm.client import TensorClient, TextPayload


class Team(TensorClient):
    """How long a text is, by way of a model."""

    model, payload = "echo", TextPayload

    def preprocess(self, text):
        import numpy as np

        return {"x": np.full(3, len(text.text), np.float32)}

    def postprocess(self, outputs, text):
        return outputs["y"].tolist()
'''


def build_flags() -> str:
    """Return build flags with which the build reaches the package index as this machine does."""
    settings = [path for path in ("/etc/ssl/certs", "/etc/pip.conf") if Path(path).exists()]
    return " ".join(["--network host", *(f"-v {path}:{path}:ro" for path in settings)])


def provide_base() -> None:
    """Make the base image from Debian's packages where this machine reaches no registry of images."""
    if os.geteuid() == 0 and shutil.which("debootstrap") and not has_image(BASE):
        subprocess.run([HERE / ".ci" / "base-image", BASE], check=True, capture_output=True, timeout=600)


def make_image(*options: str, flags: str = "") -> subprocess.CompletedProcess[str]:
    """Run ``make image`` with variables of make, and flags of the engine's build."""
    provide_base()
    command = ["make", "image", "ENGINE=podman", f"BUILD_FLAGS={flags} {build_flags()}", *options]
    return subprocess.run(command, cwd=HERE, capture_output=True, text=True)


def build_image(*options: str, flags: str = "") -> None:
    done = make_image(*options, flags=flags)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]


@pytest.fixture(scope="session")
def image() -> str:
    """Build the CPU image with the documented command, and return its name."""
    if shutil.which("podman") is None:
        pytest.skip("there is no podman: the image is neither built nor run")
    build_image(f"IMAGE={IMAGE}")
    return IMAGE


def has_image(name: str) -> bool:
    """True if Podman is here, and has an image."""
    return bool(shutil.which("podman")) and not subprocess.call(["podman", "image", "exists", name])


def podman(*words: str, timeout: float = 60, env: dict[str, str] | None = None) -> str:
    """Run Podman, and return what it prints. AssertionError with its error if it fails."""
    # Podman's monitor may leave a file named oom in the current folder, so this uses a temporary one.
    completed = subprocess.run(
        ["podman", *words],
        capture_output=True,
        text=True,
        timeout=timeout,
        cwd=tempfile.gettempdir(),
        env=env,
    )
    assert completed.returncode == 0, f"podman {' '.join(words)}: {completed.stderr}"
    return completed.stdout.strip()


@dataclass(frozen=True)
class Container:
    """A container, and the port of this machine that is forwarded to it (0: none)."""

    id: str
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def ping(self) -> int:
        try:
            return requests.get(f"{self.url}/ping", timeout=5).status_code
        except requests.RequestException:
            return 0

    def send(self, body: bytes, content_type: str = "application/json", model: str = "") -> requests.Response:
        where = f"{self.url}/invocations{f'?modelname={model}' if model else ''}"
        return requests.post(where, data=body, headers={"Content-Type": content_type}, timeout=60)

    def infer(self, model: str) -> Any:
        """Send a number to a model that answers with the bytes of a JSON text, and return it."""
        tensor = {"name": "x", "datatype": "FP32", "shape": [1], "data": [1]}
        answer = self.send(json.dumps({"inputs": [tensor]}).encode(), model=model)
        assert answer.ok, answer.text
        return json.loads(bytes(answer.json()["outputs"][0]["data"]))

    def models(self) -> set[str]:
        rows = requests.get(f"{self.url}/models", timeout=10).json()["models"]
        return {row["modelName"] for row in rows}

    def transports(self) -> dict[str, float]:
        """Return the number of requests to Triton by tensor transport."""
        lines = requests.get(f"{self.url}/metrics", timeout=5).text.splitlines()
        series = (line for line in lines if line.startswith("trireme_tensor_requests_total{"))
        return {line.split('"')[1]: float(line.rpartition(" ")[2]) for line in series}

    def wait_ready(self, timeout_s: float = 60) -> None:
        def ready() -> bool:
            assert self.state("Running") == "true", self.logs()[-4000:]
            return self.ping() == 200

        wait_until(ready, timeout_s, description="/ping 200")

    def wait_log(self, text: str, timeout: float = 60) -> None:
        wait_until(lambda: text in self.logs(), timeout, description=f"{text!r} in the log")

    def state(self, name: str) -> str:
        return podman("inspect", "--format", f"{{{{.State.{name}}}}}", self.id)

    def logs(self) -> str:
        completed = subprocess.run(["podman", "logs", self.id], capture_output=True, text=True)
        return completed.stdout + completed.stderr

    def records(self, level: str = "error") -> list[dict[str, Any]]:
        """Return the supervisor's log records of a level."""
        records = [json.loads(line) for line in self.logs().splitlines() if line.startswith("{")]
        return [record for record in records if (record["process"], record["level"]) == ("serve", level)]

    def wait_end(self) -> int:
        """Wait until the container ends by itself, and return its exit code."""
        return int(podman("wait", self.id))

    def stop(self) -> int:
        """Stop with SIGTERM, and SIGKILL after 30 s as SageMaker does. Return the exit code."""
        podman("stop", "--time", "30", self.id)
        return int(self.state("ExitCode"))

    def python(self, code: str) -> str:
        """Run Python code in the container, and return what it prints."""
        return podman("exec", self.id, PYTHON, "-c", code)


@contextmanager
def running_container(
    image: str,
    repository: Path | None,
    *flags: str,
    arguments: tuple[str, ...] = ("serve",),
    wait_until_ready: bool = True,
) -> Iterator[Container]:
    """Run a container with the repository mounted read-only at /opt/ml/model, as SageMaker mounts it."""
    port = 0 if "--network" in flags else free_port()
    published = ["-p", f"127.0.0.1:{port}:8080"] if port else []
    mounted = ["-v", f"{repository}:/opt/ml/model:ro"] if repository else []
    started = Container(podman("run", "-d", *published, *mounted, *flags, image, *arguments), port)
    try:
        if wait_until_ready and port:
            started.wait_ready()
        yield started
    finally:
        podman("rm", "--force", "--time", "0", started.id)


def write_team_repository(
    folder: Path, client: str = CLIENT_SOURCE, model: Model = MODELS["echo"], name: str = "echo"
) -> Path:
    """Write a model repository with the model and its client in ``code/``, and return its folder."""
    model.write(folder / name)
    (folder / "code").mkdir()
    (folder / "code" / "team.py").write_text(client)
    # The container's user is another one, and must be able to read the test's temporary folders.
    for path in (folder.parent, folder):
        path.chmod(0o755)
    return folder
