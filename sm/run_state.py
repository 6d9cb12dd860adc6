"""One run of the box: what the supervisor decided at start. Written once, read by every child."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from sm.code_folder import SCRIPT_NAME, CodeFolder
from sm.errors import StartError
from sm.readable import check_readable
from sm.repository import models
from sm.repository.models import CODE as CODE
from sm.settings import HERE, Settings

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108
#: Python models that multi-model mode leaves shared memory for.
EXPECTED_PYTHON_MODELS = 32
#: Where SageMaker unpacks a model.
PLATFORM_REPOSITORY = Path("/opt/ml/model")
#: What ``make image MODELS=…`` copies into the image: served where the platform gives no models.
BAKED_REPOSITORY = Path("/opt/trireme/repository")
#: The largest body of a request to the control plane, whose one process serves everybody. A load takes 1 KB.
MAX_CONTROL_BODY_BYTES = 2**20


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
    #: Who has the public port: ``nginx`` or ``gunicorn``.
    front: str
    #: Shared memory that each worker may hold for tensors, in bytes; 0: none.
    shared_bytes: int
    #: What Triton is given in the repository's place: links to it, and configurations for this machine.
    overlay: Path | None = None
    #: Whether models are loaded and unloaded while the box runs. The repository is in the run folder then.
    multi_model: bool = False
    #: What ``/ping`` asks of Triton: ``ready`` or ``live``.
    ping: str = "ready"
    #: What opens Triton's restricted APIs: HTTP headers, gRPC metadata.
    http_keys: Mapping[str, str] = field(default_factory=dict)
    grpc_keys: Mapping[str, str] = field(default_factory=dict)
    #: The HTTP headers that callers of ``/models`` have to show. Empty: none.
    repository_keys: Mapping[str, str] = field(default_factory=dict)
    #: Development: whether clients are made anew when their files change.
    reload: bool = False
    #: Says which of Triton's processes may be trusted, see :mod:`sm.generation`. None: no supervisor watches.
    generation_file: Path | None = None

    @property
    def fronted(self) -> bool:
        """Whether nginx stands before both planes."""
        return self.front == "nginx"

    @property
    def data_socket(self) -> Path:
        return self.run / "data.sock"

    @property
    def control_socket(self) -> Path:
        return self.run / "control.sock"

    @property
    def keys_socket(self) -> Path:
        """Where nginx asks whether a request's API key is good."""
        return self.run / "keys.sock"

    @property
    def api_keys_copy(self) -> Path:
        """The last content of the API key file that could be used."""
        return self.run / "api_keys"

    @property
    def tls_folder(self) -> Path:
        """The certificate and its key as nginx uses them."""
        return self.run / "tls"

    @property
    def state_file(self) -> Path:
        return self.run / "state.json"

    @property
    def clients_file(self) -> Path:
        """Written by the data workers: what they serve."""
        return self.run / "clients.json"

    @property
    def models_file(self) -> Path:
        """Multi-model mode: written by the control plane, what is loaded."""
        return self.run / "models.json"

    @property
    def refusal_file(self) -> Path:
        """Written by a data worker that cannot load its clients: why, in a sentence."""
        return self.run / "refusal"

    @property
    def reloads_folder(self) -> Path:
        """Marks of what one data worker has said of the clients' changes, for the others."""
        return self.run / "reloads"

    @property
    def openapi_file(self) -> Path:
        """Written by the data workers: what they take and answer."""
        return self.run / "openapi.json"

    @property
    def metrics_folder(self) -> Path:
        """The workers' memory-mapped series."""
        return self.run / "metrics"

    @property
    def replacement_file(self) -> Path:
        """Multi-model mode: written by the control plane to have Triton started again, with the reason."""
        return self.run / "replace-triton"

    @property
    def draining_file(self) -> Path:
        """While it is there, nginx tells its callers to connect anew."""
        return self.run / "draining"

    @classmethod
    def load(cls, run: Path) -> Box:
        """The box whose run folder this is."""
        values = json.loads((run / "box.json").read_text())
        paths = {
            name: Path(values[name])
            for name in ("run", "repository", "overlay", "generation_file")
            if values.get(name) is not None
        }
        return cls(**{**values, **paths})

    def save(self) -> None:
        """Make what children expect to find in the run folder."""
        self.metrics_folder.mkdir()
        if self.multi_model:
            self.repository.mkdir()
        write_whole(self.run / "supervisor.pid", str(os.getpid()))
        write_whole(self.run / "box.json", json.dumps(asdict(self), default=str))


def write_whole(path: Path, text: str) -> None:
    """Replace a file in one step: a reader sees the old text or the new one."""
    staged = path.with_name(f"{path.name}.{os.getpid()}")  # the workers write at the same time
    staged.write_text(text)
    staged.replace(path)


def choose_repository(
    settings: Settings, platform: Path = PLATFORM_REPOSITORY, baked: Path = BAKED_REPOSITORY
) -> Path:
    """The folder to serve: the one that is set, the platform's, or the image's where that one holds nothing.

    A platform's folder with anything visible in it is taken, right or wrong: an archive that is no repository
    must not be answered for by other models.
    """
    if settings.repository is not None:
        return settings.repository.absolute()
    return baked if baked.is_dir() and _is_empty(platform) else platform


def _is_empty(folder: Path) -> bool:
    """Whether there is nothing visible in it, or no such folder."""
    try:
        return all(path.name.startswith(".") for path in folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:  # whoever serves it says which file cannot be read
        return False


def find_repository(
    settings: Settings, platform: Path = PLATFORM_REPOSITORY, baked: Path = BAKED_REPOSITORY
) -> Path:
    """The repository to serve; :class:`StartError` if there is neither a model nor a client in it."""
    repository = choose_repository(settings, platform, baked)
    check_readable(repository)
    if (repository / "config.pbtxt").exists():
        raise StartError(
            f"Model directory needs to contain the top level folder: {repository} has a config.pbtxt itself."
        )
    if not models.names(repository) and not CodeFolder.of(settings, repository).serves:
        raise StartError(
            f"There is no model in {repository} (no folder with a config.pbtxt or with a file that tells "
            "Triton what it is, such as 1/model.onnx, and no code/inference.py): run "
            "`make serve` for the demo, or set TRIREME_MODEL_REPOSITORY to a Triton model repository."
        )
    return repository


def check_default_model(settings: Settings, repository: Path) -> None:
    """:class:`StartError` for a default model that is surely not served, before minutes go into loading.

    A client may have another name than its file. One whose text has the name is left to the registry.
    """
    wanted, code = settings.default_model, CodeFolder.of(settings, repository)
    folders = (*settings.clients, code.folder)
    files = {file for folder in folders for kind in ("*.py", "*/client.py") for file in folder.glob(kind)}
    bundled = {file for file in files if HERE / "clients" in file.parents}
    names = {path.name for path in repository.iterdir() if path.is_dir()} - {CODE}
    names |= {_client_name(file) for file in files - bundled} | ({SCRIPT_NAME} if code.script else set())
    if not wanted or wanted in names or wanted in map(_client_name, bundled):
        return
    quoted = (f'"{wanted}"'.encode(), f"'{wanted}'".encode())
    if any(text in file.read_bytes() for file in files - bundled for text in quoted):
        return
    there = ", ".join(sorted(names)) or "none"
    raise StartError(f"SAGEMAKER_TRITON_DEFAULT_MODEL_NAME={wanted!r} is not served; there are: {there}.")


def _client_name(file: Path) -> str:
    return file.parent.name if file.name == "client.py" else file.stem


def shared_bytes(settings: Settings, repository: Path | None, folder: Path = SHARED_MEMORY) -> int:
    """Shared memory for each worker in bytes; 0 where it is off or there is none.

    A third of what is free, after what Triton's python models take at start: the rest is left to their growth
    and to whatever else lives in the container.
    """
    if not settings.shared_memory or not folder.is_dir():
        return 0
    if settings.shared_memory_mb:
        return int(settings.shared_memory_mb * 2**20) // settings.worker_count
    space = os.statvfs(folder)
    pools = settings.triton_shm_default * python_models(repository)
    # Triton's side takes at most half of what is free: see sm.triton.server.
    free = space.f_bavail * space.f_frsize
    return max(0, free - min(pools, free // 2)) // 3 // settings.worker_count


def python_models(repository: Path | None) -> int:
    """How many models Triton's python backend runs; without a repository (multi-model mode) a guess."""
    if repository is None:
        return EXPECTED_PYTHON_MODELS
    return len({path.parent.parent.name for path in repository.glob("*/*/model.py")})
