"""The base class of what is measured: a service that starts, answers HTTP requests and stops."""

from __future__ import annotations

import os
import subprocess
import sys
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Literal

from bench.driver import Request, wrk
from sm.errors import CommandError
from sm.settings import HERE, Settings

__all__ = ["Contestant", "Request"]

Regime = Literal["real", "instant"]
REGIMES: tuple[Regime, ...] = ("real", "instant")
MODELS = ("resnet", "yolov5", "bert_base")
#: JSON, with base64 where it is a picture; the picture or text itself.
FORMS = ("json", "raw")
#: The form of contestants that do only a part of the work: ready tensors.
READY = "ready"
#: Parallel processes, and threads of ONNX Runtime in each: the same for every contestant.
PROCESSES, THREADS = len(os.sched_getaffinity(0)), 1
#: glibc's allocator, as the box sets it for its own workers: see sm/server/supervisor/processes.py.
#: With the defaults every server that handles pictures spends much of its time on page faults.
ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": str(32 * 2**20), "MALLOC_TRIM_THRESHOLD_": str(128 * 2**20)}


class Contestant(ABC):
    """A service on a port of loopback. ``folder`` is its own, for one run; it is removed afterwards.

    ``files`` has what all contestants share (see :mod:`bench.files`).
    """

    name: ClassVar[str]
    #: One line for the table: what it is, and the settings that matter.
    about: ClassVar[str]
    #: A path that answers 200 when the contestant is ready.
    ready_path: ClassVar[str] = "/ping"
    #: True if its caller is a part of it: then the caller's processor time and memory count too.
    asked_by_itself: ClassVar[bool] = False
    regimes: ClassVar[tuple[Regime, ...]] = REGIMES

    def __init__(self, port: int, regime: Regime, folder: Path, files: Path) -> None:
        self.port, self.regime, self.folder, self.files = port, regime, folder, files

    def prepare(self) -> None:  # noqa: B027 - most have nothing to prepare
        """Create what the command needs, such as packages, if it is missing. Called before each start."""

    @abstractmethod
    def command(self) -> Sequence[str]:
        """Return the command that runs the service in the foreground; SIGTERM ends it and its children.

        Empty if there is nothing to start, because the caller does the work.
        """

    def environment(self) -> dict[str, str]:
        """Return the variables to add: models, regime and the allocator's settings."""
        return {
            **ALLOCATOR,
            "PYTHONPATH": os.pathsep.join(filter(None, (str(HERE), os.environ.get("PYTHONPATH")))),
            "BENCH_PORT": str(self.port),
            "BENCH_REGIME": self.regime,
            "BENCH_FILES": str(self.files),
            "BENCH_FOLDER": str(self.folder),
        }

    def ready(self) -> bool:
        """True if it answers; called until it does."""
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{self.port}{self.ready_path}", timeout=2
            ) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def request(self, model: str, form: str) -> Request | None:
        """Return the request with ``sample(model)`` in a form; None if it takes no such form."""
        del model, form
        return None

    def driver(self, model: str, form: str, callers: int, seconds: float) -> Sequence[str] | None:
        """Return the command that sends the load, see :mod:`bench.driver`; None if it takes no such form."""
        request = self.request(model, form) if form in FORMS else None
        return wrk(request, self.port, callers, seconds, self.folder) if request else None

    def callers(self, wanted: Sequence[int]) -> Sequence[int]:
        """Return the numbers of callers that make sense for it."""
        return wanted


def environment_of(name: str) -> Path:
    """Return the Python of a contestant's environment, with ``contestants/NAME.txt`` installed once."""
    requirements = HERE / "bench" / "contestants" / f"{name}.txt"
    folder = Settings.read(os.environ).cache / "bench" / name
    python, mark = folder / "bin" / "python", folder / "installed.txt"
    if mark.is_file() and mark.read_bytes() == requirements.read_bytes():
        return python
    print(f"{name}: installing its packages into {folder}", file=sys.stderr)
    pip = (python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--requirement")
    try:
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        subprocess.run((*pip, requirements), check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise CommandError(f"the packages of {name} could not be installed: {error}") from None
    mark.write_bytes(requirements.read_bytes())
    return python
