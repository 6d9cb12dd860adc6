"""A container of the image, started and watched by a test, and removed by its own id."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import requests

from sm.settings import HERE
from tests.support.boxes import free_port, wait_until
from tests.support.tritons import MODELS, Model

PAGE = (HERE / "docs" / "run" / "image.md").read_text()
#: Another tag, so that two checkouts on one machine do not build over each other.
IMAGE = os.environ.get("TEST_IMAGE", "localhost/trireme:test")
PYTHON = "/opt/trireme/.venv/bin/python"
#: A client of a team's own for the model ``echo``, as it lies in the archive's ``code/``.
CLIENT = '''
from sm.client.base import TensorClient, TextPayload


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
    """How this machine reaches the package index is no part of the image."""
    settings = [path for path in ("/etc/ssl/certs", "/etc/pip.conf") if Path(path).exists()]
    return " ".join(["--network host", *(f"-v {path}:{path}:ro" for path in settings)])


def podman(*words: str, timeout: float = 60) -> str:
    """What the command prints; an AssertionError with its complaint if it fails."""
    # Its monitor leaves a file of the name oom in the folder it was started in.
    done = subprocess.run(
        ["podman", *words],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        cwd=tempfile.gettempdir(),
    )
    assert done.returncode == 0, f"podman {' '.join(words)}: {done.stderr}"
    return done.stdout.strip()


@dataclass(frozen=True)
class Container:
    """A container and the port of this machine that leads to it (0: none)."""

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

    def transports(self) -> dict[str, float]:
        """Requests to Triton by how their tensors travelled."""
        lines = requests.get(f"{self.url}/metrics", timeout=5).text.splitlines()
        series = (line for line in lines if line.startswith("trireme_tensor_requests_total{"))
        return {line.split('"')[1]: float(line.rpartition(" ")[2]) for line in series}

    def wait_ready(self) -> None:
        def ready() -> bool:
            assert self.state("Running") == "true", self.logs()[-4000:]
            return self.ping() == 200

        wait_until(ready, description="/ping 200")

    def state(self, name: str) -> str:
        return podman("inspect", "--format", f"{{{{.State.{name}}}}}", self.id)

    def logs(self) -> str:
        done = subprocess.run(["podman", "logs", self.id], capture_output=True, text=True, check=False)
        return done.stdout + done.stderr

    def wait_end(self) -> tuple[int, float]:
        """Once it has ended by itself: its exit code, and the seconds it ran."""
        code = int(podman("wait", self.id))
        state = json.loads(podman("inspect", "--format", "{{json .State}}", self.id))
        # Nanoseconds are more than Python 3.10 reads.
        began, ended = (re.sub(r"(\.\d{6})\d*", r"\1", state[name]) for name in ("StartedAt", "FinishedAt"))
        return code, (datetime.fromisoformat(ended) - datetime.fromisoformat(began)).total_seconds()

    def stop(self) -> int:
        """SIGTERM, SIGKILL 30 s later as on the platform; the exit code."""
        podman("stop", "--time", "30", self.id)
        return int(self.state("ExitCode"))

    def python(self, code: str) -> str:
        """What a piece of Python inside prints."""
        return podman("exec", self.id, PYTHON, "-c", code)


@contextmanager
def container(
    image: str,
    repository: Path | None,
    *flags: str,
    words: tuple[str, ...] = ("serve",),
    inner: int = 8080,
    wait: bool = True,
) -> Iterator[Container]:
    """``podman run`` with the repository at /opt/ml/model, read-only as on the platform."""
    port = 0 if "--network" in flags else free_port()
    published = ["-p", f"127.0.0.1:{port}:{inner}"] if port else []
    mounted = ["-v", f"{repository}:/opt/ml/model:ro"] if repository else []
    started = Container(podman("run", "-d", *published, *mounted, *flags, image, *words), port)
    try:
        if wait and port:
            started.wait_ready()
        yield started
    finally:
        podman("rm", "--force", "--time", "0", started.id)


def team_repository(folder: Path, client: str = CLIENT, model: Model = MODELS["echo"]) -> Path:
    """A model archive as a team makes one: a model, and the client for it in ``code/``."""
    model.write(folder / "echo")
    (folder / "code").mkdir()
    (folder / "code" / "team.py").write_text(client)
    # Made by a test, whose files nobody else may read: the container's user is another one.
    for path in (folder.parent, folder):
        path.chmod(0o755)
    return folder


def sentence(log: str) -> dict[str, Any]:
    """The one error of the supervisor's in a log."""
    lines = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
    errors = [line for line in lines if line["process"] == "serve" and line["level"] == "error"]
    assert len(errors) == 1, log
    return dict(errors[0])
