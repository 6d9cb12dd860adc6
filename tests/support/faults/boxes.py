"""Start the box that is attacked, and find its processes."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

from sm.run_state import SHARED_MEMORY
from sm.settings import Settings
from tests.support.boxes import RunningBox, command_line, descendants, running_box, start_box, wait_until
from tests.support.disks import MOUNT_SMALL_DISK
from tests.support.faults.inputs import (
    DEMO_MODELS,
    Sample,
    demo_samples,
    echo_samples,
    v2_numbers,
    with_golden_answers,
)
from tests.support.tritons import MODELS
from trireme_tools.prepare.demo import prepare

#: A plain python model. Unlike the box's own runner, it has no protection against mixed-up answers.
ECHO, PAIR = "echo", "pair"
#: A model that takes as much memory as a request asks for.
GREEDY = "greedy"
#: Seconds that an invocation may take, and how much longer a caller waits until it counts a hang.
DEADLINE_S = 30
HANG_MARGIN_S = 10.0
#: The box's restart limit, above the number of faults that it gets.
RESTARTS = 1000
#: The folder for temporary files of a box with small disks.
SMALL_TMP = "tmp"
#: Docker's own size of /dev/shm is 64; the python backend wants 16 for each of the models' processes.
SMALL_SHM_MIB, SMALL_TMP_MIB = 256, 64
FEW_DESCRIPTORS = 128
#: Enough for the three demo models and a few requests.
MEMORY_LIMIT_BYTES = 2 * 2**30


def make_repository(folder: Path) -> Path:
    """Write a repository with the three demo models, :data:`ECHO` and :data:`GREEDY`."""
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


def make_small_repository(folder: Path) -> Path:
    """Write a repository with :data:`ECHO`, and the same model with two instances as :data:`PAIR`."""
    repository = folder / "model"
    for name in (ECHO, PAIR):
        MODELS[ECHO].write(repository / name)
    config = repository / PAIR / "config.pbtxt"
    config.write_text(config.read_text() + "instance_group [{count: 2, kind: KIND_CPU}]\n")
    return repository


def small_samples(box: RunningBox) -> list[Sample]:
    """Return the samples of the small models, with golden answers."""
    numbers = [v2_numbers(name, [1000.0 * number, 1.0]) for name in (ECHO, PAIR) for number in range(1, 33)]
    return with_golden_answers(numbers, box.port)


def link_or_copy(source: str, target: str) -> None:
    """Hard-link a file if it is on the same disk, because the demo's weights are large."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def small_disks(folder: Path) -> AbstractContextManager[str]:
    """Return a command prefix that mounts small disks on ``/dev/shm`` and the folder for temporary files."""
    (folder / SMALL_TMP).mkdir(exist_ok=True)
    small = MOUNT_SMALL_DISK.format(size=SMALL_TMP_MIB, folder=folder / SMALL_TMP)
    return nullcontext(f"{MOUNT_SMALL_DISK.format(size=SMALL_SHM_MIB, folder=SHARED_MEMORY)} {small}")


def few_descriptors(folder: Path) -> AbstractContextManager[str]:
    """Return a command prefix that limits the open files of each process."""
    return nullcontext(f"sh -c 'ulimit -n {FEW_DESCRIPTORS} && exec \"$@\"' sh")


@contextmanager
def limited_memory(folder: Path, size: int = MEMORY_LIMIT_BYTES) -> Iterator[str]:
    """Yield a command prefix that puts the box into a control group with a memory limit, like a container."""
    first, second = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")
    parent, limit = (first, "memory.limit_in_bytes") if first.is_dir() else (second, "memory.max")
    group = parent / f"trireme-faults-{os.getpid()}"
    group.mkdir()
    try:
        (group / limit).write_text(str(size))
        yield f"sh -c 'echo $$ > {group}/cgroup.procs && exec \"$@\"' sh"
    finally:
        wait_until(
            lambda: not (group / "cgroup.procs").read_text(), description="the end of the group's processes"
        )
        group.rmdir()


#: The command prefix of each kind of box.
BOX_KINDS: dict[str, Callable[[Path], AbstractContextManager[str]]] = {
    "": lambda folder: nullcontext(""),
    "small disks": small_disks,
    "few descriptors": few_descriptors,
    "limited memory": limited_memory,
}


@contextmanager
def attacked_box(folder: Path, repository: Path, kind: str = "") -> Iterator[RunningBox]:
    """Run a box with a high restart limit until the block ends. ``kind`` is one of :data:`BOX_KINDS`.

    Raises:
        AssertionError: The box left a process or a file in shared memory behind.
    """
    with BOX_KINDS[kind](folder) as through:
        variables = {
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
            **variables,
        ) as box:
            yield box
            processes = all_processes(box)
            # A box with a /dev/shm of its own leaves nothing: the disk is gone with the box.
            identity = "" if kind == "small disks" else box.box_id()
        wait_until(
            lambda: not [pid for pid in processes if command_line(pid)],
            description="the end of every process",
        )
        leftovers = [path.name for path in SHARED_MEMORY.glob(f"*{identity}*")] if identity else []
        assert not leftovers, f"left in {SHARED_MEMORY}: {leftovers}"


def restart(box: RunningBox) -> None:
    """Start an ended box again on the same port."""
    variables = {
        name: value for name, value in box.environment.items() if name.startswith(("SAGEMAKER_", "TRIREME_"))
    }
    box.process = start_box(box.log.parent, None, (), "", "", **variables).process


def learn_samples(box: RunningBox, count: int = 8) -> list[Sample]:
    """Return the samples with golden answers, which an idle box gives."""
    return with_golden_answers([*demo_samples(count), *echo_samples(ECHO)], box.port)


def masters(box: RunningBox, words: str) -> list[int]:
    """Return the processes with ``words`` in their command line that no other such process started."""
    pids = box.pids(words)
    return [pid for pid in pids if not any(pid in descendants(other) for other in pids if other != pid)]


def workers(box: RunningBox, words: str) -> list[int]:
    """Return the processes with ``words`` in their command line that another such process started."""
    return [pid for pid in box.pids(words) if pid not in masters(box, words)]


def triton(box: RunningBox) -> list[int]:
    return box.pids("tritonserver --")


def stubs(box: RunningBox, model: str = "") -> list[int]:
    """Return the python backend's processes, of one model or of all."""
    found = box.pids("triton_python_backend_stub")
    return [pid for pid in found if f"/{model}/" in command_line(pid)] if model else found


def watchdog(box: RunningBox) -> list[int]:
    """Return the watchdog, which cleans up after a killed supervisor."""
    return [pid for pid in box.pids("/serve") if "sm.server.worker" not in command_line(pid)]


def all_processes(box: RunningBox) -> list[int]:
    """Return all processes, the supervisor first: stopped first, it does not see the others stop."""
    return [box.process.pid, *descendants(box.process.pid)]
