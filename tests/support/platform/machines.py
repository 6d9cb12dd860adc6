"""Run an instance's container, either as a process of this machine or with Podman."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path
from typing import Protocol

import requests

from tests.support import boxes
from tests.support.containers import podman
from tests.support.platform.plan import EndpointPlan

PING_TIMEOUT_S = 2.0  # SageMaker's limit


class Machine(Protocol):
    """A running container with the command ``serve``."""

    #: The folder of multi-model archives, and its path inside the container.
    archives_folder: Path
    archives_folder_inside: str

    @property
    def url(self) -> str: ...

    def alive(self) -> bool: ...

    def log(self) -> str:
        """Return the whole log so far."""
        ...

    def stop(self) -> None:
        """Send SIGTERM, and SIGKILL after 30 s."""
        ...

    def kill(self) -> None: ...


class Launcher(Protocol):
    """Starts machines. ``model`` is the unpacked archive, ``folder`` belongs to the machine alone."""

    def launch(self, plan: EndpointPlan, model: Path | None, folder: Path) -> Machine: ...


def passes_ping(machine: Machine) -> bool:
    """Return true if the machine answers ``/ping`` with 200 in time."""
    try:
        return requests.get(f"{machine.url}/ping", timeout=PING_TIMEOUT_S).status_code == 200
    except requests.RequestException:
        return False


class ProcessMachine:
    """A box of this checkout as a process."""

    def __init__(self, box: boxes.RunningBox, archives_folder: Path) -> None:
        self._box = box
        self.archives_folder, self.archives_folder_inside = archives_folder, str(archives_folder)

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


class ProcessLauncher:
    """Starts machines as processes, whatever image the plan names."""

    def launch(self, plan: EndpointPlan, model: Path | None, folder: Path) -> ProcessMachine:
        archives_folder = folder / "models"
        archives_folder.mkdir(parents=True)
        mode_variables = {"SAGEMAKER_MULTI_MODEL": "true"} if plan.multi_model else {}
        variables = {"TRIREME_MODEL_ARCHIVES": str(archives_folder), **mode_variables, **plan.environment}
        return ProcessMachine(
            boxes.start_box(folder, model, clients=(), arguments="serve", **variables), archives_folder
        )


class PodmanMachine:
    """A container under Podman."""

    archives_folder_inside = "/opt/ml/models"

    def __init__(self, container_id: str, port: int, archives_folder: Path) -> None:
        self.id, self._port, self.archives_folder = container_id, port, archives_folder

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def alive(self) -> bool:
        return bool(podman("ps", "--quiet", "--filter", f"id={self.id}"))

    def log(self) -> str:
        completed = subprocess.run(["podman", "logs", self.id], capture_output=True, text=True, check=False)
        return completed.stdout + completed.stderr

    def stop(self) -> None:
        podman("stop", "--time", "30", self.id)
        podman("rm", "--force", "--time", "0", self.id)

    def kill(self) -> None:
        podman("kill", self.id)


class PodmanLauncher:
    """Starts machines as containers, in SageMaker's way: ``docker run IMAGE serve``."""

    def launch(self, plan: EndpointPlan, model: Path | None, folder: Path) -> PodmanMachine:
        archives_folder = folder / "models"
        archives_folder.mkdir(parents=True)
        port = boxes.free_port()
        mode_variables = {"SAGEMAKER_MULTI_MODEL": "true"} if plan.multi_model else {}
        flags = [
            argument
            for name, value in {**mode_variables, **plan.environment}.items()
            for argument in ("-e", f"{name}={value}")
        ]
        flags += ["-v", f"{model}:/opt/ml/model:ro"] if model else []
        flags += ["-v", f"{archives_folder}:/opt/ml/models:ro", "-p", f"127.0.0.1:{port}:8080"]
        return PodmanMachine(podman("run", "-d", *flags, plan.image, "serve"), port, archives_folder)
