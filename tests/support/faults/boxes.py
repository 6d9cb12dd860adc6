"""The box that is attacked, and its processes by what they are."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

from sm.run_state import SHARED_MEMORY
from sm.settings import Settings
from sm.tools.build.prepare import prepare
from tests.support.boxes import RunningBox, command_line, descendants, running_box, start_box, wait_until
from tests.support.disks import MOUNT_SMALL_DISK
from tests.support.faults.inputs import DEMO_MODELS, Sample, demo_samples, echo_samples, with_golden_answers
from tests.support.tritons import MODELS

#: A team's python model, without any help of the box's own runner against mixed-up answers.
ECHO = "echo"
#: One that takes as much memory as it is asked to.
GREEDY = "greedy"
#: Seconds that an invocation may take in the attacked box, and how much longer a caller waits before it is a hang.
DEADLINE_S = 30
HANG_MARGIN_S = 10.0
#: So many faults are no reason to give the box up.
RESTARTS = 1000
#: The small box's folder for temporary files.
SMALL_TMP = "tmp"
#: Docker's own size of /dev/shm is 64; the python backend wants 16 for each of the models' processes.
SMALL_SHM_MIB, SMALL_TMP_MIB = 256, 64
FEW_DESCRIPTORS = 128
#: For a box that serves the three models, with room for a few requests.
MEMORY_LIMIT_BYTES = 2 * 2**30


def make_repository(folder: Path) -> Path:
    """The three demo models, :data:`ECHO` and :data:`GREEDY`."""
    settings = Settings.read({})
    prepare(settings)
    repository = folder / "repository"
    for model in DEMO_MODELS:
        shutil.copytree(
            settings.cache / "repository" / "cpu" / model, repository / model, copy_function=link_or_copy
        )
    for model in (ECHO, GREEDY):
        MODELS[model].write(repository / model)
    return repository


def link_or_copy(source: str, target: str) -> None:
    """The demo's weights are large: a hard link where the disk is the same."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def small_disks(folder: Path) -> AbstractContextManager[str]:
    """``/dev/shm`` and the folder for temporary files are disks of their own."""
    (folder / SMALL_TMP).mkdir(exist_ok=True)
    small = MOUNT_SMALL_DISK.format(size=SMALL_TMP_MIB, folder=folder / SMALL_TMP)
    return nullcontext(f"{MOUNT_SMALL_DISK.format(size=SMALL_SHM_MIB, folder=SHARED_MEMORY)} {small}")


def few_descriptors(folder: Path) -> AbstractContextManager[str]:
    """No process of the box may open more than a few files."""
    return nullcontext(f"sh -c 'ulimit -n {FEW_DESCRIPTORS} && exec \"$@\"' sh")


@contextmanager
def limited_memory(folder: Path) -> Iterator[str]:
    """The kernel keeps the box to a limit by killing, as it keeps a container."""
    first, second = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")
    parent, limit = (first, "memory.limit_in_bytes") if first.is_dir() else (second, "memory.max")
    group = parent / f"trireme-faults-{os.getpid()}"
    group.mkdir()
    try:
        (group / limit).write_text(str(MEMORY_LIMIT_BYTES))
        yield f"sh -c 'echo $$ > {group}/cgroup.procs && exec \"$@\"' sh"
    finally:
        wait_until(
            lambda: not (group / "cgroup.procs").read_text(), description="the end of the group's processes"
        )
        group.rmdir()


#: Ways to start the box, each a command line that becomes the box in the end.
KINDS: dict[str, Callable[[Path], AbstractContextManager[str]]] = {
    "": lambda folder: nullcontext(""),
    "small disks": small_disks,
    "few descriptors": few_descriptors,
    "limited memory": limited_memory,
}


@contextmanager
def attacked_box(folder: Path, repository: Path, kind: str = "") -> Iterator[RunningBox]:
    """A box that is ready, and expects many deaths; ``kind`` is one of :data:`KINDS`.

    Raises:
        AssertionError: The box left a process or a file in shared memory behind.
    """
    with KINDS[kind](folder) as through:
        chosen = {
            "TRIREME_RESTARTS": str(RESTARTS),
            "SAGEMAKER_MODEL_SERVER_TIMEOUT": str(DEADLINE_S),
            **({"TMPDIR": str(folder / SMALL_TMP)} if kind == "small disks" else {}),
        }
        with running_box(
            folder,
            repository,
            wait_until_ready=True,
            clients=(),
            command_prefix=through,
            arguments="",
            **chosen,
        ) as box:
            yield box
            processes = everything(box)
            # A disk of its own is gone with the box, and so is what lay there.
            identity = "" if kind == "small disks" else box.box_id()
        wait_until(
            lambda: not [pid for pid in processes if command_line(pid)],
            description="the end of every process",
        )
        left = [path.name for path in SHARED_MEMORY.glob(f"*{identity}*")] if identity else []
        assert not left, f"left in {SHARED_MEMORY}: {left}"


def restart(box: RunningBox) -> None:
    """Start a box that has ended again, on the same port."""
    chosen = {
        name: value for name, value in box.environment.items() if name.startswith(("SAGEMAKER_", "TRIREME_"))
    }
    box.process = start_box(box.log.parent, None, (), "", "", **chosen).process


def learn_samples(box: RunningBox, count: int = 8) -> list[Sample]:
    """The samples with the golden answers of this box at rest."""
    return with_golden_answers([*demo_samples(count), *echo_samples(ECHO)], box.port)


def masters(box: RunningBox, words: str) -> list[int]:
    """The processes of a kind that its own kind did not start."""
    pids = box.pids(words)
    return [pid for pid in pids if not any(pid in descendants(other) for other in pids if other != pid)]


def workers(box: RunningBox, words: str) -> list[int]:
    """The processes of a kind below their master."""
    return [pid for pid in box.pids(words) if pid not in masters(box, words)]


def triton(box: RunningBox) -> list[int]:
    return box.pids("tritonserver --")


def stubs(box: RunningBox, model: str = "") -> list[int]:
    """The processes of Triton's python backend, of one model or of all."""
    found = box.pids("triton_python_backend_stub")
    return [pid for pid in found if f"/{model}/" in command_line(pid)] if model else found


def guard(box: RunningBox) -> list[int]:
    """The process that cleans up after a supervisor that was killed."""
    return [pid for pid in box.pids("/serve") if "sm.server.worker" not in command_line(pid)]


def everything(box: RunningBox) -> list[int]:
    """The supervisor first, so that it does not see the others stop."""
    return [box.process.pid, *descendants(box.process.pid)]
