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
from sm.hardware import memory_kills
from sm.model_processes.generations import SERVES, STANDSTILL_S, STARTS_AGAIN, STOPPED, SharedGeneration
from sm.model_processes.monitor import ModelProcessMonitor
from sm.model_processes.reports import read_reports
from sm.model_processes.search import ModelProcess, ModelProcesses
from sm.run_state import Box, write_atomically
from sm.server.access import certificates
from sm.server.access.certificates import KeyPair
from sm.server.access.keys import Watched
from sm.server.logs import LineSplitter, Log, Members, TritonLines
from sm.server.supervisor.ports import UnavailableResponder, handle_events
from sm.server.supervisor.process_manager import (
    CONTROL,
    DATA,
    KEYS,
    NGINX,
    PROCESS_POLL_INTERVAL_S,
    READY,
    TRITON,
    OomKills,
    ProcessManager,
)
from sm.server.supervisor.processes import STOPPING, Commands, Probes, Processes, Signals
from sm.settings import Settings
from sm.triton import server
from sm.triton.shared_memory_cleanup import make_private

#: Seconds between two ticks, each with a heartbeat for the workers (sm.model_processes.generations). The
#: second is for a box at rest: every child is ready, and no Python model had a request for so many seconds.
#: Triton may take a Python model's process for dead that was stopped this soon after a request began, if the
#: whole box was.
TICK_S, REST_TICK_S, REST_S = 0.05, PROCESS_POLL_INTERVAL_S, 2.0
#: Seconds that a model's process must be dead before it is reported: Triton reaps the ones that it ended
#: itself within a moment.
DEAD_IMPORT_REPORT_DELAY_S = 1.0
#: Models that are named when Triton is not ready for more.
MAX_NAMED = 5
#: Bytes of one read from a child's pipe.
READ_BYTES = 1 << 16
#: Seconds in which log lines are collected: waking up for each would cost more than the line itself.
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
        generation: SharedGeneration,
        log: Log,
        has_gpu: bool = True,
        when_ready: Callable[[], None] = lambda: None,
    ) -> None:
        """``when_ready`` is called once, when the box is ready for the first time. Without ``has_gpu``,
        Triton's messages about a missing GPU are logged as debug lines.
        """
        self._box, self._commands, self._selector, self._signals = box, commands, selector, signals
        self._processes, self._generation, self._log = processes, generation, log
        self._when_ready, self._has_gpu = when_ready, has_gpu
        self._probes = Probes(box, settings.port)
        # The parts of the process backend that others have.
        self.signal, self.kill, self.log = processes.signal, processes.kill, log.log
        self.ready, self.failure = self._probes.ready, self._probes.failure
        self.oom_killed = OomKills(memory_kills, time.monotonic).oom_killed
        self._watch_triton(0)
        self._dead_imports: tuple[ModelProcess, ...] = ()
        self._triton_lines: TritonLines | None = None
        self._outputs: dict[int, tuple[int, LineSplitter]] = {}
        #: True if the last read filled its buffer: the loop does not sleep then.
        self._has_more_output = False
        #: When a Python model was last seen to have a request.
        self._last_activity = time.monotonic()
        self._reports = os.open(box.reports_pipe, os.O_RDWR | os.O_NONBLOCK)
        keys = (KEYS,) if settings.api_keys_file else ()
        front = (*keys, NGINX) if box.fronted else ()
        self.manager = ProcessManager(
            self,
            time.monotonic,
            (CONTROL, *front, TRITON, DATA),
            max_restarts=settings.restarts,
            startup_timeout=settings.startup_timeout,
            drain_timeout=settings.drain,
        )
        contexts = {listener: None, tls_listener: partial(certificates.server_context, box.tls_folder)}
        self._responders = [
            UnavailableResponder(port, selector, lambda: self.manager.reason, context)
            for port, context in contexts.items()
            if port
        ]
        self._certificates: Watched[KeyPair] | None = None
        if settings.tls_certificate and settings.tls_key:
            files = settings.tls_certificate, settings.tls_key
            self._certificates = certificates.watch(files, box.tls_folder, self._reload_front, self.log)
        selector.register(signals.receiver, EVENT_READ, self._handle_signals)
        selector.register(self._reports, EVENT_READ, self._handle_reports)

    def run(self) -> int:
        """Run until everything has ended; return the exit code."""
        self._generation.beat()
        while self.manager.exit_code is None:
            self._heartbeat()
            self.manager.tick()
            for responder in self._responders:
                responder.serve(self.manager.rejecting)
            # nginx would die of SIGHUP while it starts.
            if self._certificates and self.manager.front_is_ready and not self.manager.shutdown:
                self._certificates.look()
            if self.manager.ever_ready:
                when_ready, self._when_ready = self._when_ready, lambda: None
                when_ready()
            if self._handle_events(self._seconds_to_tick) and self._is_steady and not self._has_more_output:
                time.sleep(LOG_BATCH_S)
        for responder in self._responders:
            responder.close()
        for responder in self._responders:
            responder.finish()
        return self.manager.exit_code

    def _heartbeat(self) -> None:
        """Write the heartbeat for the workers. A late heartbeat means that the machine stood still."""
        age = self._generation.heartbeat_age()
        if age > STANDSTILL_S:
            self._generation.resume()
            self._monitor.forget_times()
            self.manager.handle_standstill(age)
        self._generation.beat()
        if self._monitor.keep_healthy():
            self._last_activity = time.monotonic()

    @property
    def _seconds_to_tick(self) -> float:
        is_active = time.monotonic() < self._last_activity + REST_S
        return REST_TICK_S if self._is_steady and not is_active else TICK_S

    @property
    def _is_steady(self) -> bool:
        return self.manager.steady and not self._is_answering

    def _handle_events(self, seconds: float) -> bool:
        self._has_more_output = False
        return handle_events(self._selector, seconds)

    @property
    def _is_answering(self) -> bool:
        """True while the supervisor itself answers a caller."""
        return any(responder.busy for responder in self._responders)

    def _reload_front(self) -> None:
        """Make nginx read its configuration, and with it the certificate, again."""
        pid = self.manager.children[NGINX].pid
        if pid is not None:
            self.signal(pid, signal.SIGHUP)

    # The process backend.

    def spawn(self, name: str) -> int:
        if name == TRITON:
            self._generation.admit_all()
            self._generation.watch(True)
            self._box.replacement_file.unlink(missing_ok=True)
        try:
            pid, output = self._processes.spawn(self._commands.command(name))
        except OSError as error:
            raise StartError(f"{name} cannot be started: {error}.") from error
        emit: Callable[[Members], None] = partial(self._log.write, name)
        if name == TRITON:
            emit = self._triton_lines = TritonLines(emit, self._has_gpu)
        splitter = LineSplitter(emit)
        self._outputs[pid] = (output, splitter)
        self._selector.register(output, EVENT_READ, partial(self._read, pid))
        return pid

    def unready_models(self) -> str:
        reasons = self._probes.unready_models()
        if reasons is None and self._triton_lines:
            # Triton answers nobody until its first models are loaded.
            reasons = dict.fromkeys(self._triton_lines.loading(self._box.served_names()), server.LOADING)
        named = [
            f"the model {model!r} is not ready: {reason.rstrip('.')}"
            for model, reason in (reasons or {}).items()
        ]
        more = [f"{len(named) - MAX_NAMED} more"] if len(named) > MAX_NAMED else []
        return "; ".join([*named[:MAX_NAMED], *more])

    def poll_model_processes(self, pid: int) -> list[str]:
        self._follow_triton(pid)
        sentences = self._monitor.poll()
        if self._model_processes.found_others:
            self._model_processes.found_others = False
            make_private(f"trireme-{self._box.id}-py")
        # In multi-model mode a model may run before its process is found.
        self._generation.watch(self._box.multi_model or self._monitor.has_instances)
        return sentences

    def _follow_triton(self, pid: int | None) -> None:
        """Watch the processes of the Triton ``pid`` from now on, if that is another Triton than before."""
        if pid and pid != self._model_processes.triton:
            self._watch_triton(pid)

    def _watch_triton(self, pid: int) -> None:
        self._model_processes = ModelProcesses(pid, self._box.served)
        self._monitor = ModelProcessMonitor(
            self._model_processes,
            self._generation,
            lambda: self.oom_killed(0.0),
            is_served=self._probes.is_served,
        )

    def dead_import(self, pid: int) -> str:
        died_before = time.monotonic() - DEAD_IMPORT_REPORT_DELAY_S
        self._follow_triton(pid)
        self._model_processes.search()
        self._dead_imports = tuple(
            process for process in self._model_processes.dead if process.dead_since < died_before
        )
        return next((self._describe_dead_import(process) for process in self._dead_imports), "")

    def exclude_dead_import(self) -> bool:
        models = {process.model for process in self._dead_imports} - {""}
        return self._box.multi_model and self._commands.exclude_models(models)

    def replacement_wanted(self) -> str:
        try:
            return self._box.replacement_file.read_text()
        except OSError:
            return ""

    def _describe_dead_import(self, process: ModelProcess) -> str:
        scripts = self._box.repository.glob("*/*/model.py")
        # A process may die before its model is recorded. If one model is not recorded, it is that one.
        unseen = {path.parent.parent.name for path in scripts} - self._model_processes.recorded_models
        name = process.model or (unseen.pop() if len(unseen) == 1 else "")
        subject = f"the model {name!r}" if name else "a Python model"
        return f"{subject} cannot be loaded: {process.import_failure}"

    def disable_keepalive(self) -> None:
        # If the disk is full, callers learn it when the front closes their connection.
        with contextlib.suppress(OSError):
            self._box.draining_file.touch()

    def publish(self, state: Mapping[str, Any]) -> None:
        serves = state["processes"][TRITON]["state"] == READY
        # While the box stops, no Triton is started.
        self._generation.triton = SERVES if serves else STOPPED if state["draining"] else STARTS_AGAIN
        text = json.dumps(state)
        try:
            write_atomically(self._box.state_file, text)
        except OSError:
            # The disk is full, so write into the old file. A reader that finds it half written reads again.
            with self._box.state_file.open("r+") as file:
                file.write(text)
                file.truncate()

    # Events.

    def _handle_signals(self) -> None:
        for number in self._signals.read():
            if number in STOPPING:
                self.manager.handle_signal(number)
        for pid, status in self._processes.reap():
            self._log_last_lines(pid)
            self.manager.handle_exit(pid, status)

    def _handle_reports(self) -> None:
        for report in read_reports(self._reports):
            if sentence := self._monitor.decide(report):
                self.log("error", f"{sentence}; reloading the model")

    def _read(self, pid: int) -> bool:
        """Read what a child printed. Returns False if there is nothing more for now."""
        output, splitter = self._outputs[pid]
        try:
            data = os.read(output, READ_BYTES)
        except BlockingIOError:
            return False
        if data:
            self._has_more_output |= len(data) == READ_BYTES
            splitter.feed(data)
            return True
        splitter.end()
        self._selector.unregister(output)
        os.close(output)
        del self._outputs[pid]
        return False

    def _log_last_lines(self, pid: int) -> None:
        """Log what a dead child printed last, before its exit is handled."""
        while pid in self._outputs and self._read(pid):
            pass
