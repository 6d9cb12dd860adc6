"""List every problem that would stop a start, each with the next step.

``sm inspect``, ``sm package``, ``serve`` and loads in multi-model mode use it. A problem that may not stop
Triton is a warning: nothing that Triton accepts may be refused. What the box reads itself, as a parameter
``trireme_…``, is certain.
"""

from __future__ import annotations

import json
import re
import tarfile
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from sm.hardware import Hardware
from sm.repository import ensembles, models
from sm.repository.machine import STUB, VERSION, Machine, stub_version
from sm.repository.models import CODE, CONFIG, MAX_VERSION, CodeFolder, Model

#: Backends whose models certainly need their file; see :data:`sm.repository.models.FILES`.
NEEDS_FILE = ("python", "onnxruntime", "tensorrt")
#: A larger ``model.py`` is not parsed.
MAX_SCRIPT_BYTES = 2**20
#: The digits that Triton reads as a folder's version: as C does, it ignores the rest of the name.
C_NUMBER = re.compile(r"\s*([+-]?[0-9]+)")
#: The CPU target's ``model.py``, a copy of which lies beside each graph that it runs, begins like this.
ONNX_PROGRAM = b'"""An ONNX graph in Triton\'s python backend: how the CPU target runs every model.'
#: A Git LFS pointer begins like this.
LFS_POINTER = b"version https://git-lfs"
#: Seconds for reading an archive's first files. After that the version is unknown.
MAX_READ_S = 3.0
#: In a path of HTTP these would end a name or the line, and Triton decodes no name.
UNREACHABLE = re.compile(r"[\0-\x20\x7f?#]")
#: The path of a file of Python in an environment. It leaves out ``python3.1``, a link that conda creates for
#: Python 3.10 and later.
LIBRARY = re.compile(r"^(?:\./)?lib/(?:lib)?python(3\.(?!1(?:/|$|\.so))\d+)(?:/|\.so|$)")


@dataclass(frozen=True)
class Problem:
    """A problem of a model or of the repository."""

    sentence: str
    #: True if Triton would refuse the model; False for a warning.
    is_certain: bool = True
    #: True if this machine lacks something; elsewhere the model may start.
    is_local: bool = False
    #: True if the model's load would never end, or would end Triton, so that no model would be served.
    hangs: bool = False

    def __str__(self) -> str:
        return self.sentence


def find(repository: Path, machine: Machine | None = None) -> list[Problem]:
    """Return the problems of a start on ``machine``, model by model; the default is this machine."""
    if not repository.is_dir():
        return [Problem(f"{repository} is not a folder.")]
    if (repository / CONFIG).exists():
        root = (
            f"Model directory needs to contain the top level folder: {repository} has a config.pbtxt itself."
        )
        return [Problem(root)]
    repository_models = models.read(repository)
    if (
        not any(models.is_model(model.folder) for model in repository_models)
        and not CodeFolder(repository / CODE).is_empty
    ):
        return []
    if not repository_models:
        return [
            Problem(
                f"There is no model in {repository}: each is a folder with a config.pbtxt and a folder 1."
            )
        ]
    machine = machine or Machine.of_this_host()
    model_problems = [
        problem for model in repository_models for problem in (*_shape(model), *of_model(model, machine))
    ]
    return [
        *model_problems,
        *map(Problem, ensembles.problems(repository_models)),
        *gpu_problems(repository_models, machine),
        *plans(repository_models),
    ]


def of_model(model: Model, machine: Machine) -> Iterator[Problem]:
    """Yield the problems of one model, but not of its name and versions, which multi-model mode corrects."""
    yield from _unusable_versions(model)
    if model.fault:
        yield Problem(model.fault, is_certain=machine.knows_all_names or not model.unknown_name)
        return
    if model.config is None and not model.backend:
        return
    yield from _names_in_command(model)
    yield from _missing_config(model, machine)
    yield from _backend(model, machine)
    yield from _files(model)
    yield from _instances(model, machine)
    yield from _graphs(model)
    yield from _environment(model, machine)
    yield from _engine(model, machine)
    yield from _scripts(model, machine)


def gpu_problems(inspected: Sequence[Model], machine: Machine) -> Iterator[Problem]:
    """Yield the problems of models that ask for a GPU on a machine without one."""
    plan_models = [model for model in inspected if model.backend == "tensorrt"]
    movable = on_cpu(inspected, machine)
    if not (plan_models or movable) or machine.has_gpu:
        return
    for model in plan_models:
        # A plan with a manifest has a sentence that says more.
        if not plans([model]):
            yield Problem(
                f"{model.shown()} is a TensorRT plan, and there is no GPU here: start it on a machine with "
                "the GPU that it was built for, or build it for the CPU: "
                f"sm build-model {model.name} --target cpu.",
                is_local=True,
            )
    if movable:
        names = ", ".join(model.name for model in movable)
        fault = f"{names}: the config.pbtxt wants a GPU (KIND_GPU), and there is none here"
        yield Problem(f"{fault}: it runs on the CPU.", is_certain=False, is_local=True)


def on_cpu(inspected: Sequence[Model], machine: Machine) -> list[Model]:
    """Return the models that ask for a GPU, but will run on the CPU of this machine."""
    movable = [model for model in inspected if model.wants_gpu and model.backend != "tensorrt"]
    return [] if not movable or machine.has_gpu else movable


def plans(inspected: Sequence[Model]) -> list[Problem]:
    """Return the problems of plans that cannot or may not run here, and of manifests that cannot be read.

    Without a plan to serve, neither the driver is queried nor the manifest's types are imported.
    """
    folders = plan_folders(inspected)
    if not folders:
        return []
    hardware = Hardware.find()
    sentences = (manifest_problem(folder, hardware) for folder in folders)
    return [Problem(sentence, is_local=True) for sentence in sentences if sentence]


def manifest_problem(folder: Path, hardware: Hardware) -> str | None:
    """Explain what is wrong with a version folder's manifest, or with its plan on this hardware."""
    from sm.repository.manifest import Manifest

    try:
        manifest = Manifest.read(folder)
    except ValueError as error:
        return f"{error} Build it again: sm build-model {folder.parent.name}."
    return manifest.find_misfit(hardware) if manifest else None


def plan_folders(inspected: Iterable[Model]) -> list[Path]:
    """Return the version folders to serve that have a plan, or had one."""
    folders = (model.version(number) for model in inspected for number in model.served)
    return list(filter(holds_plan, folders))


def holds_plan(folder: Path) -> bool:
    """True if the manifest of a version folder describes a plan, or is not JSON."""
    try:
        manifest = json.loads((folder / "manifest.json").read_bytes())
    except FileNotFoundError:
        return False
    except (OSError, ValueError):
        return True
    return not isinstance(manifest, dict) or manifest.get("target") not in ("cpu", "onnxruntime")


def _shape(model: Model) -> Iterator[Problem]:
    """Check that the folder is a model, that it has one name, and that it has versions."""
    yield from name_problems(model)
    if model.fault:
        return
    if model.config is None and not model.backend:
        yield Problem(f"{model.shown()} has no config.pbtxt, and no version folder that says what it is.")
        return
    if model.config and model.config.name not in ("", model.name):
        yield Problem(
            f"{model.shown(CONFIG)} names the model {model.config.name!r}; its folder is {model.name!r}: "
            "give both one name."
        )
    if not model.versions:
        first = model.shown(model.version(1))
        yield Problem(f"{model.shown()} has no version folder: put the model's file into {first}.")
        return
    for number in sorted(set(model.served) - set(model.versions)):
        yield Problem(f"{model.shown()} has no version folder {number}, which its config.pbtxt wants served.")


def name_problems(model: Model) -> Iterator[Problem]:
    """Check a model's name. Triton calls a process of a Python model by it."""
    fault = models.fault_of_name(model.name) if model.may_be_python else ""
    if fault:
        yield Problem(
            f"The folder of the Python model {model.shown()} has {fault}, which not every Triton takes: "
            "give it a name of letters, digits and any of . _ - @ + = % , :",
            hangs=True,
        )
    elif found := UNREACHABLE.search(model.name):
        yield Problem(
            f"The folder of the model {model.shown()} has {found[0]!r} in its name, with which Triton's "
            "HTTP cannot be asked for it: give it a name of letters, digits and any of . _ - @ + = % , :"
        )


def _names_in_command(model: Model) -> Iterator[Problem]:
    for place, name in model.names_in_command:
        if fault := models.fault_of_name(name):
            yield Problem(
                f"{model.shown(CONFIG)}: {place} has {fault}, which not every Triton takes: "
                "take that character out.",
                hangs=True,
            )
            return


def _missing_config(model: Model, machine: Machine) -> Iterator[Problem]:
    if model.config is not None:
        return
    if not machine.completes:
        yield Problem(
            f"{model.shown()} has no config.pbtxt, and SAGEMAKER_TRITON_ADDITIONAL_ARGS keeps Triton from "
            "completing it: write one."
        )
    for number in model.served:
        misplaced = model.version(number) / CONFIG
        if misplaced.exists():
            yield Problem(
                f"Triton does not read {model.shown(misplaced)}: it finds out the model's inputs and outputs "
                f"itself. Move the file to {model.shown(CONFIG)} to have it read.",
                is_certain=False,
            )


def _backend(model: Model, machine: Machine) -> Iterator[Problem]:
    name = model.backend
    if not name or name == "ensemble" or (model.config and model.config.runtime):
        return
    if name == "tensorrt" and not machine.has_gpu:
        return  # gpu_problems has a sentence that says what to do.
    folders = (model.folder, *(model.version(number) for number in model.versions))
    if not machine.has_backend(name, folders):
        assert machine.backends is not None
        available = ", ".join(sorted(path.name for path in machine.backends.iterdir() if path.is_dir()))
        hint = (
            f": build it for the CPU, sm build-model {model.name} --target cpu, or start it in NVIDIA's image"
            if name == "onnxruntime"
            else ": correct the name, or start it with a Triton that has it"
        )
        yield Problem(
            f"{model.shown()} wants the backend {name!r}, which this Triton does not have "
            f"({machine.backends} has {available or 'none'}){hint}.",
            is_local=True,
        )


def _unusable_versions(model: Model) -> Iterator[Problem]:
    """Yield folders that look like versions. Triton takes a number of 63 bits."""
    for name in sorted(path.name for path in model.folder.iterdir() if path.is_dir()):
        number = C_NUMBER.match(name)
        if (
            number
            and not (name[0] == "0" and len(name) > 1)
            and not -MAX_VERSION <= int(number[1]) <= MAX_VERSION
        ):
            yield Problem(
                f"{model.shown()} has the version folder {name!r}: a version is at most {MAX_VERSION}.",
                hangs=True,
            )


def _instances(model: Model, machine: Machine) -> Iterator[Problem]:
    """Check how many instances all served versions have: each is a process, or memory of its own."""
    if machine.max_instances is not None and model.instances > machine.max_instances:
        yield Problem(
            f"{model.shown()} wants {model.instances} instances, more than the {machine.max_instances} that "
            "a model may have: lower the count in its instance_group."
        )


def _files(model: Model) -> Iterator[Problem]:
    for number in sorted(set(model.served) & set(model.versions)):
        folder = model.version(number)
        if model.file and not (folder / model.file).exists():
            yield Problem(
                f"{model.shown(folder)} has no {model.file}, which the {model.backend} backend wants.",
                is_certain=model.backend in NEEDS_FILE,
                hangs=model.backend == "python",
            )


def _graphs(model: Model) -> Iterator[Problem]:
    """Yield the ONNX files that are not there in truth."""
    for folder in _served_folders(model):
        if model.backend == "onnxruntime":
            file, is_certain = folder / (model.file or "model.onnx"), True
        elif model.backend == "python":
            file, is_certain = folder / "model.onnx", _is_runner(folder / "model.py")
        else:
            continue
        if not file.is_file():
            continue
        with file.open("rb") as stream:
            beginning = stream.read(len(LFS_POINTER))
        if not beginning:
            yield Problem(f"{model.shown(file)} is empty.", is_certain=is_certain)
        elif beginning == LFS_POINTER:
            fault = "is a pointer of Git LFS, not the file itself: run git lfs pull"
            yield Problem(f"{model.shown(file)} {fault}.", is_certain=is_certain)


def _environment(model: Model, machine: Machine) -> Iterator[Problem]:
    """Check that a model's Python environment exists and has the Python of its stub."""
    environment = model.environment
    if environment is None or model.backend != "python":
        return
    if not environment.exists():
        place = model.shown(environment) if model.has_own_environment else environment
        yield Problem(
            f"{model.shown(CONFIG)} wants the environment {place}, which is not there: "
            "make it with sm pack-env.",
            is_local=not model.has_own_environment,
        )
        return
    stub = _stub_python(model, machine)
    python = find_python(environment) if stub else ""
    if python and python != stub:
        yield Problem(
            f"{model.shown()}: its environment {environment.name} is made for Python {python}, but "
            f"Triton would run it with Python {stub}. Make the environment for {stub} "
            f"(sm pack-env --python {stub}), or put the {STUB} for {python} into the model's folder.",
            is_local=not (model.folder / STUB).is_file(),
        )


def _engine(model: Model, machine: Machine) -> Iterator[Problem]:
    """Yield the CPU target's models that run on another Python than the box, so not with its engines.

    The other Python may have engines of its own.
    """
    python = _stub_python(model, machine)
    if model.environment or python in ("", VERSION):
        return
    for folder in _served_folders(model):
        if _is_runner(folder / "model.py"):
            yield Problem(
                f"{model.shown(folder / 'model.py')} runs its graph with ONNX Runtime, which this box has "
                f"for Python {VERSION}, and Triton runs the model on Python {python}: install onnxruntime "
                "there, give the model an environment (sm pack-env), or build it with --target onnxruntime.",
                is_certain=False,
                is_local=True,
            )


def _scripts(model: Model, machine: Machine) -> Iterator[Problem]:
    """Yield syntax errors of a Python model, if it runs on the same Python as this process."""
    if model.backend != "python" or model.environment or _stub_python(model, machine) != VERSION:
        return
    for folder in _served_folders(model):
        file = folder / (model.file or "model.py")
        try:
            if not file.is_file() or file.stat().st_size > MAX_SCRIPT_BYTES:
                continue
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                compile(file.read_bytes(), file, "exec", dont_inherit=True)
        except SyntaxError as error:
            yield Problem(f"{model.shown(file)}, line {error.lineno}: {error.msg}.")
        except (OSError, ValueError, RecursionError, MemoryError):
            continue


def _stub_python(model: Model, machine: Machine) -> str:
    """Return the Python of the stub that runs a model: its own, or Triton's."""
    return stub_version(model.folder / STUB) or machine.python


def _served_folders(model: Model) -> list[Path]:
    return [model.version(number) for number in sorted(set(model.served) & set(model.versions))]


def _is_runner(program: Path) -> bool:
    """True if a model's program is the CPU target's."""
    try:
        with program.open("rb") as file:
            return file.read(len(ONNX_PROGRAM)) == ONNX_PROGRAM
    except OSError:
        return False


def find_python(environment: Path, seconds: float = MAX_READ_S) -> str:
    """Return the minor version, such as 3.12; empty if it cannot be told in time."""
    try:
        if environment.is_dir():
            return _first_version(f"lib/{path.name}" for path in sorted((environment / "lib").iterdir()))
        give_up_at = time.monotonic() + seconds
        with tarfile.open(environment, "r|*") as archive:
            members = takewhile(lambda _: time.monotonic() < give_up_at, archive)
            return _first_version(member.name for member in members)
    except (OSError, EOFError, tarfile.TarError):
        return ""


def _first_version(names: Iterable[str]) -> str:
    return next((match[1] for name in names if (match := LIBRARY.match(name))), "")
