"""gunicorn, once per plane: ``python -m sm.server.worker data`` and ``… control``."""

from __future__ import annotations

import gc
import logging
import math
import os
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import cv2
from flask import Flask
from gunicorn.app.base import BaseApplication
from gunicorn.arbiter import Arbiter
from gunicorn.errors import HaltServer
from gunicorn.glogging import Logger
from prometheus_client.multiprocess import mark_process_dead

from sm import logs, metrics
from sm.client.decode_budget import DECODED, limit_per_worker
from sm.code_folder import CodeFolder
from sm.errors import StartError
from sm.multimodel.archive_clients import LoadedClients, LoadedRegistry
from sm.multimodel.load_records import Records
from sm.plugins import registry
from sm.plugins.registry import Registry
from sm.plugins.reloading import LiveClients, LiveRegistry
from sm.plugins.toolkit import requirements
from sm.router import app
from sm.run_state import Box, write_whole
from sm.server import control_plane, memory_trim
from sm.server.heartbeat import keep_heartbeat
from sm.settings import Settings
from sm.triton.server import MAX_LOADS
from sm.triton.transport import Transport, remove_worker_files

#: Seconds that a worker waits for Triton, which was ready when it was started, before it loads its clients.
CONNECT_TIMEOUT_S = 10.0


class PlainLogger(Logger):  # type: ignore[misc]
    """gunicorn's lines through the same handler as the router's."""

    def setup(self, _cfg: Any) -> None:
        self.error_log.propagate = True
        self.error_log.handlers = []
        self.error_log.setLevel(logging.getLogger().level)

    def access(self, *_: object) -> None:
        """The router logs a line of its own; to find out that there is none here is work too."""


class Plane(BaseApplication):  # type: ignore[misc]
    """What both planes share: a socket, threads, the logs, no access log of gunicorn's own."""

    def __init__(self, settings: Settings, box: Box) -> None:
        self.settings, self.box = settings, box
        super().__init__()

    def options(self) -> dict[str, Any]:
        raise NotImplementedError

    def prepare(self) -> None:
        """What is to be done before the first worker; :class:`StartError` if it cannot be."""

    def load_config(self) -> None:
        shared = {
            "worker_class": "sm.server.thread_worker.Worker"
            if self.box.fronted
            else "sm.server.error_responses.Worker",
            "keepalive": 0 if self.box.fronted else 5,
            "worker_tmp_dir": str(self.box.run),
            "control_socket_disable": True,
            "logger_class": PlainLogger,
            "graceful_timeout": max(1, round(self.settings.drain)),
            "timeout": 60,
            "loglevel": self.settings.level,
        }
        for name, value in {**shared, **self.options()}.items():
            if name in self.cfg.settings:
                self.cfg.set(name, value)


class DataPlane(Plane):
    """The workers: router and clients."""

    def options(self) -> dict[str, Any]:
        return {
            "bind": self._address(),
            "workers": self.settings.worker_count,
            "threads": self.settings.request_threads,
            # A client may hold the interpreter's lock, and so keep its worker silent, as long as it may work.
            "timeout": max(60, math.ceil(self.settings.timeout)),
            "child_exit": self.clean_up,
            "proc_name": "trireme-data",
            "post_fork": self.begin,
            "post_worker_init": self.begun,
        }

    def _address(self) -> str:
        """The supervisor holds the public port and lends it to the front."""
        if self.box.fronted:
            return f"unix:{self.box.data_socket}"
        return f"fd://{os.environ['TRIREME_LISTENER']}"

    def prepare(self) -> None:
        """What a script asks for, once for all workers and before the first of them."""
        if not self.box.multi_model:
            code, asked = (
                CodeFolder.of(self.settings, self.box.repository),
                self.settings.install_requirements,
            )
            requirements.install_or_check(code.folder, self.settings.cache, self.box.run, asked)

    def begin(self, _server: object, worker: Any) -> None:
        """In the worker, before it loads: a script's model may take minutes."""
        self._stop_beating = keep_heartbeat(worker.notify, self.settings.startup_timeout)
        metrics.reserve(self.box.metrics_folder, worker.pid)

    def begun(self, _worker: object) -> None:
        self._stop_beating()
        memory_trim.watch(self.give_back)

    def give_back(self) -> None:
        """What an idle worker need not keep; the gauge of pictures is right then too."""
        DECODED.collect()
        memory_trim.trim()

    def clean_up(self, _server: object, worker: Any) -> None:
        """After a worker, however it ended: its gauges and its shared memory."""
        mark_process_dead(worker.pid, path=str(self.box.metrics_folder))  # type: ignore[no-untyped-call]
        remove_worker_files(self.box.id, worker.pid, self.box.http_port, keys=self.box.http_keys)

    def load(self) -> Flask:
        """In the worker, after the fork: a gRPC channel does not survive one."""
        # OpenCV's own threads would fight with the workers' for the same cores.
        cv2.setNumThreads(1)
        DECODED.limit = limit_per_worker(self.settings)
        transport = Transport(self.settings, self.box)
        try:
            clients = self.registry(transport)
            flask = app.create(self.settings, self.box, clients)
        except StartError as error:
            write_start_error(self.box, error)
        describe = partial(app.describe, clients, self.box, s3=bool(self.settings.s3_buckets))
        if not self.box.multi_model:
            describe()
        if isinstance(clients, LiveRegistry):
            clients.clients.watch(describe)
        return flask

    def registry(self, transport: Transport) -> Registry:
        """The clients that are there at start; in multi-model mode, those that archives bring."""
        if self.box.multi_model:
            loaded = LoadedClients(Records(self.box.models_file), transport)
            return LoadedRegistry(loaded, names_others=not self.box.repository_keys)
        code = CodeFolder.of(self.settings, self.box.repository)
        skip = self.box.reload or self.settings.broken_clients == "skip"
        build = partial(registry.build, self.settings.clients, transport, self.box.repository, skip, code)
        transport.connect(CONNECT_TIMEOUT_S)
        models = tuple(transport.ready_models())
        if not self.box.reload:
            return replace(build(), models=models)
        live = LiveClients(build, (*self.settings.clients, code.folder), self.box.reloads_folder)
        return LiveRegistry(live, models=models)


class ControlPlane(Plane):
    """One process with a few threads, and no client in it."""

    def options(self) -> dict[str, Any]:
        return {
            "bind": f"unix:{self.box.control_socket}",
            "workers": 1,
            # A load may take minutes; the others answer meanwhile.
            "threads": 2 * MAX_LOADS if self.box.multi_model else 4,
            "proc_name": "trireme-control",
            "post_worker_init": self.begun,
        }

    def begun(self, _worker: object) -> None:
        memory_trim.watch(self.give_back)

    def give_back(self) -> None:
        """What an idle control plane need not keep."""
        gc.collect()
        memory_trim.trim()

    def load(self) -> Flask:
        return control_plane.create(self.settings, self.box)


PLANES: dict[str, type[Plane]] = {"data": DataPlane, "control": ControlPlane}


def write_start_error(box: Box, error: StartError) -> NoReturn:
    """End for good; the supervisor says why, once for all workers."""
    write_whole(box.refusal_file, str(error))
    sys.exit(Arbiter.WORKER_BOOT_ERROR)


def main() -> None:
    """Serve the plane named on the command line."""
    settings = Settings.read(os.environ)
    logs.configure(settings.level)
    box = Box.load(Path(os.environ["TRIREME_RUN_DIR"]))
    plane = PLANES[sys.argv[1]](settings, box)
    try:
        plane.prepare()
        plane.run()
    except StartError as error:
        write_start_error(box, error)
    except HaltServer as halt:
        # gunicorn trips over a second worker that cannot boot while it stops because of the first.
        sys.exit(halt.exit_status)


if __name__ == "__main__":
    main()
