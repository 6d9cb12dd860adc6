"""The common part of both planes: gunicorn's settings and start, and the return of unused memory."""

from __future__ import annotations

import ctypes
import gc
import logging
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from gunicorn.app.base import BaseApplication
from gunicorn.arbiter import Arbiter
from gunicorn.errors import HaltServer
from gunicorn.glogging import Logger

from sm.errors import StartError
from sm.polling import Poll, stop_all
from sm.run_state import Box, write_atomically
from sm.server import logs, observers
from sm.server.observers import ObservedProcess, Observer
from sm.settings import Settings

#: Seconds that a worker which ends waits for what its threads are doing: the control plane has 2 s in all.
STOP_TIMEOUT_S = 0.5


class PlainLogger(Logger):  # type: ignore[misc]
    """Sends gunicorn's log lines through the router's handler."""

    def setup(self, _cfg: Any) -> None:
        self.error_log.propagate = True
        self.error_log.handlers = []
        self.error_log.setLevel(logging.getLogger().level)

    def access(self, *_: object) -> None:
        """Do nothing: the router logs its own line."""


class Master(Arbiter):  # type: ignore[misc]
    """gunicorn's master, of a socket that is the supervisor's."""

    def start(self) -> None:
        super().start()
        # The supervisor keeps the socket open for the next master: gunicorn must not remove its path.
        self.systemd = True


class Plane(BaseApplication):  # type: ignore[misc]
    """The common part of both planes: socket, threads, logs, and no access log of gunicorn's."""

    #: What watches this process.
    observers: Sequence[Observer] = ()

    def __init__(self, settings: Settings, box: Box) -> None:
        self.settings, self.box = settings, box
        super().__init__()

    def options(self) -> dict[str, Any]:
        raise NotImplementedError

    def prepare(self) -> None:
        """Prepare before the first worker. Raises :class:`StartError`."""

    def run(self) -> None:
        Master(self).run()

    def load_config(self) -> None:
        shared = {
            "worker_class": "sm.server.thread_worker.Worker"
            if self.box.fronted
            else "sm.server.thread_worker.DirectWorker",
            "keepalive": 0 if self.box.fronted else 5,
            "worker_tmp_dir": str(self.box.run),
            "control_socket_disable": True,
            "logger_class": PlainLogger,
            "graceful_timeout": max(1, round(self.settings.drain)),
            "timeout": 60,
            "loglevel": self.settings.level,
            "worker_exit": self.on_worker_exit,
        }
        for name, value in {**shared, **self.options()}.items():
            if name in self.cfg.settings:
                self.cfg.set(name, value)

    def observe(self, name: str, clients: Callable[[], Iterable[Any]] | None = None) -> None:
        """Open what watches this process, after the fork. See :class:`ObservedProcess`."""
        self.observers = observers.load()
        for observer in self.observers:
            try:
                observer.open(ObservedProcess(name, self.settings, self.box, clients))
            except StartError as error:
                write_start_error(self.box, error)

    def on_worker_exit(self, _server: object, _worker: object) -> None:
        """End the threads that use the box's folder, which the supervisor removes, and what watches."""
        stop_all(STOP_TIMEOUT_S)
        for observer in reversed(self.observers):
            observer.close()


def serve(plane: type[Plane]) -> None:
    """Serve a plane until gunicorn is told to end."""
    settings = Settings.read(os.environ)
    logs.configure(settings.level)
    box = Box.load(Path(os.environ["TRIREME_RUN_DIR"]))
    application = plane(settings, box)
    try:
        application.prepare()
        # The workers share what is imported here until they write to it, as a garbage collection does.
        gc.freeze()
        application.run()
    except StartError as error:
        write_start_error(box, error)
    except HaltServer as halt:
        # gunicorn fails if a second worker cannot boot while it stops because of the first.
        sys.exit(halt.exit_status)


def write_start_error(box: Box, error: StartError) -> NoReturn:
    """Write the reason and exit; the supervisor logs it once for all workers."""
    write_atomically(box.start_error_file, str(error))
    sys.exit(Arbiter.WORKER_BOOT_ERROR)


IDLE_TRIM_INTERVAL_S = 5.0
#: A process that uses less than this share of one processor is idle.
IDLE_CPU_SHARE = 0.02
#: Processor seconds since the last trim, below which there is nothing to return: one large body takes more.
MIN_WORK_CPU_S = 0.01


def trim() -> None:
    """Return freed memory to the kernel, if the C library (glibc) can."""
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim:
        malloc_trim(0)


def watch_memory(
    release: Callable[[], object] = trim,
    interval_s: float = IDLE_TRIM_INTERVAL_S,
    cpu_time: Callable[[], float] = time.process_time,
    min_work_s: float = MIN_WORK_CPU_S,
) -> Callable[[], None]:
    """Call ``release`` whenever this process is idle after work. The returned function stops that.

    ``cpu_time`` returns the processor time of this process in seconds, ``min_work_s`` of them are work.
    """
    last_cpu_time = cpu_time()
    trimmed_at = last_cpu_time - min_work_s

    def trim_if_idle() -> None:
        nonlocal last_cpu_time, trimmed_at
        now = cpu_time()
        is_due = now - last_cpu_time < interval_s * IDLE_CPU_SHARE and now - trimmed_at >= min_work_s
        if is_due:
            release()
        last_cpu_time = cpu_time()
        trimmed_at = last_cpu_time if is_due else trimmed_at

    poll = Poll("memory-trim", interval_s, trim_if_idle)
    poll.start()
    return poll.stop
