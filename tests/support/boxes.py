"""Start a real box (``serve`` with nginx, gunicorn and Triton) and inspect its processes, log and state."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import requests

from sm import hardware
from sm.control.routes import MAX_TEXT_AGE_S
from sm.run_state import Box
from sm.settings import HERE
from tests.support.other_triton import OTHER_TRITON

#: The test clients; each subfolder has the clients of one kind of box.
CLIENT_FOLDERS = Path(__file__).parent / "client_folders"
CLIENTS = CLIENT_FOLDERS / "box"
#: The ``sm`` of another environment that starts the boxes, such as one with the core's wheel alone; empty: the
#: checkout does.
SM = os.environ.get("TRIREME_TEST_SM", "")
WHERE = "from sm.settings import HERE; print(HERE)"
WAIT_TIMEOUT_S = 60.0
CONTROL_TIMEOUT_S = 30.0  # for one answer of the control plane, on a busy machine
#: Ports for the servers of tests: above those that tests name, below those that the kernel assigns (from 32768).
PORTS = range(22_000, 32_000)


def free_port() -> int:
    """Return a port that nothing uses. The kernel assigns it to nobody before the test's server binds it."""
    while True:
        port = secrets.choice(PORTS)
        with contextlib.suppress(OSError), socket.socket() as sock:
            sock.bind(("0.0.0.0", port))
            return port


def free_ports(count: int) -> list[int]:
    """Return so many different ports that nothing uses, in ascending order."""
    ports: set[int] = set()
    while len(ports) < count:
        ports.add(free_port())
    return sorted(ports)


def wait_until(
    condition: Callable[[], Any], timeout_s: float = WAIT_TIMEOUT_S, description: str = "the condition"
) -> Any:
    """Call ``condition`` until it returns something true, and return that. ``description`` says what is awaited."""
    end, pause_s = time.monotonic() + timeout_s, 0.01
    while time.monotonic() < end:
        if found := condition():
            return found
        time.sleep(pause_s)
        pause_s = min(1.2 * pause_s, 0.1)  # most conditions cost the box an answer
    raise AssertionError(f"timed out after {timeout_s:g} s waiting for {description}")


def retry_until_ok(
    send: Callable[[], requests.Response], timeout_s: float = WAIT_TIMEOUT_S
) -> requests.Response:
    """Repeat a request until its status is 200, as a caller does after 429 or 503."""

    def successful_response() -> requests.Response | None:
        response = send()
        return response if response.status_code == 200 else None

    response: requests.Response = wait_until(successful_response, timeout_s, "an answer with status 200")
    return response


@dataclass
class RunningBox:
    """A ``serve`` process, the public port of its box, its log file and its environment."""

    process: subprocess.Popen[bytes]
    port: int
    log: Path
    environment: dict[str, str] = field(default_factory=dict)
    #: When the last request for ``/metrics`` was answered.
    scraped: float = 0.0

    @property
    def folder(self) -> Path:
        """Where its log is, and its models if they were written for it."""
        return self.log.parent

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def ping(self) -> tuple[int, str]:
        """Return the status and body of ``/ping``; status 0 and the error if there is no answer."""
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
        """Return the sum of a metric's samples that have these labels."""
        wanted = [f'{label}="{value}"' for label, value in labels.items()]
        samples = [line for line in self.scrape().splitlines() if line.startswith((f"{name}{{", f"{name} "))]
        return sum(float(line.rpartition(" ")[2]) for line in samples if all(text in line for text in wanted))

    def scrape(self) -> str:
        """Return the present text of ``/metrics``. The box repeats its last text if it is asked more often."""
        time.sleep(max(0.0, self.scraped + MAX_TEXT_AGE_S - time.monotonic()))
        text = requests.get(f"{self.url}/metrics", timeout=CONTROL_TIMEOUT_S).text
        self.scraped = time.monotonic()
        return text

    def pids(self, text: str) -> list[int]:
        """Return the descendants of ``serve`` whose command line contains ``text``."""
        return [pid for pid in descendants(self.process.pid) if text in command_line(pid)]

    def pid(self, text: str) -> int:
        """Wait until one such process is found: the kernel's lists may omit some while others start or end."""

        def only_pid() -> int | None:
            pids = self.pids(text)
            return pids[0] if len(pids) == 1 else None

        pid: int = wait_until(only_pid, description=f"one process with {text!r} in its command line")
        return pid

    def workers(self) -> list[int]:
        """Return the data plane's workers, without their master.

        The master is what the supervisor's state names: the kernel reuses small numbers, and the workers of a
        killed master live on for a moment with its command line.
        """
        found = children(self.child("data")["pid"])
        return [pid for pid in found if "sm.server.worker" in command_line(pid)]

    def wait_for_workers(self, count: int) -> list[int]:
        """Wait until the data plane has ``count`` workers, and return them."""
        wait_until(lambda: len(self.workers()) == count, description=f"{count} workers")
        return self.workers()

    def wait_for_log(self, text: str) -> str:
        """Wait until the log contains ``text``, and return it. A log line may come after its response."""
        wait_until(lambda: text in self.log.read_text(), description=f"{text!r} in the log")
        return self.log.read_text()

    def wait_ready(self, timeout_s: float = WAIT_TIMEOUT_S) -> None:
        def ready() -> bool:
            status = self.process.poll()
            assert status is None, f"serve ended with {status}:\n{self.log.read_text()[-4000:]}"
            return self.ping()[0] == 200

        wait_until(ready, timeout_s, "/ping 200")

    def stop(self, signal_number: int = signal.SIGTERM) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal_number)
        try:
            return self.process.wait(WAIT_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise

    def shared_memory_files(self) -> list[str]:
        """Return the names of the files that this box and its Triton have in /dev/shm."""
        return sorted(path.name for path in Path("/dev/shm").glob(f"trireme-{self.box_id()}*"))

    def run_folder(self) -> Path:
        """Return the box's private folder with its sockets and state."""
        temporary = self.environment.get("TMPDIR", "/tmp").lstrip("/")
        # A box with its own mounts (tests.support.disks) is found through /proc.
        for root in (Path("/"), Path(f"/proc/{self.process.pid}/root")):
            for path in (root / temporary).glob("trireme-*/supervisor.pid"):
                with contextlib.suppress(OSError, ValueError):
                    if int(path.read_text()) == self.process.pid:
                        return path.parent
        raise AssertionError("the box has no run folder")

    def box_id(self) -> str:
        return Box.load(self.run_folder()).id

    def state(self) -> dict[str, Any]:
        """Return the state that the supervisor published last."""
        file = self.run_folder() / "state.json"

        def read() -> Any:
            # On a full disk the supervisor writes the file in place, so this may read half of it.
            with contextlib.suppress(ValueError):
                return json.loads(file.read_text())

        state: dict[str, Any] = wait_until(read, description="a complete state.json")
        return state

    def child(self, name: str) -> dict[str, Any]:
        """Return the pid, state and restarts of a child of the supervisor."""
        child: dict[str, Any] = self.state()["processes"][name]
        return child

    def kill_and_wait_for_restart(self, name: str, timeout_s: float = WAIT_TIMEOUT_S) -> None:
        """Kill a child of the supervisor, and wait until its replacement is ready, by the supervisor's state."""
        before = self.child(name)
        os.kill(before["pid"], signal.SIGKILL)

        def is_replaced() -> bool:
            now = self.child(name)
            is_another = now["pid"] != before["pid"] and now["restarts"] > before["restarts"]
            return is_another and bool(now["state"] == "ready")

        wait_until(is_replaced, timeout_s, f"a new {name}")


@contextmanager
def running_box(
    folder: Path,
    repository: Path | None,
    wait_until_ready: bool = True,
    clients: tuple[Path, ...] = (CLIENTS,),
    command_prefix: str = "",
    arguments: str = "",
    **variables: str,
) -> Iterator[RunningBox]:
    """Start a box, and stop it when the block ends. The other parameters are those of :func:`start_box`."""
    box = start_box(folder, repository, clients, command_prefix, arguments, **variables)
    try:
        if wait_until_ready:
            box.wait_ready()
        yield box
    finally:
        box.stop()


def start_box(
    folder: Path,
    repository: Path | None,
    clients: tuple[Path, ...] = (CLIENTS,),
    command_prefix: str = "",
    arguments: str = "",
    sm: str = SM,
    **variables: str,
) -> RunningBox:
    """Start a box and return at once. Its log is in ``folder``.

    Args:
        repository: The model repository; ``None``: the box's default.
        clients: Folders with clients, besides the built-in ones.
        command_prefix: A command that ends by running ``serve`` in its place, such as ``prlimit --nofile=64``.
        arguments: The command-line arguments of ``serve``.
        sm: See :data:`SM`.
        variables: Environment variables, besides those that are inherited.
    """
    port = int(variables.pop("SAGEMAKER_BIND_TO_PORT", 0)) or free_port()
    own = ("SAGEMAKER_", "TRIREME_")
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(own)},
        **OTHER_TRITON,
        "SAGEMAKER_BIND_TO_PORT": str(port),
        "TRIREME_CLIENTS": os.pathsep.join(map(str, (built_in_clients(sm), *clients))),
        # Most tests compare exact digits; tests/integration/box/test_start.py lets the box choose.
        "TRIREME_PRECISION": "fp32",
        **({"TRIREME_MODEL_REPOSITORY": str(repository)} if repository else {}),
        **variables,
    }
    log = folder / f"box-{port}.log"
    serve = (sm, "serve") if sm else (sys.executable, str(HERE / "serve"))
    command = [*shlex.split(command_prefix), *serve, *shlex.split(arguments)]
    with log.open("wb") as stream:
        # In the checkout's folder another environment's processes would import the checkout.
        cwd = folder if sm else None
        process = subprocess.Popen(command, env=environment, cwd=cwd, stdout=stream, stderr=subprocess.STDOUT)
    return RunningBox(process, port, log, environment)


@cache
def built_in_clients(sm: str) -> Path:
    """Return the folder with the clients that come with a box."""
    if not sm:
        return HERE / "clients"
    # Not in the checkout's folder, where it would import the checkout.
    command = (Path(sm).with_name("python"), "-c", WHERE)
    return Path(subprocess.check_output(command, cwd="/", text=True).strip(), "clients")


def children(pid: int) -> list[int]:
    """Return the processes that ``pid`` started, as the kernel lists them; none if it has ended."""
    return sorted(hardware.children(pid))


def descendants(pid: int) -> list[int]:
    """Return the children of ``pid``, their children and so on."""
    return [descendant for child in children(pid) for descendant in (child, *descendants(child))]


def command_line(pid: int) -> str:
    """Return a process's command line; empty if the process has ended."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return ""


def processes_with(text: str) -> list[str]:
    """Return the command lines of the processes that have ``text`` there or in their environment."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            line = command_line(int(path.name))
            if line and text.encode() in line.encode() + (path / "environ").read_bytes():
                found.append(line)
    return found


def memory_field(pid: int, name: str, file: str = "smaps_rollup") -> int:
    """Return a field of ``/proc/PID/smaps_rollup``, such as ``Pss:``, or of another file, in bytes."""
    lines = Path(f"/proc/{pid}/{file}").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


def listening_ports(pid: int) -> dict[int, str]:
    """Return the TCP ports that a process listens on, with their addresses in the kernel's hexadecimal form."""
    inodes = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            inodes.add(str(link.readlink()).removeprefix("socket:[").removesuffix("]"))
    tables = [Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:] for name in ("tcp", "tcp6")]
    rows = [row.split() for table in tables for row in table]
    local = [row[1].split(":") for row in rows if row[3] == "0A" and row[9] in inodes]
    return {int(port, 16): address for address, port in local}
