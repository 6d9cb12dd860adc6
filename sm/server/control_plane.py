"""The control plane, gunicorn with one process and without clients: ``python -m sm.server.control_plane``."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sm import metrics
from sm.control import app
from sm.http.control_paths import MAX_SCRAPES, MAX_SLOW_REQUESTS, QUICK_THREADS
from sm.invocation import Listener
from sm.metrics.files import PROCESS_BYTES
from sm.server.plane import Plane, serve, trim, watch_memory

if TYPE_CHECKING:
    from flask import Flask

#: Processor seconds since the last trim, below which there is nothing to return: the dashboard needs a little
#: all the time.
MIN_WORK_CPU_S = 0.2


class ControlPlane(Plane):
    """One process with a few threads, and without clients."""

    def options(self) -> dict[str, Any]:
        return {
            "bind": f"unix:{self.box.control_socket}",
            "workers": 1,
            "threads": MAX_SLOW_REQUESTS + MAX_SCRAPES + QUICK_THREADS,
            "proc_name": "trireme-control",
            "post_fork": self.on_fork,
            "post_worker_init": self.on_worker_init,
        }

    def on_fork(self, _server: object, worker: Any) -> None:
        worker.idle_threads = QUICK_THREADS
        metrics.count_on(self.box.metrics_folder, PROCESS_BYTES)

    def on_worker_init(self, _worker: object) -> None:
        watch_memory(self.release_memory, min_work_s=MIN_WORK_CPU_S)

    def release_memory(self) -> None:
        """Release memory that an idle control plane does not need."""
        gc.collect()
        trim()

    def load(self) -> Flask:
        self.observe("control")
        return app.create(self.settings, self.box, self.listen)

    def listen(self, headers: Mapping[str, str]) -> Listener | None:
        """Return what hears the parts of the load that a request with these headers asks for."""
        listening = (observer.listen(headers) for observer in self.observers)
        return next(filter(None, listening), None)


if __name__ == "__main__":
    serve(ControlPlane)
