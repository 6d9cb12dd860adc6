"""The children of the box: their command lines, environments, and probes of whether they are ready."""

from __future__ import annotations

import contextlib
import http.client
import os
import socket
import sys
from collections.abc import Collection, Mapping
from pathlib import Path

from sm.multimodel.load_records import Records
from sm.multimodel.staging import find_restorable
from sm.run_state import Box
from sm.server.supervisor import front
from sm.server.supervisor.process_manager import CONTROL, DATA, KEYS, NGINX, TRITON
from sm.server.supervisor.processes import Command
from sm.settings import PACKAGE, Settings
from sm.triton import server
from sm.triton.shared_memory_cleanup import remove_files

#: glibc returns freed memory to the kernel above these sizes, and every picture becomes freed memory: with
#: the defaults a worker spends up to half of its time on page faults. The first can be at most 32 MiB. One
#: arena serves all threads: the interpreter's lock separates them anyway, and glibc does not trim other
#: arenas (see sm.server.worker).
ONE_ARENA = {"MALLOC_ARENA_MAX": "1"}
ALLOCATOR = {
    "MALLOC_MMAP_THRESHOLD_": str(32 * 2**20),
    "MALLOC_TRIM_THRESHOLD_": str(128 * 2**20),
    **ONE_ARENA,
}
#: For nginx: a large body's memory goes back to the kernel after its answer. Without a fixed value, glibc
#: raises its threshold to the largest block that was ever freed.
FRONT_ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": str(4 * 2**20), "MALLOC_TRIM_THRESHOLD_": str(8 * 2**20)}


class Commands:
    """The commands of all children. The front inherits ``listeners``: descriptors of the public ports."""

    def __init__(
        self,
        settings: Settings,
        box: Box,
        nginx: Path | None,
        listeners: tuple[int, ...],
        environment: Mapping[str, str],
    ) -> None:
        self._settings, self._box, self._listeners, self._environment = settings, box, listeners, environment
        self._nginx = front.prepare(nginx, settings, box) if nginx else ()
        #: Multi-model mode: record ids whose models Triton must not be started with.
        self._excluded_records: set[str] = set()
        # Built now, so that a missing Triton stops the start before anything runs.
        self._triton = server.command(settings, box, environment)

    def exclude_models(self, models: Collection[str]) -> bool:
        """Start Triton without the archives of these models; False if none of them is loaded."""
        loaded = Records(self._box.models_file).read().loaded()
        ids = {record.id for record in loaded if set(models) & set(record.models.values())}
        self._excluded_records |= ids
        return bool(ids)

    def command(self, name: str) -> Command:
        """Remove what the child's previous process left, and return the child's command."""
        return {
            CONTROL: self._control,
            KEYS: self._keys,
            NGINX: self._front,
            TRITON: self._inference,
            DATA: self._data,
        }[name]()

    def _control(self) -> Command:
        return self._worker("control", ONE_ARENA)

    def _data(self) -> Command:
        for gauges in self._box.metrics_folder.glob("gauge_live*.db"):
            with contextlib.suppress(OSError):
                gauges.unlink()
        # Python's bytecode cache does not notice a second change of a file within one second.
        variables = {**ALLOCATOR, "PYTHONDONTWRITEBYTECODE": "1"} if self._box.reload else ALLOCATOR
        if self._box.fronted:
            return self._worker("data", variables)
        listener = self._listeners[0]
        return self._worker("data", {**variables, "TRIREME_LISTENER": str(listener)}, listener)

    def _keys(self) -> Command:
        return self._python(("sm.server.access.checker",), {})

    def _worker(self, plane: str, variables: Mapping[str, str], *files: int) -> Command:
        return self._python(("sm.server.worker", plane), variables, *files)

    def _python(self, module: tuple[str, ...], variables: Mapping[str, str], *files: int) -> Command:
        paths = [str(PACKAGE.parent), self._environment.get("PYTHONPATH", "")]
        environment = {
            **self._environment,
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "PYTHONUNBUFFERED": "1",
            "PROMETHEUS_MULTIPROC_DIR": str(self._box.metrics_folder),
            "TRIREME_RUN_DIR": str(self._box.run),
            **variables,
        }
        return Command((sys.executable, "-m", *module), environment, files)

    def _front(self) -> Command:
        # nginx takes over the listening sockets in this variable, as in its own binary upgrade.
        descriptors = "".join(f"{listener};" for listener in self._listeners)
        environment = {**self._environment, **FRONT_ALLOCATOR, "NGINX": descriptors}
        return Command(self._nginx, environment, self._listeners)

    def _inference(self) -> Command:
        # The python backend does not remove its files after a kill -9.
        remove_files(f"trireme-{self._box.id}-py")
        # The models that were loaded when the previous Triton ended.
        loaded = Records(self._box.models_file).read().loaded()
        loads = tuple(
            f"--load-model={name}"
            for record in loaded
            if record.id not in self._excluded_records
            for name in find_restorable(record, self._box.repository)
        )
        return Command(self._triton.arguments + loads, self._triton.environment, runs_models=True)


PROBE_TIMEOUT_S = 0.25  # the supervisor does nothing else meanwhile


class Probes:
    """Probes the children of one box."""

    def __init__(self, box: Box, port: int) -> None:
        self._box, self._port = box, port

    def ready(self, name: str) -> bool:
        """True if the child serves. The front is probed through the public port, as callers use it."""
        if name == TRITON:
            # If only liveness is required, one model that does not load must not delay the others.
            probe = server.live if self._box.ping == "live" else server.ready
            return probe(self._box.http_port, self._box.http_keys)
        if name == CONTROL:
            return is_listening(self._box.control_socket)
        if name == KEYS:
            return is_listening(self._box.keys_socket)
        if name == DATA and self._box.fronted:
            return is_listening(self._box.data_socket)
        return is_listening(("127.0.0.1", self._port))

    def failure(self, name: str) -> str:
        """Return a sentence that names the models or clients that cannot be loaded, with the reasons."""
        if name == DATA:
            return self._read_start_error()
        failed_models = server.failures(self._box.http_port, self._box.http_keys) if name == TRITON else {}
        sentences = [
            f"the model {model!r} cannot be loaded: {reason.rstrip('.')}"
            for model, reason in failed_models.items()
        ]
        return f"{'; '.join(sentences)}." if sentences else ""

    def _read_start_error(self) -> str:
        try:
            return self._box.start_error_file.read_text()
        except FileNotFoundError:
            return ""


def is_listening(address: Path | tuple[str, int]) -> bool:
    """True if something that speaks HTTP answers; any answer will do."""
    family = socket.AF_UNIX if isinstance(address, Path) else socket.AF_INET
    with socket.socket(family) as sock, contextlib.suppress(OSError, http.client.HTTPException):
        sock.settimeout(PROBE_TIMEOUT_S)
        sock.connect(str(address) if isinstance(address, Path) else address)
        sock.sendall(b"GET /ping HTTP/1.1\r\nHost: box\r\nConnection: close\r\n\r\n")
        answer = http.client.HTTPResponse(sock)
        with contextlib.closing(answer):
            answer.begin()
        return True
    return False
