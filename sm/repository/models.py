"""The models of a repository on disk. This module alone decides what counts as a model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sm.repository import config_files

#: The model file of each backend, unless ``default_model_filename`` names another.
FILES = {
    "python": "model.py",
    "onnxruntime": "model.onnx",
    "tensorrt": "model.plan",
    "pytorch": "model.pt",
    "openvino": "model.xml",
    "dali": "model.dali",
    "vllm": "model.json",
}
#: Backends whose models need no configuration: Triton recognises them by their file.
COMPLETED = ("python", "onnxruntime", "tensorrt", "pytorch", "openvino")
CONFIG = "config.pbtxt"
#: Triton keeps a version in 64 bits with a sign.
MAX_VERSION = 2**63 - 1
#: The folder of a team's clients beside the models; Triton would take it for a broken model.
CODE = "code"
#: Values of ``platform`` in older configurations, and their backends.
PLATFORMS = {
    "tensorrt_plan": "tensorrt",
    "onnxruntime_onnx": "onnxruntime",
    "pytorch_libtorch": "pytorch",
    "tensorflow_graphdef": "tensorflow",
    "tensorflow_savedmodel": "tensorflow",
    "ensemble": "ensemble",
}

#: Triton's placeholder for the model's folder, and the parameter of the python backend that may contain it.
OWN_FOLDER, ENVIRONMENT = "$$TRITON_MODEL_DIRECTORY", "EXECUTION_ENV_PATH"


@dataclass(frozen=True)
class Model:
    """A folder of a repository that is, or should be, a model."""

    folder: Path
    #: The ``ModelConfig``; None if there is no file, or if it cannot be read.
    config: Any | None
    #: Why the configuration cannot be read.
    fault: str = ""
    #: True if the fault is only a name that another version of Triton may know.
    unknown_name: bool = False

    @classmethod
    def read(cls, folder: Path) -> Model:
        path = folder / CONFIG
        if not path.exists() and not path.is_symlink():
            return cls(folder, None)
        try:
            return cls(folder, config_files.read(path))
        except ValueError as error:
            return cls(folder, None, str(error), isinstance(error, config_files.UnknownName))

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def versions(self) -> tuple[int, ...]:
        """The numbers of the version folders."""
        return versions(self.folder)

    @property
    def served(self) -> tuple[int, ...]:
        """Return the versions that Triton loads by the configuration's policy; the latest by default."""
        policy = self.config.version_policy if self.config else None
        kind = policy.WhichOneof("policy_choice") if policy else None
        if policy and kind == "specific":
            return tuple(policy.specific.versions)
        if policy and kind == "all":
            return self.versions
        count = policy.latest.num_versions if policy and kind == "latest" else 1
        return self.versions[-max(1, count) :]

    @property
    def instances(self) -> int:
        """Return the number of instances that Triton runs of all served versions together."""
        groups = self.config.instance_group if self.config else ()
        count = sum(max(1, group.count) * max(1, len(group.gpus)) for group in groups) or 1
        return count * max(1, len(set(self.served) & set(self.versions)))

    @property
    def backend(self) -> str:
        """Return the backend's name; without a configuration it is derived from the files, as Triton does."""
        if self.config and (self.config.backend or self.config.platform):
            backend = self.config.backend or PLATFORMS.get(self.config.platform, self.config.platform)
            return str(backend)
        return backend_by_file(self.folder)

    @property
    def file(self) -> str | None:
        """Return the file that must be in a version folder; None if the backend decides."""
        if self.config and self.config.cc_model_filenames:
            return None
        filename = self.config.default_model_filename if self.config else ""
        return filename or FILES.get(self.backend)

    @property
    def environment(self) -> Path | None:
        """The model's Python environment, a folder or an archive; None if it has none on this machine."""
        parameters = self.config.parameters if self.config else {}
        location = parameters[ENVIRONMENT].string_value if ENVIRONMENT in parameters else ""
        relative = location.removeprefix(f"{OWN_FOLDER}/")
        if relative != location:
            return self.folder / relative
        return Path(location) if location.startswith("/") else None

    @property
    def has_own_environment(self) -> bool:
        """True if the environment is in the model's folder, so that it moves with the repository."""
        return self.environment is not None and self.folder in self.environment.parents

    @property
    def wants_gpu(self) -> bool:
        """True if the configuration asks for instances on a GPU."""
        return any(map(config_files.is_on_gpu, self.config.instance_group)) if self.config else False

    def version(self, number: int) -> Path:
        return self.folder / str(number)


def is_model(folder: Path) -> bool:
    """True if a folder is a model: it has a ``config.pbtxt``, or a file of a known backend."""
    path = folder / CONFIG
    return path.exists() or path.is_symlink() or bool(backend_by_file(folder))


def versions(folder: Path) -> tuple[int, ...]:
    """Return the numbers of a model's version folders: ASCII digits, from 1 to :data:`MAX_VERSION`."""
    names = (path.name for path in folder.iterdir() if path.is_dir())
    numbers = (int(name) for name in names if name.isascii() and name.isdecimal() and name[0] != "0")
    return tuple(sorted(number for number in numbers if number <= MAX_VERSION))


def backend_by_file(folder: Path) -> str:
    """Return the backend that Triton derives from a model's files; empty if it cannot."""
    present = {path.name for number in versions(folder) for path in (folder / str(number)).iterdir()}
    return next((backend for backend in COMPLETED if FILES[backend] in present), "")


def names(repository: Path) -> list[str]:
    """Return the names of the models in a repository; none if it cannot be read."""
    try:
        return [folder.name for folder in _folders(repository) if is_model(folder)]
    except OSError:
        return []


def read(repository: Path) -> tuple[Model, ...]:
    """Read the folders of a repository by name, without hidden ones and ``code``."""
    return tuple(Model.read(folder) for folder in _folders(repository))


def _folders(repository: Path) -> list[Path]:
    return [
        path
        for path in sorted(repository.iterdir())
        if path.is_dir() and path.name[0] != "." and path.name != CODE
    ]
