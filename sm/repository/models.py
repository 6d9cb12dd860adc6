"""The models of a repository on disk. This module alone decides what counts as a model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sm.repository import config_files

#: The file of each backend where ``default_model_filename`` does not say another.
FILES = {
    "python": "model.py",
    "onnxruntime": "model.onnx",
    "tensorrt": "model.plan",
    "pytorch": "model.pt",
    "openvino": "model.xml",
    "dali": "model.dali",
    "vllm": "model.json",
}
#: Backends that Triton finds by a model's file where there is no configuration.
COMPLETED = ("python", "onnxruntime", "tensorrt", "pytorch", "openvino")
CONFIG = "config.pbtxt"
#: Beside the models, the folder of a team's clients; Triton takes it for a model that cannot load.
CODE = "code"
#: What older configurations say instead of a backend.
PLATFORMS = {
    "tensorrt_plan": "tensorrt",
    "onnxruntime_onnx": "onnxruntime",
    "pytorch_libtorch": "pytorch",
    "tensorflow_graphdef": "tensorflow",
    "tensorflow_savedmodel": "tensorflow",
    "ensemble": "ensemble",
}

#: What Triton puts the model's folder in the place of, and the parameter of the python backend that says it.
OWN_FOLDER, ENVIRONMENT = "$$TRITON_MODEL_DIRECTORY", "EXECUTION_ENV_PATH"


@dataclass(frozen=True)
class Model:
    """One folder of a repository. ``config`` is None where there is none or it cannot be read (``fault``)."""

    folder: Path
    config: Any | None
    fault: str = ""
    #: Whether the fault is only a name that another version of Triton may know.
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
        """Version folders, as Triton counts them: plain numbers from 1."""
        return versions(self.folder)

    @property
    def served(self) -> tuple[int, ...]:
        """The versions that Triton loads by the configuration's policy: the latest if it says nothing."""
        policy = self.config.version_policy if self.config else None
        kind = policy.WhichOneof("policy_choice") if policy else None
        if policy and kind == "specific":
            return tuple(policy.specific.versions)
        if policy and kind == "all":
            return self.versions
        count = policy.latest.num_versions if policy and kind == "latest" else 1
        return self.versions[-max(1, count) :]

    @property
    def backend(self) -> str:
        """The backend's name; guessed from the files as Triton does where the configuration is silent."""
        if self.config and (self.config.backend or self.config.platform):
            said = self.config.backend or PLATFORMS.get(self.config.platform, self.config.platform)
            return str(said)
        return backend_by_file(self.folder)

    @property
    def file(self) -> str | None:
        """What must lie in a version folder; None where that is the backend's own affair."""
        if self.config and self.config.cc_model_filenames:
            return None
        said = self.config.default_model_filename if self.config else ""
        return said or FILES.get(self.backend)

    @property
    def environment(self) -> Path | None:
        """Its Python environment, a folder or an archive; None if it has none or it is no local path."""
        parameters = self.config.parameters if self.config else {}
        said = parameters[ENVIRONMENT].string_value if ENVIRONMENT in parameters else ""
        inside = said.removeprefix(f"{OWN_FOLDER}/")
        if inside != said:
            return self.folder / inside
        return Path(said) if said.startswith("/") else None

    @property
    def has_own_environment(self) -> bool:
        """Whether its environment is named from its folder, so that it moves with the repository."""
        return self.environment is not None and self.folder in self.environment.parents

    @property
    def wants_gpu(self) -> bool:
        """Whether its configuration asks for instances on a GPU."""
        return any(map(config_files.is_on_gpu, self.config.instance_group)) if self.config else False

    def version(self, number: int) -> Path:
        return self.folder / str(number)


def is_model(folder: Path) -> bool:
    """Whether a folder is a model: it has a ``config.pbtxt``, or a file that Triton knows the backend by."""
    path = folder / CONFIG
    return path.exists() or path.is_symlink() or bool(backend_by_file(folder))


def versions(folder: Path) -> tuple[int, ...]:
    """A model's version folders, as Triton counts them: plain numbers from 1."""
    names = (path.name for path in folder.iterdir() if path.is_dir())
    return tuple(sorted(int(name) for name in names if name.isdecimal() and name[0] != "0"))


def backend_by_file(folder: Path) -> str:
    """The backend that Triton takes for a model that names none; empty if its files do not tell."""
    present = {path.name for number in versions(folder) for path in (folder / str(number)).iterdir()}
    return next((backend for backend in COMPLETED if FILES[backend] in present), "")


def names(repository: Path) -> list[str]:
    """The names of the models in a repository; none if it cannot be read."""
    try:
        return [folder.name for folder in _folders(repository) if is_model(folder)]
    except OSError:
        return []


def read(repository: Path) -> tuple[Model, ...]:
    """The folders of a repository by name, without hidden ones and the clients' ``code``."""
    return tuple(Model.read(folder) for folder in _folders(repository))


def _folders(repository: Path) -> list[Path]:
    return [
        path
        for path in sorted(repository.iterdir())
        if path.is_dir() and path.name[0] != "." and path.name != CODE
    ]
