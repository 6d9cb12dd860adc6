"""What this machine offers to models: Triton's backends, the Python of its stub, a GPU."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

from sm import hardware
from sm.errors import StartError
from sm.repository import config_files, installed_triton
from sm.repository.installed_triton import NAME, VERSION, WHEEL_TRITON_VERSION, is_wheel, stub_version
from sm.settings import Settings

BACKENDS_OPTION = "--backend-directory="
#: Options that keep Triton from completing configurations.
NO_COMPLETION = ("--disable-auto-complete-config", "--strict-model-config=true", "--strict-model-config=1")


@dataclass(frozen=True)
class Machine:
    """A machine. Fields that are empty or None are unknown, and nothing is checked against them."""

    #: Triton's folder of backends.
    backends: Path | None = None
    #: Major and minor version.
    triton: tuple[int, ...] = ()
    #: The version of Python for models without a stub of their own.
    python: str = ""
    #: True if Triton completes configurations.
    completes: bool = True
    #: ``TRIREME_WITHOUT_GPU``.
    without_gpu: str = "cpu"
    #: The most instances of one model, where archives are others' work.
    max_instances: int | None = None
    #: None: look for a GPU when a model needs to know.
    gpu: bool | None = None

    @classmethod
    def find(cls, settings: Settings) -> Machine:
        """Describe this machine, with the Triton that the settings name."""
        arguments = settings.triton_arguments
        without_triton = cls(
            completes=not set(NO_COMPLETION) & set(arguments),
            without_gpu=settings.without_gpu,
            max_instances=settings.max_instances if settings.multi_model else None,
        )
        try:
            program = installed_triton.find(settings)
        except StartError:
            return without_triton
        backend_folders = [
            argument.removeprefix(BACKENDS_OPTION)
            for argument in arguments
            if argument.startswith(BACKENDS_OPTION)
        ]
        backends = Path(backend_folders[-1]) if backend_folders else program.parent.parent / "backends"
        return replace(
            without_triton,
            backends=backends if backends.is_dir() else None,
            triton=_triton_version(program),
            python=VERSION if is_wheel(program) else stub_version(backends / "python" / NAME),
        )

    @classmethod
    def of_this_host(cls) -> Machine:
        """Describe this machine, with settings from the environment."""
        return cls.find(Settings.read(os.environ))

    @property
    def has_gpu(self) -> bool:
        return hardware.has_gpu() if self.gpu is None else self.gpu

    @property
    def knows_all_names(self) -> bool:
        """True if tritonclient's protobuf knows every field that this Triton knows."""
        return not self.triton or config_files.version() >= self.triton

    def has_backend(self, name: str, folders: tuple[Path, ...]) -> bool:
        """True if Triton finds the backend: among its own, or in one of the model's ``folders``."""
        if self.backends is None or (self.backends / name).is_dir():
            return True
        return any((folder / f"libtriton_{name}.so").exists() for folder in folders)


def _triton_version(program: Path) -> tuple[int, ...]:
    if is_wheel(program):
        return WHEEL_TRITON_VERSION
    try:
        return config_files.numbers((program.parent.parent / "TRITON_VERSION").read_text())
    except OSError:
        return ()
