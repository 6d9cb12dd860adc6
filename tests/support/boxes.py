"""A real box: ``serve`` with nginx, gunicorn and Triton, started and watched by a test."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import requests

from sm.run_state import Box
from sm.settings import HERE

#: Clients for tests, a folder for each kind of box.
CLIENT_FOLDERS = Path(__file__).parent / "client_folders"
CLIENTS = CLIENT_FOLDERS / "box"
WAIT_TIMEOUT_S = 60.0
#: For one answer of the control plane, however much else the machine has to do.
CONTROL_TIMEOUT_S = 30.0


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def until(condition: Callable[[], Any], seconds: float = WAIT_TIMEOUT_S, what: str = "it") -> Any:
    """Wait for something to be true, and give it back."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = condition()
        if found:
            return found
        time.sleep(0.02)
    raise AssertionError(f"{what} did not come true in {seconds:g} s")


def answered(ask: Callable[[], requests.Response], seconds: float = WAIT_TIMEOUT_S) -> requests.Response:
    """Ask until the status is 200, as a caller does who is told to come again."""

    def ok() -> requests.Response | None:
        answer = ask()
        return answer if answer.status_code == 200 else None

    answer: requests.Response = until(ok, seconds, "an answer")
    return answer


@dataclass
class RunningBox:
    """One ``serve`` process and the port it answers on."""

    process: subprocess.Popen[bytes]
    port: int
    log: Path
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def ping(self) -> tuple[int, str]:
        try:
            answer = requests.get(f"{self.url}/ping", timeout=CONTROL_TIMEOUT_S)
        except requests.RequestException as error:
            return 0, str(error)
        return answer.status_code, answer.text

    def invoke(
        self, model: str, payload: object, timeout: float = 60, **members: object
    ) -> requests.Response:
        body = {"modelname": model, "payload": payload, **members}
        return requests.post(f"{self.url}/invocations", json=body, timeout=timeout)

    def send(self, body: bytes, content_type: str = "application/json", **options: Any) -> requests.Response:
        headers = {"Content-Type": content_type, **options.pop("headers", {})}
        return requests.post(f"{self.url}/invocations", data=body, headers=headers, timeout=60, **options)

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a series' samples that have these labels."""
        total = 0.0
        for line in requests.get(f"{self.url}/metrics", timeout=CONTROL_TIMEOUT_S).text.splitlines():
            if line.startswith((f"{name}{{", f"{name} ")) and all(
                f'{k}="{v}"' in line for k, v in labels.items()
            ):
                total += float(line.rpartition(" ")[2])
        return total

    def pids(self, words: str) -> list[int]:
        """The processes below this box whose command line has ``words``."""
        return [pid for pid in descendants(self.process.pid) if words in command_line(pid)]

    def workers(self) -> list[int]:
        """The data plane's workers, without their master.

        Process ids say nothing about who is the master: the kernel begins again at small numbers, and the
        workers of a killed master live on for a moment with the same command line.
        """
        return [
            pid for pid in children(self.child("data")["pid"]) if "sm.server.worker data" in command_line(pid)
        ]

    def wait_for_log(self, words: str) -> str:
        """The log, once it has ``words``: a line may come after the answer that it is about."""
        until(lambda: words in self.log.read_text(), what=f"{words!r} in the log")
        return self.log.read_text()

    def wait_ready(self, seconds: float = WAIT_TIMEOUT_S) -> None:
        def ready() -> bool:
            assert self.process.poll() is None, (
                f"serve ended with {self.process.returncode}:\n{self.log.read_text()[-4000:]}"
            )
            return self.ping()[0] == 200

        until(ready, seconds, "/ping 200")

    def stop(self, number: int = signal.SIGTERM) -> int:
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            return self.process.wait(WAIT_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise

    def shared_files(self) -> list[str]:
        """What this box and its Triton have in /dev/shm."""
        return sorted(path.name for path in Path("/dev/shm").glob(f"trireme-{self.box_id()}*"))

    def run_folder(self) -> Path:
        """The box's private folder: sockets, state."""
        temporary = self.environment.get("TMPDIR", "/tmp").lstrip("/")
        # The second is for a box with disks of its own.
        for root in (Path("/"), Path(f"/proc/{self.process.pid}/root")):
            for path in (root / temporary).glob("trireme-*/supervisor.pid"):
                with contextlib.suppress(OSError, ValueError):
                    if int(path.read_text()) == self.process.pid:
                        return path.parent
        raise AssertionError("the box has no run folder")

    def box_id(self) -> str:
        return Box.load(self.run_folder()).id

    def state(self) -> dict[str, Any]:
        """What the supervisor last published."""
        file = self.run_folder() / "state.json"

        def read() -> Any:
            # On a full disk it is written in place, and may be half written.
            with contextlib.suppress(ValueError):
                return json.loads(file.read_text())

        state: dict[str, Any] = until(read, what="a whole state.json")
        return state

    def child(self, name: str) -> dict[str, Any]:
        """The pid, the state and the restarts of a process that the supervisor started."""
        child: dict[str, Any] = self.state()["processes"][name]
        return child

    def kill(self, name: str, seconds: float = WAIT_TIMEOUT_S) -> None:
        """Kill a process that the supervisor started, and wait until the next one is ready within ``seconds``.

        The supervisor's state says when: the workers of a killed master live on for a moment, and look
        like it.
        """
        before = self.child(name)
        os.kill(before["pid"], signal.SIGKILL)

        def replaced() -> bool:
            now = self.child(name)
            is_another = now["pid"] != before["pid"] and now["restarts"] > before["restarts"]
            return is_another and bool(now["state"] == "ready")

        until(replaced, seconds, f"a new {name}")


@contextmanager
def running(
    folder: Path,
    repository: Path | None,
    wait: bool = True,
    clients: tuple[Path, ...] = (CLIENTS,),
    through: str = "",
    words: str = "",
    **variables: str,
) -> Iterator[RunningBox]:
    """Start a box, and end it by its own id whatever happens."""
    box = start(folder, repository, clients, through, words, **variables)
    try:
        if wait:
            box.wait_ready()
        yield box
    finally:
        box.stop()


def start(
    folder: Path,
    repository: Path | None,
    clients: tuple[Path, ...] = (CLIENTS,),
    through: str = "",
    words: str = "",
    **variables: str,
) -> RunningBox:
    """``through``: a command line that becomes the box in the end; ``words``: what ``serve`` is told."""
    port = int(variables.pop("SAGEMAKER_BIND_TO_PORT", 0)) or free_port()
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith(("SAGEMAKER_", "TRIREME_"))
    }
    environment = {
        **inherited,
        "SAGEMAKER_BIND_TO_PORT": str(port),
        "TRIREME_CLIENTS": os.pathsep.join(map(str, (HERE / "clients", *clients))),
        **({"TRIREME_MODEL_REPOSITORY": str(repository)} if repository else {}),
        **variables,
    }
    log = folder / f"box-{port}.log"
    with log.open("wb") as stream:
        process = subprocess.Popen(
            [*shlex.split(through), sys.executable, str(HERE / "serve"), *shlex.split(words)],
            env=environment,
            stdout=stream,
            stderr=subprocess.STDOUT,
        )
    return RunningBox(process, port, log, environment)


def refused_start(
    folder: Path,
    repository: Path | None,
    clients: tuple[Path, ...] = (),
    through: str = "",
    **variables: str,
) -> str:
    """The log of a box that must end by itself before it is ready."""
    with running(folder, repository, wait=False, clients=clients, through=through, **variables) as box:
        assert box.process.wait(WAIT_TIMEOUT_S) == 1, box.log.read_text()[-4000:]
    return box.log.read_text()


def children(pid: int) -> list[int]:
    """The processes that ``pid`` started, by the kernel's own word."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += map(int, task.read_text().split())
    return found


def descendants(pid: int) -> list[int]:
    """Every process below ``pid``."""
    return [each for child in children(pid) for each in (child, *descendants(child))]


def command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def memory_field(pid: int, name: str) -> int:
    """A line of the kernel's account of a process's memory, in bytes."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))
