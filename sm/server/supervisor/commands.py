"""The command line and environment of each child."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Collection, Mapping
from pathlib import Path

from sm.multimodel.load_records import Records
from sm.multimodel.staging import restorable
from sm.run_state import Box
from sm.server.supervisor import front
from sm.server.supervisor.process_manager import CONTROL, DATA, KEYS, NGINX, TRITON
from sm.server.supervisor.processes import Command
from sm.settings import HERE, Settings
from sm.triton import server
from sm.triton.shared_memory_cleanup import remove_files

#: glibc gives freed memory back to the kernel above these, and each picture becomes freed memory: with the
#: defaults a worker spends up to half of its time on page faults. The first can be no more than 32 MiB.
#: One arena for all threads: the interpreter's lock parts them anyway, and of others glibc gives nothing back
#: even when it is asked to (see sm.server.memory_trim).
ONE_ARENA = {"MALLOC_ARENA_MAX": "1"}
ALLOCATOR = {
    "MALLOC_MMAP_THRESHOLD_": str(32 * 2**20),
    "MALLOC_TRIM_THRESHOLD_": str(128 * 2**20),
    **ONE_ARENA,
}
#: The same for nginx: what a large body took is the kernel's again when it is answered. Without a number of
#: our own, glibc raises its threshold to the largest block that was ever freed.
FRONT_ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": str(4 * 2**20), "MALLOC_TRIM_THRESHOLD_": str(8 * 2**20)}


class Commands:
    """Commands by child. ``listeners`` are descriptors, lent to the front: the public port's, and TLS's."""

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
        #: Multi-model mode: ids of records that Triton must not be started with.
        self._left_out: set[str] = set()
        # Now, so that a missing Triton stops the start before anything runs.
        self._triton = server.command(settings, box, environment)

    def leave_out(self, models: Collection[str]) -> bool:
        """Start Triton without the archives of these models, until they are loaded anew; False if none is."""
        loaded = Records(self._box.models_file).read().loaded()
        found = {record.id for record in loaded if set(models) & set(record.models.values())}
        self._left_out |= found
        return bool(found)

    def command(self, name: str) -> Command:
        """How to start a child, its place cleared of what a predecessor left."""
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
        # A file that is changed twice in a second is not to be taken from the cache of its first version.
        more = {**ALLOCATOR, "PYTHONDONTWRITEBYTECODE": "1"} if self._box.reload else ALLOCATOR
        if self._box.fronted:
            return self._worker("data", more)
        listener = self._listeners[0]
        return self._worker("data", {**more, "TRIREME_LISTENER": str(listener)}, listener)

    def _keys(self) -> Command:
        return self._python(("sm.server.access.checker",), {})

    def _worker(self, plane: str, more: Mapping[str, str], *files: int) -> Command:
        return self._python(("sm.server.worker", plane), more, *files)

    def _python(self, module: tuple[str, ...], more: Mapping[str, str], *files: int) -> Command:
        paths = [str(HERE), self._environment.get("PYTHONPATH", "")]
        environment = {
            **self._environment,
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "PYTHONUNBUFFERED": "1",
            "PROMETHEUS_MULTIPROC_DIR": str(self._box.metrics_folder),
            "TRIREME_RUN_DIR": str(self._box.run),
            **more,
        }
        return Command((sys.executable, "-m", *module), environment, files)

    def _front(self) -> Command:
        # nginx takes over the listening sockets that this variable names, as in its own binary upgrade.
        lent = "".join(f"{listener};" for listener in self._listeners)
        environment = {**self._environment, **FRONT_ALLOCATOR, "NGINX": lent}
        return Command(self._nginx, environment, self._listeners)

    def _inference(self) -> Command:
        # After a kill -9 the python backend's files are still there.
        remove_files(f"trireme-{self._box.id}-py")
        # What was loaded when its predecessor ended.
        loaded = Records(self._box.models_file).read().loaded()
        again = tuple(
            f"--load-model={name}"
            for record in loaded
            if record.id not in self._left_out
            for name in restorable(record, self._box.repository)
        )
        return Command(self._triton.arguments + again, self._triton.environment)
