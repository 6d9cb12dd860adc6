"""The two kinds of machine that run a container: a process of this one, and Podman."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path
from typing import Protocol

import requests

from tests.support import boxes as running
from tests.support.containers import podman
from tests.support.platform.plan import Plan

#: Seconds that ``/ping`` may take: the platform's rule.
PING = 2.0


class Machine(Protocol):
    """A container that was told to ``serve``."""

    #: Where multi-model archives lie here, and where the container sees them.
    archives: Path
    archives_inside: str

    @property
    def url(self) -> str: ...

    def alive(self) -> bool: ...

    def log(self) -> str:
        """All it has said so far."""
        ...

    def stop(self) -> None:
        """SIGTERM, and SIGKILL 30 s later."""
        ...

    def kill(self) -> None: ...


class Machines(Protocol):
    """Starts machines; ``model`` is the unpacked archive, ``home`` a folder of the machine's own."""

    def start(self, plan: Plan, model: Path | None, home: Path) -> Machine: ...


def passes_ping(machine: Machine) -> bool:
    """Whether it answers ``/ping`` with 200 in time."""
    try:
        return requests.get(f"{machine.url}/ping", timeout=PING).status_code == 200
    except requests.RequestException:
        return False


class Process:
    """The box of this checkout, started by its own ``serve``."""

    def __init__(self, box: running.RunningBox, archives: Path) -> None:
        self._box = box
        self.archives, self.archives_inside = archives, str(archives)

    @property
    def url(self) -> str:
        return self._box.url

    def alive(self) -> bool:
        return self._box.process.poll() is None

    def log(self) -> str:
        return self._box.log.read_text(errors="replace")

    def stop(self) -> None:
        if self.alive():
            self._box.process.terminate()
        try:
            self._box.process.wait(30)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        self._box.stop(signal.SIGKILL)


class Processes:
    """Machines that are processes: the image is not looked at."""

    def start(self, plan: Plan, model: Path | None, home: Path) -> Process:
        archives = home / "models"
        archives.mkdir(parents=True)
        mode = {"SAGEMAKER_MULTI_MODEL": "true"} if plan.multi_model else {}
        variables = {"TRIREME_MODEL_ARCHIVES": str(archives), **mode, **plan.environment}
        return Process(running.start_box(home, model, clients=(), arguments="serve", **variables), archives)


class Pod:
    """A container of the real image."""

    archives_inside = "/opt/ml/models"

    def __init__(self, identity: str, port: int, archives: Path) -> None:
        self.id, self._port, self.archives = identity, port, archives

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def alive(self) -> bool:
        return bool(podman("ps", "--quiet", "--filter", f"id={self.id}"))

    def log(self) -> str:
        done = subprocess.run(["podman", "logs", self.id], capture_output=True, text=True, check=False)
        return done.stdout + done.stderr

    def stop(self) -> None:
        podman("stop", "--time", "30", self.id)
        podman("rm", "--force", "--time", "0", self.id)

    def kill(self) -> None:
        podman("kill", self.id)


class Podman:
    """Machines that are containers, as the platform starts them: ``docker run IMAGE serve``."""

    def start(self, plan: Plan, model: Path | None, home: Path) -> Pod:
        archives = home / "models"
        archives.mkdir(parents=True)
        port = running.free_port()
        mode = {"SAGEMAKER_MULTI_MODEL": "true"} if plan.multi_model else {}
        flags = [
            word for name, value in {**mode, **plan.environment}.items() for word in ("-e", f"{name}={value}")
        ]
        flags += ["-v", f"{model}:/opt/ml/model:ro"] if model else []
        flags += ["-v", f"{archives}:/opt/ml/models:ro", "-p", f"127.0.0.1:{port}:8080"]
        return Pod(podman("run", "-d", *flags, plan.image, "serve"), port, archives)
