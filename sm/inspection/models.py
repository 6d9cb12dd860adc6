"""The models of a repository as they lie on disk."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sm.inspection import configs

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
#: What older configurations say instead of a backend.
PLATFORMS = {
    "tensorrt_plan": "tensorrt",
    "onnxruntime_onnx": "onnxruntime",
    "pytorch_libtorch": "pytorch",
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

    @classmethod
    def read(cls, folder: Path) -> Model:
        path = folder / "config.pbtxt"
        if not path.exists() and not path.is_symlink():
            return cls(folder, None)
        try:
            return cls(folder, configs.read(path))
        except ValueError as error:
            return cls(folder, None, str(error))

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def versions(self) -> tuple[int, ...]:
        """Version folders, as Triton counts them: plain numbers from 1."""
        names = (path.name for path in self.folder.iterdir() if path.is_dir())
        return tuple(sorted(int(name) for name in names if name.isdecimal() and name[0] != "0"))

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
        present = {path.name for version in self.versions for path in self.version(version).iterdir()}
        return next((backend for backend, file in FILES.items() if file in present), "")

    @property
    def file(self) -> str | None:
        """What must lie in a version folder; None where that is the backend's own affair."""
        if self.config and self.config.cc_model_filenames:
            return None
        said = self.config.default_model_filename if self.config else ""
        return said or FILES.get(self.backend)

    @property
    def environment(self) -> Path | None:
        """Its Python environment, if it has one that is named from its folder."""
        parameters = self.config.parameters if self.config else {}
        said = parameters[ENVIRONMENT].string_value if ENVIRONMENT in parameters else ""
        inside = said.removeprefix(f"{OWN_FOLDER}/")
        return self.folder / inside if inside != said else None

    def version(self, number: int) -> Path:
        return self.folder / str(number)


def read(repository: Path) -> tuple[Model, ...]:
    """The folders of a repository by name, without hidden ones and the clients' ``code``."""
    folders = (
        path
        for path in sorted(repository.iterdir())
        if path.is_dir() and path.name[0] != "." and path.name != "code"
    )
    return tuple(Model.read(folder) for folder in folders)
