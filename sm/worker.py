"""gunicorn, once per plane: ``python -m sm.worker data`` and ``python -m sm.worker control``."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import Any

import cv2
from flask import Flask
from gunicorn.app.base import BaseApplication
from gunicorn.arbiter import Arbiter
from gunicorn.errors import HaltServer
from gunicorn.glogging import Logger
from prometheus_client.multiprocess import mark_process_dead

from sm import app, control, logs, registry
from sm.box import Box, write_whole
from sm.errors import StartError
from sm.settings import Settings
from sm.triton.transport import Transport, remove_worker_files


class PlainLogger(Logger):  # type: ignore[misc]
    """gunicorn's lines through the same handler as the router's."""

    def setup(self, _cfg: Any) -> None:
        self.error_log.propagate = True
        self.error_log.handlers = []
        self.error_log.setLevel(logging.getLogger().level)


class Plane(BaseApplication):  # type: ignore[misc]
    """What both planes share: a socket, threads, the logs, no access log of gunicorn's own."""

    def __init__(self, settings: Settings, box: Box) -> None:
        self.settings, self.box = settings, box
        super().__init__()

    def options(self) -> dict[str, Any]:
        raise NotImplementedError

    def load_config(self) -> None:
        shared = {
            "worker_class": "gthread",
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
        fronted = self.box.front == "nginx"
        return {
            # The supervisor holds the public port and lends it to the front.
            "bind": f"unix:{self.box.data_socket}" if fronted else f"fd://{os.environ['TRIREME_LISTENER']}",
            "workers": self.settings.worker_count,
            "threads": self.settings.threads,
            # A worker takes no connection it has no thread for: the kernel hands it to an idle one.
            "worker_connections": self.settings.threads if fronted else 1000,
            "keepalive": 0 if fronted else 5,
            "child_exit": self.clean_up,
            "proc_name": "trireme-data",
        }

    def clean_up(self, _server: object, worker: Any) -> None:
        """After a worker, however it ended: its gauges and its shared memory."""
        mark_process_dead(worker.pid, path=str(self.box.metrics_folder))  # type: ignore[no-untyped-call]
        remove_worker_files(self.box.id, worker.pid, self.box.http_port)

    def load(self) -> Flask:
        """In the worker, after the fork: a gRPC channel does not survive one."""
        # OpenCV's own threads would fight with the workers' for the same cores.
        cv2.setNumThreads(1)
        transport = Transport(self.settings, self.box)
        try:
            clients = registry.build(
                self.settings.clients, transport, self.box.repository, self.settings.broken_clients == "skip"
            )
            flask = app.create(self.settings, self.box, clients)
        except StartError as error:
            write_whole(self.box.refusal_file, str(error))  # for the supervisor to say, once
            sys.exit(Arbiter.WORKER_BOOT_ERROR)
        app.describe(clients, self.box.clients_file)
        return flask


class ControlPlane(Plane):
    """One process with a few threads, and no client in it."""

    def options(self) -> dict[str, Any]:
        return {
            "bind": f"unix:{self.box.control_socket}",
            "workers": 1,
            "threads": 4,
            "worker_connections": 100,
            "proc_name": "trireme-control",
        }

    def load(self) -> Flask:
        return control.create(self.box)


PLANES: dict[str, type[Plane]] = {"data": DataPlane, "control": ControlPlane}


def main() -> None:
    """Serve the plane named on the command line."""
    settings = Settings.read(os.environ)
    logs.configure(settings.level)
    box = Box.load(Path(os.environ["TRIREME_RUN_DIR"]))
    try:
        PLANES[sys.argv[1]](settings, box).run()
    except HaltServer as halt:
        # gunicorn trips over a second worker that cannot boot while it stops because of the first.
        sys.exit(halt.exit_status)


if __name__ == "__main__":
    main()
