"""What the supervisor decided at start: written once into the run folder, read by every child."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from sm.errors import StartError
from sm.settings import Settings

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108
#: Where SageMaker unpacks a model.
PLATFORM_REPOSITORY = Path("/opt/ml/model")
#: Beside the models, the folder of a team's clients; Triton takes it for a model that cannot load.
CODE = "code"


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

    @property
    def data_socket(self) -> Path:
        return self.run / "data.sock"

    @property
    def control_socket(self) -> Path:
        return self.run / "control.sock"

    @property
    def state_file(self) -> Path:
        return self.run / "state.json"

    @property
    def clients_file(self) -> Path:
        """Written by the data workers: what they serve."""
        return self.run / "clients.json"

    @property
    def refusal_file(self) -> Path:
        """Written by a data worker that cannot load its clients: why, in a sentence."""
        return self.run / "refusal"

    @property
    def metrics_folder(self) -> Path:
        """The workers' memory-mapped series."""
        return self.run / "metrics"

    @property
    def draining_file(self) -> Path:
        """While it is there, nginx tells its callers to connect anew."""
        return self.run / "draining"

    @classmethod
    def load(cls, run: Path) -> Box:
        """The box whose run folder this is."""
        values = json.loads((run / "box.json").read_text())
        return cls(**{**values, "run": Path(values["run"]), "repository": Path(values["repository"])})

    def save(self) -> None:
        """Make what children expect to find in the run folder."""
        self.metrics_folder.mkdir()
        write_whole(self.run / "supervisor.pid", str(os.getpid()))
        write_whole(self.run / "box.json", json.dumps(asdict(self), default=str))


def write_whole(path: Path, text: str) -> None:
    """Replace a file in one step: a reader sees the old text or the new one."""
    staged = path.with_name(f"{path.name}.{os.getpid()}")  # the workers write at the same time
    staged.write_text(text)
    staged.replace(path)


def find_repository(settings: Settings, platform: Path = PLATFORM_REPOSITORY) -> Path:
    """The repository to serve; :class:`StartError` if there is no model in it."""
    repository = (settings.repository or platform).absolute()
    if (repository / "config.pbtxt").exists():
        raise StartError(
            f"Model directory needs to contain the top level folder: {repository} has a config.pbtxt itself."
        )
    if not models_in(repository):
        raise StartError(
            f"There is no model in {repository} (no folder with a config.pbtxt): run `make serve` for the "
            "demo, or set TRIREME_MODEL_REPOSITORY to a Triton model repository."
        )
    return repository


def models_in(repository: Path) -> list[str]:
    """The names of the models in a repository."""
    try:
        return sorted(path.parent.name for path in repository.glob("*/config.pbtxt"))
    except OSError:
        return []


def shared_bytes(settings: Settings, repository: Path, folder: Path = SHARED_MEMORY) -> int:
    """Shared memory for each worker in bytes; 0 where it is off or there is none.

    A third of what is free, after what Triton's python models take at start: the rest is left to their growth
    and to whatever else lives in the container.
    """
    if not settings.shared_memory or not folder.is_dir():
        return 0
    if settings.shared_memory_mb:
        return int(settings.shared_memory_mb * 2**20) // settings.worker_count
    space = os.statvfs(folder)
    pools = settings.triton_shm_default * len(python_models(repository))
    # Triton's side takes at most half of what is free: see sm.triton.server.
    free = space.f_bavail * space.f_frsize
    return max(0, free - min(pools, free // 2)) // 3 // settings.worker_count


def python_models(repository: Path) -> set[str]:
    """The models that Triton's python backend runs."""
    return {path.parent.parent.name for path in repository.glob("*/*/model.py")}
