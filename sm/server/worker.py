"""The data plane, gunicorn with the router and the clients: ``python -m sm.server.worker``."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import cv2

from sm import entry_points, metrics
from sm.client.decode_budget import DECODED, limit_per_worker
from sm.errors import StartError
from sm.metrics.files import WORKER_BYTES, forget_gauges, reserve
from sm.model_processes.generations import SERVES, SharedGeneration
from sm.models.demand import Demand
from sm.models.load_records import LoadRecords, Snapshot
from sm.models.model_leases import ModelLeases
from sm.models.table import Models
from sm.models.version_clients import prepare_staged
from sm.plugins import code_imports
from sm.plugins.discovery import find_clients
from sm.plugins.sources import discover_in_models
from sm.plugins.stuck_code import MakingLimit
from sm.polling import WATCH_S, Poll
from sm.repository.models import CodeFolder
from sm.router import app
from sm.router.invocation_routes import Router
from sm.run_state import claim_unready_file, unready_file
from sm.server.plane import Plane, serve, trim, watch_memory, write_start_error
from sm.server.thread_worker import HEARTBEAT_INTERVAL_S
from sm.triton.calls import Calls
from sm.triton.read_ahead import STREAM_BACKLOG
from sm.triton.shared_memory_cleanup import remove_worker_files
from sm.triton.transport import Transport

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication


#: Seconds that a worker waits for Triton, which was ready at the worker's start, before it loads its clients.
CONNECT_TIMEOUT_S = 10.0
#: Seconds in which a client must be made while the box serves, at least.
MIN_MAKING_S = 30.0
#: Seconds between two looks at whether Triton serves.
TRITON_POLL_S = 0.02


class DataPlane(Plane):
    """The workers: router and clients."""

    def options(self) -> dict[str, Any]:
        return {
            "bind": f"fd://{os.environ['TRIREME_LISTENER']}",
            "workers": self.settings.worker_count,
            "threads": self.settings.max_threads,
            # A client may hold the interpreter's lock for a whole invocation, and so delay the heartbeat.
            "timeout": max(60, math.ceil(self.settings.timeout)),
            "child_exit": self.on_child_exit,
            "proc_name": "trireme-data",
            "post_fork": self.on_fork,
            "post_worker_init": self.on_worker_init,
        }

    def prepare(self) -> None:
        """Install the code folder's requirements, once for all workers; then wait for Triton.

        All is imported by then, so the workers start as soon as they can load their clients.
        """
        reserve(self.box.metrics_folder, self.settings.worker_count)
        if not self.box.multi_model:
            code = CodeFolder.of(self.settings, self.box.repository).folder
            spare, wanted = self.box.requirements_folder, self.settings.install_requirements
            code_imports.install_or_check(code, self.settings.cache, spare, wanted)
        if self.box.generation_file:
            generation = SharedGeneration(self.box.generation_file)
            while generation.triton != SERVES:  # the supervisor bounds it
                time.sleep(TRITON_POLL_S)

    def on_fork(self, _server: object, worker: Any) -> None:
        """Send heartbeats while the worker loads: a script's model may take minutes."""
        self._stop_heartbeat = keep_heartbeat(worker.notify, self.settings.startup_timeout)
        # One model may have so many. More would take connections that other workers could answer sooner.
        worker.idle_threads = self.settings.threads
        worker.receive_timeout_s = self.settings.receive_timeout
        worker.send_timeout_s = STREAM_BACKLOG.seconds = self.settings.stream_stall
        metrics.count_on(self.box.metrics_folder, WORKER_BYTES)
        with contextlib.suppress(OSError):  # what it says later is logged if it cannot be written
            claim_unready_file(self.box, worker.pid)

    def on_worker_init(self, _worker: object) -> None:
        """Stop the extra heartbeats: the clients are loaded. Those that come later have less time."""
        self._stop_heartbeat()
        code_imports.making_limit = MakingLimit(
            self.box.stuck_folder,
            max(MIN_MAKING_S, self.settings.timeout),
            self.cfg.graceful_timeout,
            self.settings.threads,  # twice as many run
        )
        watch_memory(self.release_memory)

    def release_memory(self) -> None:
        """Release what an idle worker does not need, and update the gauge of decoded bytes."""
        self._transport.rest()
        DECODED.collect()
        trim()

    def on_child_exit(self, server: Any, worker: Any) -> None:
        """Remove a worker's gauges and shared memory after its end."""
        if server.LISTENERS:  # gunicorn is not stopping, so it starts another worker
            metrics.WORKER_RESTARTS.inc()
        with contextlib.suppress(OSError):
            forget_gauges(self.box.metrics_folder)
        with contextlib.suppress(OSError):  # its disk space is for the next worker
            unready_file(self.box, worker.pid).rename(unready_file(self.box, f"ended-{worker.pid}"))
        remove_worker_files(self.box.id, worker.pid, self.box.http_port, keys=self.box.http_keys)

    def load(self) -> WSGIApplication:
        """Create the application in the worker, after the fork: a gRPC channel does not survive one."""
        # Records run side by side already. In tokenizers' own threads a short text waits behind long ones.
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
        # OpenCV's own threads would compete with the workers' for the same cores.
        cv2.setNumThreads(1)
        DECODED.limit = limit_per_worker(self.settings)
        metrics.DECODED_LIMIT.set(DECODED.limit)
        calls = Calls.of(self.box, self.settings.wait_seconds)
        self._transport = transport = Transport(self.settings, self.box, calls=calls)
        try:
            models = self.models(transport)
            self.observe(str(os.getpid()), models.all_clients)
            hearing = tuple(filter(None, (observer.hear for observer in self.observers)))
            router = app.create(self.settings, self.box, models, calls, hearing)
        except StartError as error:
            write_start_error(self.box, error)
        if not self.box.multi_model:
            models.on_change = describe = partial(app.describe, models, self.box)
            describe()
        self.complete(router)
        application: WSGIApplication = router
        for observer in self.observers:
            application = observer.wrap(application)
        return application

    def complete(self, router: Router) -> None:
        """Add the routes that nginx does not send to another process: none."""

    def models(self, transport: Transport) -> Models:
        """Return what is served."""
        if self.box.multi_model:
            return self.archives(transport)
        code = CodeFolder.of(self.settings, self.box.repository)
        # gunicorn ends if a worker does not start, and workers that serve already would end with it.
        has_served = self.box.clients_file.exists()
        skip = self.box.reload or self.settings.broken_clients == "skip" or has_served
        find = partial(
            find_clients,
            self.settings.clients,
            repository=self.box.repository,
            skip_broken=skip,
            code=code,
        )
        transport.connect(CONNECT_TIMEOUT_S)
        if self.box.has_versions:
            records, leases = LoadRecords(self.box.models_file), ModelLeases(self.box.leases_folder)
            models = Models(records.read, transport, leases, transport.forget)
            models.put(find(models.triton))
            Poll("new-versions", WATCH_S, partial(prepare_staged, models, self.box)).start()
            return models
        snapshot = Snapshot.of_models(transport.ready_models())
        models = Models(lambda: snapshot, transport)
        if self.box.reload:
            in_models = [source.file.parent for source in discover_in_models(self.box.repository, ())]
            folders = (*self.settings.clients, code.folder, *in_models)
            desk, *_ = entry_points.load("sm.desk")  # the start has looked that there is one
            desk.watch_clients(partial(find, transport), folders, self.box.reloads_folder, models.put)
            return models
        models.put(found := find(transport))
        if not (snapshot.records or found.clients or found.broken or has_served):
            raise StartError(
                f"There is no model in {self.box.repository}, and no file in {code.folder} is a client."
            )
        return models

    def archives(self, transport: Transport) -> Models:
        """Return what is served in multi-model mode."""
        records, keys = LoadRecords(self.box.models_file), self.box.repository_keys
        demand = Demand(self.box.control_socket, records, keys) if self.box.catalog else None
        leases = ModelLeases(self.box.leases_folder) if demand else None
        return Models(
            records.read,
            transport,
            leases,
            transport.forget,
            is_closed=True,
            demand=demand,
            lists_models=not keys,
        )


def keep_heartbeat(
    notify: Callable[[], object], seconds: float, interval_s: float = HEARTBEAT_INTERVAL_S
) -> Callable[[], None]:
    """Call ``notify`` at intervals, for at most ``seconds`` or until the returned function is called."""
    end = time.monotonic() + seconds

    def notify_until_end() -> None:
        if time.monotonic() < end:
            notify()
        else:
            poll.stop()

    poll = Poll("heartbeat", interval_s, notify_until_end)
    poll.start()
    return poll.stop


if __name__ == "__main__":
    serve(DataPlane)
