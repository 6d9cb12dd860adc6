"""The models of a repository on disk, their ``config.pbtxt``, and the code folder beside them.

This module alone decides what counts as a model. Files are only read, never executed.
"""

from __future__ import annotations

import copy
import difflib
import functools
import hashlib
import importlib.metadata
import importlib.util
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from google.protobuf import text_format

from sm import hardware
from sm.errors import StartError
from sm.settings import PROGRAM, Settings

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
#: The file of a client that has a folder of its own.
CLIENT_FILE = "client.py"
#: The packages that a code folder needs, and the folder of wheels beside; if that exists, no index is used.
REQUIREMENTS_FILE, WHEELS_FOLDER = "requirements.txt", "wheels"
#: Folders that file systems and tools make in any folder: ext4, Windows, macOS's archives, Synology, Python.
LEFT_BY_OTHERS = frozenset(
    {"lost+found", "System Volume Information", "$RECYCLE.BIN", "__MACOSX", "@eaDir", "__pycache__"}
)
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
#: Where Triton reads the data that warm-ups and first states name.
WARM_UP, FIRST_STATE = "warmup", "initial_state"
#: Backends whose models are not run by Triton's python backend. Any other may be written in Python.
NATIVE = {*FILES, *PLATFORMS.values(), "identity", "repeat", "square", "fil"} - {"python", "vllm"}
#: Characters that no name of a Python model may have: such a name has no model, or worse, on Triton 2.51, and
#: Triton 2.71 refuses all but white space.
NOT_A_LETTER = re.compile(r"""[\0-\x20\x7f;|&$`<>()\[\]{}\\"'*?~#!]""")
#: Bytes. Real configurations have a few kilobytes, and the text parser takes seconds for a megabyte.
MAX_CONFIG_BYTES = 2**20
#: Messages of the text parser for a field or a value that it does not know.
UNKNOWN_FIELD = re.compile(r'Message type "([\w.]+)" has no field named "(\w+)"')
UNKNOWN_VALUE = re.compile(r"Enum type .* has no value named")


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
    #: The folder that its owner knows, if this one is a copy of it.
    source: Path | None = None

    @classmethod
    def read(cls, folder: Path, source: Path | None = None) -> Model:
        path = folder / CONFIG
        if not path.exists() and not path.is_symlink():
            return cls(folder, None, source=source)
        try:
            return cls(folder, read_config(path, (source or folder) / CONFIG), source=source)
        except ValueError as error:
            return cls(folder, None, str(error), isinstance(error, UnknownName), source)

    def shown(self, path: Path | str = "") -> Path:
        """Return the folder, or a path in it, as sentences name it."""
        return (self.source or self.folder) / (self.folder / path).relative_to(self.folder)

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
    def may_be_python(self) -> bool:
        """True if a process of Triton's python backend may run the model."""
        runtime = self.config.runtime if self.config else ""
        return runtime.endswith(".py") or (bool(self.backend) and self.backend not in NATIVE)

    @property
    def names_in_command(self) -> Iterator[tuple[str, str]]:
        """Yield what Triton 2.51 starts a Python model's process with, without the model's name.

        Each is its place in the configuration, and the text.
        """
        if self.config is None or not self.may_be_python:
            return
        yield from (("the name of an instance_group", group.name) for group in self.config.instance_group)
        yield "default_model_filename", self.config.default_model_filename
        environment = self.environment
        if environment is None:
            if ENVIRONMENT in self.config.parameters:
                yield ENVIRONMENT, self.config.parameters[ENVIRONMENT].string_value
        elif not environment.is_file():  # Triton unpacks an archive to a folder of its own
            yield ENVIRONMENT, str(environment.resolve())

    @property
    def has_own_environment(self) -> bool:
        """True if the environment is in the model's folder, so that it moves with the repository."""
        return self.environment is not None and self.folder in self.environment.parents

    @property
    def named_files(self) -> frozenset[Path]:
        """The files in the model's folder that the configuration names, by their paths in it: labels, the
        data of warm-ups and of first states, and paths in parameters.
        """
        if self.config is None:
            return frozenset()
        warm_ups = (value for each in self.config.model_warmup for value in each.inputs.values())
        first_states = (value for each in self.config.sequence_batching.state for value in each.initial_state)
        names = [
            *(output.label_filename for output in self.config.output),
            *(f"{WARM_UP}/{value.input_data_file}" for value in warm_ups if value.input_data_file),
            *(f"{FIRST_STATE}/{value.data_file}" for value in first_states if value.data_file),
            *(value.string_value.removeprefix(f"{OWN_FOLDER}/") for value in self.config.parameters.values()),
        ]
        return frozenset(Path(name) for name in names if _is_file_within(self.folder, name))

    @property
    def wants_gpu(self) -> bool:
        """True if the configuration asks for instances on a GPU."""
        return any(map(is_on_gpu, self.config.instance_group)) if self.config else False

    @property
    def has_state(self) -> bool:
        """True if the model keeps state between the requests of a sequence."""
        return bool(self.config and self.config.HasField("sequence_batching"))

    def version(self, number: int) -> Path:
        return self.folder / str(number)


def _is_file_within(folder: Path, name: str) -> bool:
    """True if ``name`` is the path of a file in the folder, without a step up."""
    path = Path(name)
    try:
        return bool(name) and not path.is_absolute() and ".." not in path.parts and (folder / path).is_file()
    except (OSError, ValueError):  # a parameter may be any text: too long for a name, or with a null byte
        return False


def is_own(name: str) -> bool:
    """True if a repository's entry of this name is the team's: not hidden, and not left by a file system."""
    return not name.startswith(".") and name not in LEFT_BY_OTHERS


def may_be_model(name: str) -> bool:
    """True if a repository's folder of this name may be a model."""
    return is_own(name) and name != CODE


def fault_of_name(name: str) -> str:
    """Return what is wrong with a name that Triton gives to a Python model's process; empty if nothing."""
    found = NOT_A_LETTER.search(name)
    return f"{found[0]!r} in {name[:200]!r}" if found else ""


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


def read(repository: Path, source: Path | None = None) -> tuple[Model, ...]:
    """Read the folders of a repository that may be models, by name. ``source``: of which it is a copy."""
    return tuple(Model.read(folder, source and source / folder.name) for folder in _folders(repository))


def _folders(repository: Path) -> list[Path]:
    return [path for path in sorted(repository.iterdir()) if may_be_model(path.name) and path.is_dir()]


def digest(repository: Path, name: str) -> str:
    """Return a digest of the model's files and of the clients in ``code/``: names, sizes and times."""
    files = (
        file
        for folder in (repository / name, repository / CODE)
        for file in sorted(folder.rglob("*"))
        if file.is_file() and file.suffix != ".pyc"
    )
    rows = [
        (str(file.relative_to(repository)), (at := file.stat()).st_size, at.st_mtime_ns) for file in files
    ]
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()


def sha256(path: Path) -> str:
    """Return the digest of a file's content in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class UnknownName(ValueError):
    """The file has a field or value that this version of Triton's protobuf does not know."""


@functools.cache
def protobuf() -> ModuleType:
    """Import ``model_config_pb2`` without its package, which would load gRPC: 30 MB more in PID 1."""
    package = importlib.util.find_spec("tritonclient")
    (home, *_) = package.submodule_search_locations or [""] if package else [""]
    path = Path(home) / "grpc" / "model_config_pb2.py"
    spec = importlib.util.spec_from_file_location("tritonclient.grpc.model_config_pb2", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is missing from tritonclient")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def read_config(path: Path, shown: Path | None = None) -> Any:
    """Read a ``ModelConfig``. Raises ValueError with the file, as ``shown``, the fault and its line."""
    shown = shown or path
    try:
        if path.exists() and not path.is_file():
            raise ValueError(f"{shown} is not a regular file.")
        if path.stat().st_size > MAX_CONFIG_BYTES:
            raise ValueError(
                f"{shown} has more than {MAX_CONFIG_BYTES} bytes: that is not a Triton configuration."
            )
        return text_format.Parse(path.read_text("utf-8-sig"), protobuf().ModelConfig())
    except text_format.ParseError as error:
        raise _explain(shown, error) from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{shown} is not a Triton configuration: {error}.") from None
    except OSError as error:
        raise ValueError(f"{shown} cannot be read: {error.strerror}.") from None


def write_config(config: Any) -> str:
    """Format a ``ModelConfig`` as the text of a file."""
    return str(text_format.MessageToString(config))


def is_on_gpu(group: Any) -> bool:
    """True if an instance group needs a GPU, by its kind or by its list of GPUs."""
    return bool(group.gpus) or group.kind == protobuf().ModelInstanceGroup.KIND_GPU


def without_gpu(config: Any) -> Any:
    """Return a copy whose instances run on the CPU."""
    changed = copy.deepcopy(config)
    for group in filter(is_on_gpu, changed.instance_group):
        group.kind = protobuf().ModelInstanceGroup.KIND_CPU
        del group.gpus[:]
    return changed


def protobuf_version() -> tuple[int, ...]:
    """Return the Triton version that the protobuf comes from; empty if unknown."""
    try:
        return hardware.version_numbers(importlib.metadata.version("tritonclient"))[:2]
    except importlib.metadata.PackageNotFoundError:
        return ()


def _explain(path: Path, error: text_format.ParseError) -> ValueError:
    """Add the line to the parser's message, and the name that was probably meant."""
    message = re.sub(r"^(\d+:\d+ : )+", "", str(error)).rstrip(".")
    line = f"line {error.GetLine()}: " if error.GetLine() else ""
    field = UNKNOWN_FIELD.search(message)
    if field:
        fields = protobuf().DESCRIPTOR.pool.FindMessageTypeByName(field[1]).fields_by_name
        close = difflib.get_close_matches(field[2], list(fields), 1)
        suggestion = f" (is {close[0]!r} meant?)" if close else ""
        message = f"there is no field {field[2]!r}{suggestion}"
    sentence = f"{path} is not a Triton configuration: {line}{message}."
    return UnknownName(sentence) if field or UNKNOWN_VALUE.search(message) else ValueError(sentence)


@dataclass(frozen=True)
class CodeFolder:
    """A folder with clients: ``code/`` of a repository or an archive, or one that a setting names."""

    folder: Path
    #: The file in it that ``SAGEMAKER_PROGRAM`` names.
    program: str = PROGRAM
    #: True in an archive for multi-model mode, which has one client: other files are its modules.
    is_archive: bool = False

    @classmethod
    def of(cls, settings: Settings, repository: Path) -> CodeFolder:
        """Return the folder that ``SAGEMAKER_SUBMIT_DIRECTORY`` names if it exists, else ``code/`` beside
        the models.

        Raises:
            StartError: The folder does not have the file that ``SAGEMAKER_PROGRAM`` names.
        """
        submitted = settings.submit_directory
        code = cls(submitted if submitted and submitted.is_dir() else repository / CODE, settings.program)
        if code.program != PROGRAM and code.folder.is_dir() and not code.file.is_file():
            raise StartError(f"SAGEMAKER_PROGRAM={code.program!r} is not in {code.folder}.")
        return code

    @property
    def file(self) -> Path:
        """The program's file; a dotted name is that of a module below."""
        return self.folder / f"{self.program.removesuffix('.py').replace('.', '/')}.py"

    def files(self) -> list[Path]:
        """Return the Python files that may be clients, by their path: of a folder its ``client.py``.

        Beside a ``client.py`` in the folder itself the other files are its modules.
        """
        own = [path for path in self._entries() if not path.name.startswith("_")]
        alone = [path for path in own if path.name == CLIENT_FILE]
        files = alone or [path for path in own if path.suffix == ".py" and not self.is_archive]
        folders = [] if alone and self.is_archive else [path / CLIENT_FILE for path in own]
        return [path for path in sorted([*files, *folders]) if path.is_file()]

    @property
    def is_empty(self) -> bool:
        """True if it has nothing that may be a client. The worker decides which file is a client."""
        return not any(path.name not in (REQUIREMENTS_FILE, WHEELS_FOLDER) for path in self._entries())

    def _entries(self) -> list[Path]:
        return [path for path in self.folder.glob("*") if is_own(path.name)] if self.folder.is_dir() else []
