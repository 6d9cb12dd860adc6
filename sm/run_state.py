"""One run of the box: what the supervisor decided at start. Written once, read by every child."""

from __future__ import annotations

import contextlib
import json
import os
import re
import tempfile
import time
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from sm.errors import StartError
from sm.repository import models
from sm.settings import Settings

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108
#: Python models for which multi-model mode reserves shared memory.
EXPECTED_PYTHON_MODELS = 32
#: Disk space of a worker's file of models that are not ready: more than 250 of the longest reasons. What is
#: in it beside the reasons, and how often it is read while the worker writes it.
UNREADY_BYTES, CHECKSUM_BYTES, UNREADY_READS = 2**17, len("01234567\n\n"), 20
#: A path that nginx's configuration takes without quotes.
PLAIN_PATH = re.compile(r"[\w./+-]+")
#: Bytes of the path of the temporary folder. The path of a Unix socket may have 107; this is the longest of a
#: box.
MAX_TEMPORARY_PATH_BYTES = 107 - len("/trireme-12345678/control.sock")


class InRun:
    """A path in a box's run folder, by its name there."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, box: Box, _: object) -> Path:
        return box.run / self._name


@dataclass(frozen=True)
class Box:
    """One run of the box. Its files in ``/dev/shm`` begin with ``trireme-<id>-``."""

    id: str
    #: Private to this run: sockets, state, nginx's files. Removed at the end.
    run: Path
    #: Triton's model repository.
    repository: Path
    #: Triton's ports, on loopback.
    http_port: int
    grpc_port: int
    metrics_port: int
    #: The server on the public port: ``nginx`` or ``gunicorn``.
    front: str
    #: Bytes of shared memory for tensors in each worker; 0 for none.
    shared_bytes: int
    #: The folder that Triton serves instead: links to the repository, and configurations for this machine.
    overlay: Path | None = None
    #: True if models are loaded and unloaded while the box runs. The repository is then in the run folder.
    multi_model: bool = False
    #: Where models that are loaded on demand come from, a folder or a prefix in S3; empty for no such mode.
    catalog: str = ""
    #: True if new versions of the models may come while the box runs.
    has_versions: bool = False
    #: Where the models came from; may be empty for a folder.
    source: str = ""
    #: The addresses and digests of the first versions, by model, if others may come. The repository is then a
    #: copy.
    first_versions: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    #: The state of Triton that ``/ping`` needs: ``ready`` or ``live``.
    ping: str = "ready"
    #: Keys of Triton's restricted APIs, as HTTP headers and as gRPC metadata.
    http_keys: Mapping[str, str] = field(default_factory=dict)
    grpc_keys: Mapping[str, str] = field(default_factory=dict)
    #: HTTP headers that callers of ``/models`` must send; empty for none.
    repository_keys: Mapping[str, str] = field(default_factory=dict)
    #: Development: reload clients when their files change.
    reload: bool = False
    #: Seconds that a model may be out before ``/ping`` says so.
    out_seconds: float = 5.0
    #: Seconds in which a model with a request must answer something.
    model_timeout: float = 60.0
    #: The file of :class:`sm.model_processes.generations.SharedGeneration`; None if no supervisor runs.
    generation_file: Path | None = None
    #: The bytes that came over the network before the start, and how long that took.
    fetched_bytes: int = 0
    fetch_seconds: float = 0.0

    @property
    def served(self) -> Path:
        """The folder that Triton serves."""
        return self.overlay or self.repository

    def served_names(self) -> list[str]:
        """Return the names of the models in that folder."""
        return models.names(self.served)

    def serving_clients(self) -> list[dict[str, Any]]:
        """Return the clients that can serve, as the workers describe them."""
        return [client for client in read_json(self.clients_file, []) if not client["load_error"]]

    @property
    def fronted(self) -> bool:
        """True if nginx is in front of both planes."""
        return self.front == "nginx"

    # docs/inside/run-folder.md has these files, with their writers and readers.
    box_file, pid_file = InRun("box.json"), InRun("supervisor.pid")
    data_socket = InRun("data.sock")
    control_socket = InRun("control.sock")
    #: The socket at which nginx asks whether an API key is valid.
    keys_socket = InRun("keys.sock")
    #: A copy of the last valid content of the API key file.
    api_keys_copy = InRun("api_keys")
    #: The certificate and key that nginx uses.
    tls_folder = InRun("tls")
    state_file = InRun("state.json")
    #: Written by the data workers: the clients that they serve.
    clients_file = InRun("clients.json")
    #: Multi-model mode, written by the control plane: the loaded models.
    models_file = InRun("models.json")
    #: A file for each model that requests use; see :mod:`sm.models.model_leases`.
    leases_folder = InRun("leases")
    #: A folder for each new version, in which each worker says whether it is ready for it.
    prepared_folder = InRun("prepared")
    #: A file for each data worker with clients that are not ready; see :mod:`sm.client.readiness`.
    readiness_folder = InRun("readiness")
    #: Written by a data worker that cannot load its clients: the reason in a sentence.
    start_error_file = InRun("start_error")
    #: A file for each reload that a data worker has logged, so that the others do not log it again.
    reloads_folder = InRun("reloads")
    #: Written by the data workers: payloads and results of their clients.
    openapi_file = InRun("openapi.json")
    #: Written by the data workers: the clients' samples that callers may have.
    samples_file = InRun("samples.json")
    #: Written by the models of the CPU target: the engine that each chose, a file for each version.
    engines_folder = InRun("engines")
    #: Written by the data workers: a file for each client that could not be made in time.
    stuck_folder = InRun("stuck")
    #: The workers' memory-mapped series; a link to shared memory if that has room.
    metrics_folder = InRun("metrics")
    #: Multi-model mode, written by the control plane: the reason why Triton must be started again.
    replacement_file = InRun("replace-triton")
    #: A named pipe to the supervisor: a model's process is in doubt; see :mod:`sm.model_processes.reports`.
    reports_pipe = InRun("reports.pipe")
    #: Folders of one process's, or of what it starts.
    nginx_folder, triton_folder, no_models_folder = InRun("nginx"), InRun("triton"), InRun("no-models")
    #: The repository that Triton gets, the first versions of its models, and what came meanwhile.
    overlay_folder, first_folder, archives_folder = InRun("repository"), InRun("first"), InRun("archives")
    #: Notes of requests and calls that are sent once, and locks of those that are sent alone.
    once_folder, alone_folder = InRun("once"), InRun("alone")
    #: In place of folders that cannot be written.
    sessions_folder, requirements_folder = InRun("sessions"), InRun("requirements")
    #: While this file exists, nginx asks callers to open new connections, and ``/ping`` is 503.
    draining_file = InRun("draining")

    @classmethod
    def load(cls, run: Path) -> Box:
        """Load the box from its run folder."""
        values = json.loads((run / "box.json").read_text())
        paths = {
            name: Path(values[name])
            for name in ("run", "repository", "overlay", "generation_file")
            if values.get(name) is not None
        }
        return cls(**{**values, **paths})

    def save(self) -> None:
        """Create the files that child processes expect in the run folder."""
        self.metrics_folder.mkdir(exist_ok=True)
        self.engines_folder.mkdir()
        os.mkfifo(self.reports_pipe, 0o600)
        self.leases_folder.mkdir()
        if self.multi_model:
            self.repository.mkdir()
        write_atomically(self.pid_file, str(os.getpid()))
        write_atomically(self.box_file, json.dumps(asdict(self), default=str))


def running_boxes() -> dict[int, Path]:
    """Return the run folders of this user's running boxes by their supervisor's process id."""
    found = {}
    for file in temporary_folder().glob("trireme-*/supervisor.pid"):
        with contextlib.suppress(OSError, ValueError):
            pid = int(file.read_text())
            os.kill(pid, 0)  # raises if it has ended
            found[pid] = file.parent
    return found


def write_atomically(path: Path, content: str | bytes, mode: int = 0o666) -> None:
    """Replace a file in one step, so that a reader sees the old content or the new one."""
    staged = path.with_name(f"{path.name}.{os.getpid()}")  # several workers may write it at the same time
    try:
        with os.fdopen(os.open(staged, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, mode), "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
        staged.replace(path)
    except OSError:
        staged.unlink(missing_ok=True)
        raise


def read_json(path: Path, default: Any) -> Any:
    """Return the JSON that another process wrote; ``default`` if the file is missing or incomplete."""
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return default


def read_pid(box: Box, name: str) -> int | None:
    """Return the process id of one of the box's processes, such as ``triton``; None if it does not run."""
    processes = read_json(box.state_file, {}).get("processes", {})
    return processes.get(name, {}).get("pid") or None


def read_engines(box: Box) -> dict[str, dict[str, Any]]:
    """Return the choices of the models of the CPU target, by model and version: ``resnet.1``."""
    return {path.stem: read_json(path, {}) for path in sorted(box.engines_folder.glob("*.json"))}


def unready_file(box: Box, pid: int | str) -> Path:
    """Return the file in which a data worker says why its models are not ready."""
    return box.readiness_folder / f"{pid}.json"


def claim_unready_file(box: Box, pid: int) -> None:
    """Give a new worker a file with disk space: the one of a worker that has ended, else a new one."""
    box.readiness_folder.mkdir(exist_ok=True)
    for file in box.readiness_folder.glob("*.json"):
        if not Path("/proc", file.stem).exists():
            with contextlib.suppress(FileNotFoundError):  # another new worker was faster
                write_unready(file, {})
                file.rename(unready_file(box, pid))
                return
    write_unready(unready_file(box, pid), {})


def write_unready(file: Path, reasons: Mapping[str, str]) -> None:
    """Write why models are not ready, by name, into the space that the file has. Raises :class:`OSError`.

    A full disk has no room for a second file that could replace it, so a reader may see a half of it: the
    first line is a checksum of the second.
    """
    content = json.dumps(reasons).encode()
    try:
        with file.open("ab") as opened:
            os.posix_fallocate(opened.fileno(), 0, max(UNREADY_BYTES, len(content) + CHECKSUM_BYTES))
    except OSError:
        if not file.is_file() or file.stat().st_size < UNREADY_BYTES:
            raise
        # Reasons that do not fit are left out: /ping is 503 for any of them.
        while len(content) + CHECKSUM_BYTES > file.stat().st_size:
            reasons = dict(list(reasons.items())[: len(reasons) // 2])
            content = json.dumps(reasons).encode()
    with file.open("r+b", buffering=0) as opened:
        opened.write(b"%08x\n%b\n" % (zlib.crc32(content), content))


def read_unready(box: Box) -> dict[str, str]:
    """Return why models are not ready in any worker, as their clients say, by name."""
    reasons: dict[str, str] = {}
    for file in sorted(box.readiness_folder.glob("*.json")):
        if Path("/proc", file.stem).exists():  # the file of a worker that was killed may be left
            reasons |= _read_checked(file)
    return reasons


def _read_checked(file: Path) -> dict[str, str]:
    for _ in range(UNREADY_READS):
        with contextlib.suppress(OSError, ValueError):
            checksum, content, *_ = file.read_bytes().split(b"\n", 2)
            if int(checksum, 16) == zlib.crc32(content):
                found: dict[str, str] = json.loads(content)
                return found
        time.sleep(0.001)
    return {}


def temporary_folder() -> Path:
    """Return the folder for run folders: TMPDIR, or /tmp if nginx or a socket cannot use TMPDIR's path.

    Raises :class:`StartError` if no temporary folder can be written.
    """
    try:
        folder = tempfile.gettempdir()
    except OSError:
        raise StartError(
            "There is no temporary folder that can be written: mount one at /tmp, or set TMPDIR."
        ) from None
    plain = PLAIN_PATH.fullmatch(folder) and len(os.fsencode(folder)) <= MAX_TEMPORARY_PATH_BYTES
    return Path(folder if plain else "/tmp")  # noqa: S108


def shared_bytes(settings: Settings, repository: Path | None, folder: Path = SHARED_MEMORY) -> int:
    """Return the bytes of shared memory for each worker; 0 if it is off or not available.

    The workers get a third of what is free after Triton's Python models have taken their initial share. The
    rest is for the models' growth and for other processes in the container.
    """
    if not folder.is_dir():
        return 0
    if settings.shared_memory_mb is not None:
        return int(settings.shared_memory_mb * 2**20) // settings.worker_count
    space = os.statvfs(folder)
    pools = settings.triton_shm_default * python_instances(repository)
    # Triton's Python models take at most half of what is free: see sm.triton.server.
    free = space.f_bavail * space.f_frsize
    return max(0, free - min(pools, free // 2)) // 3 // settings.worker_count


def python_instances(repository: Path | None) -> int:
    """Count the processes of Triton's python backend, one for each instance of a Python model.

    Every one has shared memory of its own. In multi-model mode the number is assumed.
    """
    if repository is None:
        return EXPECTED_PYTHON_MODELS
    return sum(model.instances for model in models.read(repository) if model.backend == "python")
