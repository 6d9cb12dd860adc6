"""The supervisor's event loop: one thread, one selector, and the backend of :mod:`process_manager`."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import time
from collections.abc import Callable, Mapping
from functools import partial
from selectors import EVENT_READ, BaseSelector
from typing import Any

from sm.errors import StartError
from sm.generation import STANDSTILL_S, SharedGeneration
from sm.run_state import Box, write_whole
from sm.server.access import certificates
from sm.server.supervisor.certificate_watch import CertificateWatch
from sm.server.supervisor.commands import Commands
from sm.server.supervisor.gpu_lines import GpuLines
from sm.server.supervisor.log_lines import Lines
from sm.server.supervisor.log_writer import Log
from sm.server.supervisor.oom_kills import OomKills, count_kills
from sm.server.supervisor.probes import Probes
from sm.server.supervisor.process_manager import CONTROL, DATA, KEYS, NGINX, TRITON, ProcessManager
from sm.server.supervisor.processes import Processes
from sm.server.supervisor.signals import STOPPING, Signals
from sm.server.supervisor.stub_monitor import StubCondition, StubMonitor
from sm.server.supervisor.unavailable_responder import TlsUnavailableResponder, UnavailableResponder
from sm.server.supervisor.watchdog import Watchdog
from sm.settings import Settings
from sm.triton.shared_memory_cleanup import make_private
from sm.triton.stub_processes import DeadStub, StubWatch

#: Seconds between two ticks of the rules.
TICK_S = 0.05
#: Seconds between two heartbeats for the workers; see sm.generation.
HEARTBEAT_INTERVAL_S = 0.1
#: Seconds for the last callers to read that the box is stopping.
STOP_NOTICE_S = 0.5
#: Seconds that a process must be dead before it is reported.
DEAD_IMPORT_S = 1.0
#: Bytes of one read from a child's pipe.
CHUNK = 1 << 16
#: Seconds in which lines are collected: waking up for each would cost more than the line itself.
LOG_BATCH_S = 0.02


class Loop:
    """Runs the children of one box until they have ended."""

    def __init__(
        self,
        settings: Settings,
        box: Box,
        *,
        commands: Commands,
        listener: socket.socket,
        tls_listener: socket.socket | None,
        selector: BaseSelector,
        signals: Signals,
        processes: Processes,
        guard: Watchdog | None,
        generation: SharedGeneration,
        log: Log,
        has_gpu: bool = True,
        when_ready: Callable[[], None] = lambda: None,
    ) -> None:
        """``when_ready`` is called once, when the box is ready for the first time. Without ``has_gpu``
        Triton's complaints about that are no errors.
        """
        self._box, self._commands, self._selector, self._signals = box, commands, selector, signals
        self._processes, self._guard, self._generation, self._log = processes, guard, generation, log
        self._when_ready, self._has_gpu = when_ready, has_gpu
        self._probes = Probes(box, settings.port)
        self._memory = OomKills(count_kills, time.monotonic)
        self._stubs = StubMonitor(0)
        self._imports = StubWatch(box.overlay or box.repository)
        self._dead_imports: tuple[DeadStub, ...] = ()
        self._outputs: dict[int, tuple[int, Lines]] = {}
        #: True while a child prints faster than its output is read; the loop then does not sleep.
        self._behind = False
        keys = (KEYS,) if settings.api_keys_file else ()
        front = (*keys, NGINX) if box.fronted else ()
        self.manager = ProcessManager(
            self,
            time.monotonic,
            (CONTROL, *front, TRITON, DATA),
            budget=settings.restarts,
            startup=settings.startup_timeout,
            drain=settings.drain,
        )
        self._doormen = [
            UnavailableResponder(listener, selector, lambda: self.manager.reason, time.monotonic)
        ]
        if tls_listener:
            self._doormen.append(
                TlsUnavailableResponder(
                    tls_listener,
                    selector,
                    lambda: self.manager.reason,
                    time.monotonic,
                    lambda: certificates.server_context(box.tls_folder),
                )
            )
        self._certificates: CertificateWatch | None = None
        if settings.tls_certificate and settings.tls_key:
            self._certificates = CertificateWatch(
                (settings.tls_certificate, settings.tls_key),
                box.tls_folder,
                time.monotonic,
                self._reload_front,
                self.say,
            )
        selector.register(signals.reading, EVENT_READ, self._take_signals)

    def run(self) -> int:
        """Run until everything has ended; return the exit code."""
        self._generation.beat()
        while self.manager.exit_code is None:
            self._heartbeat()
            self.manager.tick()
            for doorman in self._doormen:
                doorman.serve(self.manager.rejecting)
            # nginx would die of SIGHUP while it starts.
            if self._certificates and self.manager.front_is_ready and not self.manager.shutdown:
                self._certificates.poll()
            if self.manager.ever_ready:
                when_ready, self._when_ready = self._when_ready, lambda: None
                when_ready()
            if self.manager.steady and not self._answering:
                self._wait()
            else:
                self._handle_events(TICK_S)
        self._close_port()
        return self.manager.exit_code

    def _heartbeat(self) -> None:
        """Write the heartbeat for the workers, and tell the rules if the machine stood still since the last
        one.
        """
        age = self._generation.heartbeat_age()
        if age > STANDSTILL_S:
            self.manager.handle_standstill(age)
        self._generation.beat()

    def _wait(self) -> None:
        """Handle events until the next heartbeat, as long as nothing else is due."""
        end = time.monotonic() + HEARTBEAT_INTERVAL_S
        while self.manager.steady and (left := end - time.monotonic()) > 0:
            self._handle_events(left)
            if not self._behind:
                time.sleep(LOG_BATCH_S)

    def _handle_events(self, seconds: float) -> None:
        """Wait for events and handle them."""
        registered, self._behind = self._selector.get_map(), False
        for key, _ in self._selector.select(seconds):
            # An earlier event of this round may have closed this one's file.
            if registered.get(key.fd) is key:
                key.data()

    def _close_port(self) -> None:
        """Close the port, and let the last callers read why."""
        for doorman in self._doormen:
            doorman.close()
        end = time.monotonic() + STOP_NOTICE_S
        while self._answering and time.monotonic() < end:
            self._handle_events(TICK_S)

    @property
    def _answering(self) -> bool:
        """True while the supervisor itself answers a caller."""
        return any(doorman.busy for doorman in self._doormen)

    def _reload_front(self) -> None:
        """Make nginx read its configuration, and with it the certificate, again."""
        pid = self.manager.children[NGINX].pid
        if pid is not None:
            self.signal(pid, signal.SIGHUP)

    # The process backend.

    def spawn(self, name: str) -> int:
        if name == TRITON:
            self._generation.advance()
            self._box.replacement_file.unlink(missing_ok=True)
        try:
            pid, output = self._processes.spawn(self._commands.command(name))
        except OSError as error:
            raise StartError(f"{name} cannot be started: {error}.") from error
        if self._guard:
            self._guard.group(pid)
        emit = partial(self._log.write, name)
        lines = Lines(GpuLines(emit, self._has_gpu) if name == TRITON else emit)
        self._outputs[pid] = (output, lines)
        self._selector.register(output, EVENT_READ, partial(self._read, pid))
        return pid

    def signal(self, pid: int, number: int) -> None:
        self._processes.signal(pid, number)

    def kill(self, pid: int) -> None:
        self._processes.kill(pid)

    def ready(self, name: str) -> bool:
        return self._probes.ready(name)

    def failure(self, name: str) -> str:
        return self._probes.failure(name)

    def stub_condition(self, pid: int) -> StubCondition:
        if self._stubs.pid != pid:
            self._stubs = StubMonitor(pid)
        condition = self._stubs.poll()
        if self._stubs.has_just_searched:
            make_private(f"trireme-{self._box.id}-py")
        self._generation.watch(self.has_stubs())
        # In multi-model mode the control plane reloads that model alone.
        if condition is StubCondition.DEAD and self._box.multi_model:
            return StubCondition.HEALTHY
        return condition

    def dead_import(self, pid: int) -> str:
        # Triton itself will wait for the ones that it has ended, within a moment.
        settled = time.monotonic() - DEAD_IMPORT_S
        self._dead_imports = tuple(stub for stub in self._imports.find(pid) if stub.since < settled)
        return next((self._tell_import(stub) for stub in self._dead_imports), "")

    def leave_out_dead_import(self) -> bool:
        models = {stub.model for stub in self._dead_imports} - {""}
        return self._box.multi_model and self._commands.leave_out(models)

    def replacement_wanted(self) -> str:
        if not self._box.multi_model:
            return ""
        try:
            return self._box.replacement_file.read_text()
        except OSError:
            return ""

    def _tell_import(self, stub: DeadStub) -> str:
        scripts = self._box.repository.glob("*/*/model.py")
        # If only one process died before it was seen, it belongs to the only model that was not seen.
        unseen = {path.parent.parent.name for path in scripts} - self._imports.recorded_models
        name = stub.model or (unseen.pop() if len(unseen) == 1 else "")
        which = f"the model {name!r}" if name else "a Python model"
        return f"{which} cannot be loaded: {stub.sentence}"

    def has_stubs(self) -> bool:
        # In multi-model mode the next model may be loaded before its process is found.
        return self._box.multi_model or self._stubs.has_stubs

    def answers_in_doubt(self) -> bool:
        return self._generation.is_in_doubt(self._generation.current)

    def put_answers_in_doubt(self) -> None:
        self._generation.put_in_doubt(self._generation.current)

    def oom_killed(self, patience: float) -> bool:
        return self._memory.oom_killed(patience)

    def keep_answering(self) -> None:
        # On a full disk, callers notice by the end of their connection.
        with contextlib.suppress(OSError):
            self._box.draining_file.touch()

    def publish(self, state: Mapping[str, Any]) -> None:
        text = json.dumps(state)
        try:
            write_whole(self._box.state_file, text)
        except OSError:
            # The disk is full. The old file has its space; a reader that finds it half written reads again.
            with self._box.state_file.open("r+") as file:
                file.write(text)
                file.truncate()

    def say(self, level: str, message: str) -> None:
        self._log.log(level, message)

    # Events.

    def _take_signals(self) -> None:
        for number in self._signals.take():
            if number in STOPPING:
                self.manager.handle_signal(number)
        for pid, status in self._processes.reap():
            self._finish(pid)
            self.manager.handle_exit(pid, status)

    def _read(self, pid: int) -> bool:
        """Read what a child printed. Returns False if there is nothing more for now."""
        output, lines = self._outputs[pid]
        try:
            data = os.read(output, CHUNK)
        except BlockingIOError:
            return False
        if data:
            self._behind |= len(data) == CHUNK
            lines.feed(data)
            return True
        lines.end()
        self._selector.unregister(output)
        os.close(output)
        del self._outputs[pid]
        return False

    def _finish(self, pid: int) -> None:
        """Handle a child's death: log its last lines before its exit."""
        if self._guard:
            self._guard.forget(pid)
        while pid in self._outputs and self._read(pid):
            pass
