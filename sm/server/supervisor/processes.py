"""The box's processes: how each is started, probed, signalled with its group, and reaped.

A watchdog cleans up after a supervisor that was killed: the kernel kills the supervisor's children with it
(``PR_SET_PDEATHSIG``), but not their children. As PID 1 of a container it is not needed."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from sm.hardware import children
from sm.models.load_records import LoadRecords, find_restorable
from sm.polling import poll_until
from sm.repository import models
from sm.run_state import Box
from sm.server.supervisor.nginx import prepare_nginx
from sm.server.supervisor.process_manager import CONTROL, DATA, KEYS, NGINX, TRITON
from sm.settings import PACKAGE, Settings
from sm.triton import server
from sm.triton.shared_memory_cleanup import remove_files

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38


@dataclass(frozen=True)
class ChildCommand:
    """A command line, with its whole environment and the open files that it inherits."""

    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    files: tuple[int, ...] = field(default=())
    #: True if it runs code of models, which must not reach into the box's other processes.
    runs_models: bool = False


class Processes:
    """The children of this process, and their descendants. A ``watchdog`` kills them if this process dies."""

    def __init__(self, watchdog: Watchdog | None = None) -> None:
        self._watchdog = watchdog
        # Loaded now: the dynamic linker must not run between fork and exec.
        self._prctl, self._landlock = ctypes.CDLL(None, use_errno=True).prctl, landlock()
        self._running: dict[int, subprocess.Popen[bytes]] = {}

    def adopt_orphans(self) -> None:
        """Become the parent of every descendant whose own parent dies, as PID 1 is anyway."""
        self._prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

    def spawn(self, command: ChildCommand) -> tuple[int, int]:
        """Start a process in a group of its own. Returns its process id, and the end of a pipe with its
        output.
        """
        output, child_end = os.pipe()
        try:
            child = subprocess.Popen(
                command.arguments,
                env=command.environment,
                stdin=subprocess.DEVNULL,
                stdout=child_end,
                stderr=child_end,
                pass_fds=command.files,
                # A Ctrl-C in the terminal goes to the supervisor only, which stops the children in order.
                start_new_session=True,
                preexec_fn=self._kill_with_parent(os.getpid(), command.runs_models),
            )
        except OSError:
            os.close(output)
            raise
        finally:
            os.close(child_end)
        os.set_blocking(output, False)
        self._running[child.pid] = child
        self._tell_watchdog()
        return child.pid, output

    def signal(self, pid: int, number: int) -> None:
        """Send a signal to one process."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)

    def kill(self, pid: int) -> None:
        """Kill a process's whole group at once."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)

    def reap(self) -> Iterator[tuple[int, int]]:
        """Reap children and return their exit code, or minus the signal; orphans are reaped silently.

        The rest of a dead child's group is killed before the child is reaped: until then no other process can
        get its process id.
        """
        for pid in _ended_children():
            if pid in self._running:
                self.kill(pid)
            status = _reap(pid)
            child = self._running.pop(pid, None)
            if child is not None:
                child.returncode = status
                self._tell_watchdog()
                yield pid, status

    def _tell_watchdog(self) -> None:
        if self._watchdog:
            self._watchdog.set_groups(self._running)

    def kill_all(self) -> None:
        """Kill the group of every running child."""
        for pid in self._running:
            self.kill(pid)

    def reap_all(self, seconds: float) -> bool:
        """Reap until only the watchdog is left. Returns False if others are left after ``seconds``.

        Orphans are children of this process too, so this covers every descendant.
        """

        def is_alone() -> bool:
            for _ in self.reap():
                pass
            return children(os.getpid()) <= {self._watchdog and self._watchdog.pid}

        return poll_until(is_alone, seconds)

    def _kill_with_parent(self, parent: int, runs_models: bool) -> Callable[[], None]:
        """Return a function for the child: it dies with its parent, and can get no more rights."""
        prctl, enter_landlock = self._prctl, self._landlock

        def prepare() -> None:
            prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            # No program that a model or a client starts can get more rights than this one has.
            prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
            if runs_models:
                enter_landlock()
            if os.getppid() != parent:  # it died before the call
                os._exit(1)

        return prepare


def _ended_children() -> Iterator[int]:
    """Yield children that have ended and are not reaped."""
    while True:
        try:
            status = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        if status is None:
            return
        yield status.si_pid


def _reap(pid: int) -> int:
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status)


#: Signals that stop the box.
STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Signals:
    """Receives the box's signals. The socket ``receiver`` is readable when some have arrived."""

    def __init__(self) -> None:
        self.receiver, sender = socket.socketpair()
        self.receiver.setblocking(False)
        sender.setblocking(False)
        self._sender = sender
        signal.set_wakeup_fd(sender.fileno(), warn_on_full_buffer=False)
        for number in (*STOPPING, signal.SIGCHLD):
            signal.signal(number, lambda *_: None)

    def read(self) -> list[int]:
        """Return the numbers of the signals since the last call."""
        with contextlib.suppress(BlockingIOError):
            return list(self.receiver.recv(4096))
        return []


#: The last line of a supervisor that has cleaned up.
DISMISSED = "done"


class Watchdog:
    """The supervisor's end of a pipe to the watchdog process; the pipe closes when the supervisor dies."""

    def __init__(self, pid: int, pipe: TextIO) -> None:
        self.pid, self._pipe = pid, pipe

    @classmethod
    def start(cls, clean: Callable[[], object]) -> Watchdog:
        """Start the process before anything else is opened or started, as it inherits every open file.

        ``clean`` removes the files of boxes that are dead.
        """
        receiver, sender = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(sender)
            os.setsid()
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_IGN)
            with os.fdopen(receiver) as lines:
                _watch(lines, clean)
            os._exit(0)
        os.close(receiver)
        return cls(pid, os.fdopen(sender, "w", buffering=1))

    def set_groups(self, pids: Iterable[int]) -> None:
        """Say which process groups are to be killed."""
        with contextlib.suppress(OSError, ValueError):  # the box works without its watchdog, too
            self._pipe.write(f"{' '.join(map(str, pids))}\n")

    def dismiss(self) -> None:
        """End the process: the supervisor has cleaned up itself."""
        with contextlib.suppress(OSError, ValueError):
            self._pipe.write(f"{DISMISSED}\n")
        with contextlib.suppress(OSError):
            self._pipe.close()
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)


def _watch(lines: TextIO, clean: Callable[[], object]) -> None:
    """Read the groups until the pipe ends; then kill the last ones and clean up, unless dismissed."""
    groups = "".join(deque(lines, maxlen=1)).split()
    if groups == [DISMISSED]:
        return
    for pid in map(int, groups):
        with contextlib.suppress(OSError):
            os.killpg(pid, signal.SIGKILL)
    clean()


#: System calls, which have the same numbers on all architectures, and a flag that asks for the version.
CREATE_RULESET, RESTRICT_SELF, GET_VERSION = 444, 446, 1
#: The first version with a scope for signals.
SIGNALS_VERSION = 6
#: The domain forbids making devices, which only root can: a domain must forbid something.
MAKE_CHAR, MAKE_BLOCK = 1 << 6, 1 << 11
SCOPE_SIGNAL = 1 << 1


def landlock() -> Callable[[], None]:
    """Return a function for a child between fork and exec that puts it and all its children into a domain.

    It needs ``no_new_privs``.
    """
    # Loaded now: the dynamic linker must not run between fork and exec.
    system_call = ctypes.CDLL(None, use_errno=True).syscall
    version = system_call(CREATE_RULESET, None, ctypes.c_size_t(0), GET_VERSION)
    # struct landlock_ruleset_attr: accesses to files and network, scopes. Older kernels take its beginning.
    attributes = (ctypes.c_uint64 * 3)(MAKE_CHAR | MAKE_BLOCK, 0, SCOPE_SIGNAL)
    size = ctypes.c_size_t(
        ctypes.sizeof(attributes) if version >= SIGNALS_VERSION else ctypes.sizeof(ctypes.c_uint64)
    )

    def enter() -> None:
        rules = system_call(CREATE_RULESET, ctypes.byref(attributes), size, 0)
        if rules >= 0:
            system_call(RESTRICT_SELF, rules, 0)
            os.close(rules)

    return enter


#: glibc returns freed memory to the kernel above these sizes, and every picture becomes freed memory: with
#: the defaults a worker spends up to half of its time on page faults. The first can be at most 32 MiB. One
#: arena serves all threads: the interpreter's lock separates them anyway, and glibc does not trim other
#: arenas (see sm.server.plane).
ONE_ARENA = {"MALLOC_ARENA_MAX": "1"}
ALLOCATOR = {
    "MALLOC_MMAP_THRESHOLD_": str(32 * 2**20),
    "MALLOC_TRIM_THRESHOLD_": str(128 * 2**20),
    **ONE_ARENA,
}
#: Variables for nginx's allocator: a large body's memory goes back to the kernel after its answer. Without a
#: fixed value, glibc raises its threshold to the largest block that was ever freed.
FRONT_ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": str(4 * 2**20), "MALLOC_TRIM_THRESHOLD_": str(8 * 2**20)}


class Commands:
    """The commands of all children.

    They inherit descriptors: the front ``listeners``, of the public ports; the workers ``data_listener``.
    """

    def __init__(
        self,
        settings: Settings,
        box: Box,
        nginx: Path | None,
        listeners: tuple[int, ...],
        data_listener: int,
        environment: Mapping[str, str],
    ) -> None:
        self._box, self._environment = box, environment
        self._listeners, self._data_listener = listeners, data_listener
        self._nginx = prepare_nginx(nginx, settings, box) if nginx else ()
        #: Multi-model mode: record ids whose models Triton must not be started with.
        self._excluded_records: set[str] = set()
        # Built now, so that a missing Triton stops the start before anything runs.
        self._triton = server.command(settings, box, environment)

    def exclude_models(self, models: Collection[str]) -> bool:
        """Start Triton without the archives of these models; False if none of them is loaded."""
        loaded = LoadRecords(self._box.models_file).read().loaded()
        ids = {record.id for record in loaded if set(models) & set(record.models.values())}
        self._excluded_records |= ids
        return bool(ids)

    def command(self, name: str) -> ChildCommand:
        """Remove what the child's previous process left, and return the child's command."""
        if name == NGINX:
            return self._front()
        if name == TRITON:
            return self._inference()
        if name == DATA:
            return self._data()
        if name == KEYS:
            return self._python("sm.server.access.keys", {})
        return self._python("sm.server.control_plane", ONE_ARENA)

    def _data(self) -> ChildCommand:
        variables = {**ALLOCATOR, "TRIREME_LISTENER": str(self._data_listener)}
        if self._box.reload:
            # Python's bytecode cache does not notice a second change of a file within one second.
            variables["PYTHONDONTWRITEBYTECODE"] = "1"
        module = "sm.server.worker" if self._box.fronted else "sm.server.worker_without_nginx"
        return self._python(module, variables, self._data_listener)

    def _python(self, module: str, variables: Mapping[str, str], *files: int) -> ChildCommand:
        paths = [str(PACKAGE.parent), self._environment.get("PYTHONPATH", "")]
        environment = {
            **self._environment,
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "PYTHONUNBUFFERED": "1",
            "PROMETHEUS_MULTIPROC_DIR": str(self._box.metrics_folder),
            "TRIREME_RUN_DIR": str(self._box.run),
            **variables,
        }
        return ChildCommand((sys.executable, "-m", module), environment, files)

    def _front(self) -> ChildCommand:
        # nginx takes over the listening sockets in this variable, as in its own binary upgrade.
        descriptors = "".join(f"{listener};" for listener in self._listeners)
        environment = {**self._environment, **FRONT_ALLOCATOR, "NGINX": descriptors}
        return ChildCommand(self._nginx, environment, self._listeners)

    def _inference(self) -> ChildCommand:
        # The python backend does not remove its files after a kill -9.
        remove_files(f"trireme-{self._box.id}-py")
        records = LoadRecords(self._box.models_file).read()
        if self._box.has_versions:
            # All but new versions whose load has not ended: it may be what ended the last Triton.
            loading = (record for record in records.records.values() if not record.loaded)
            ending = {name for record in loading for name in record.models.values()}
            names = [name for name in models.names(self._box.served) if name not in ending]
        else:
            # The models that were loaded when the previous Triton ended.
            names = [
                name
                for record in records.loaded()
                if record.id not in self._excluded_records
                for name in find_restorable(record, self._box.repository)
            ]
        loads = tuple(f"--load-model={name}" for name in names)
        return ChildCommand(self._triton.arguments + loads, self._triton.environment, runs_models=True)


PROBE_TIMEOUT_S = 0.25  # the supervisor does nothing else meanwhile
#: Every answer begins like this.
HTTP = b"HTTP/"


class Probes:
    """Probes the children of one box."""

    def __init__(self, box: Box, port: int) -> None:
        self._box, self._port = box, port

    def ready(self, name: str) -> bool:
        """True if the child serves. The front is probed through the public port, as callers use it."""
        if name == TRITON:
            # If only liveness is required, one model that does not load must not delay the others.
            return server.is_healthy(self._box.http_port, self._box.http_keys, self._box.ping)
        sockets = {CONTROL: self._box.control_socket, KEYS: self._box.keys_socket}
        if self._box.fronted:
            sockets[DATA] = self._box.data_socket
        return is_listening(sockets.get(name, ("127.0.0.1", self._port)))

    def is_served(self, model: str) -> bool | None:
        """True if Triton says that it serves a model; None if it does not answer."""
        states = server.states(self._box.http_port, self._box.http_keys, PROBE_TIMEOUT_S)
        return None if states is None else "READY" in states.get(model, ())

    def unready_models(self) -> dict[str, str] | None:
        """Return Triton's reasons why models are not ready, by model; None if it does not answer."""
        rows = server.unready(self._box.http_port, self._box.http_keys, PROBE_TIMEOUT_S)
        return None if rows is None else {row["name"]: row["reason"] for row in rows}

    def failure(self, name: str) -> str:
        """Return a sentence that names the models or clients that cannot be loaded, with the reasons."""
        if name in (CONTROL, DATA):
            file = self._box.start_error_file
            return file.read_text() if file.exists() else ""
        failed_models = server.failures(self._box.http_port, self._box.http_keys) if name == TRITON else {}
        sentences = [
            f"the model {model!r} cannot be loaded: {reason.rstrip('.')}"
            for model, reason in failed_models.items()
        ]
        return f"{'; '.join(sentences)}." if sentences else ""


def is_listening(address: Path | tuple[str, int]) -> bool:
    """True if something that speaks HTTP answers; any answer will do."""
    family = socket.AF_UNIX if isinstance(address, Path) else socket.AF_INET
    with socket.socket(family) as sock, contextlib.suppress(OSError):
        sock.settimeout(PROBE_TIMEOUT_S)
        sock.connect(str(address) if isinstance(address, Path) else address)
        sock.sendall(b"GET /ping HTTP/1.1\r\nHost: box\r\nConnection: close\r\n\r\n")
        return sock.recv(len(HTTP), socket.MSG_WAITALL) == HTTP
    return False
