"""The supervisor's event loop: one thread, one selector, and the hands that :mod:`crew` works with."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from collections.abc import Callable, Mapping
from functools import partial
from selectors import EVENT_READ, BaseSelector
from typing import Any

from sm.box import Box, write_whole
from sm.errors import StartError
from sm.settings import Settings
from sm.supervisor.commands import Commands
from sm.supervisor.crew import CONTROL, DATA, LOOK_EVERY, NGINX, TRITON, Crew
from sm.supervisor.doorman import Doorman
from sm.supervisor.guard import Guard
from sm.supervisor.loglines import Lines
from sm.supervisor.memory import Memory, kills
from sm.supervisor.probes import Probes
from sm.supervisor.processes import Children, Processes
from sm.supervisor.signals import STOPPING, Signals
from sm.supervisor.sink import Log

#: Seconds between two looks at what is due.
TICK = 0.05
#: Seconds for the last callers to read that the box is stopping.
PARTING = 0.5
#: Bytes taken from a child's pipe at a time.
CHUNK = 1 << 16
#: Seconds in which lines gather: to be woken for each would cost more than the line, here and in its writer.
GATHER = 0.02


class Loop:
    """Runs the children of one box to their end."""

    def __init__(
        self,
        settings: Settings,
        box: Box,
        *,
        commands: Commands,
        listener: socket.socket,
        selector: BaseSelector,
        signals: Signals,
        processes: Processes,
        guard: Guard | None,
        log: Log,
        when_ready: Callable[[], None] = lambda: None,
    ) -> None:
        """``when_ready`` is called once, when the box is ready for the first time."""
        self._box, self._commands, self._selector, self._signals = box, commands, selector, signals
        self._processes, self._guard, self._log = processes, guard, log
        self._when_ready = when_ready
        self._probes = Probes(box, settings.port)
        self._memory = Memory(kills, time.monotonic)
        self._children = Children(0)
        self._outputs: dict[int, tuple[int, Lines]] = {}
        #: A child prints faster than is read: no time to rest.
        self._behind = False
        front = (NGINX,) if box.fronted else ()
        self.crew = Crew(
            self,
            time.monotonic,
            (CONTROL, *front, TRITON, DATA),
            budget=settings.restarts,
            startup=settings.startup_timeout,
            drain=settings.drain,
        )
        self._doorman = Doorman(listener, selector, lambda: self.crew.reason, time.monotonic)
        selector.register(signals.reading, EVENT_READ, self._take_signals)

    def run(self) -> int:
        """Until all is over; the exit code."""
        while self.crew.exit_code is None:
            self.crew.tick()
            self._doorman.attend(self.crew.refusing)
            if self.crew.ever_ready:
                when_ready, self._when_ready = self._when_ready, lambda: None
                when_ready()
            if self.crew.settled and not self._doorman.busy:
                self._rest()
            else:
                self._turn(TICK)
        self._part()
        return self.crew.exit_code

    def _rest(self) -> None:
        """Nothing is due before the next look: unless a child ends or is to end, only lines are passed on."""
        end = time.monotonic() + LOOK_EVERY
        while self.crew.settled and (left := end - time.monotonic()) > 0:
            self._turn(left)
            if not self._behind:
                time.sleep(GATHER)

    def _turn(self, seconds: float) -> None:
        """Wait for something to happen, and see to it."""
        registered, self._behind = self._selector.get_map(), False
        for key, _ in self._selector.select(seconds):
            # An event before this one may have closed what this one is about.
            if registered.get(key.fd) is key:
                key.data()

    def _part(self) -> None:
        """Give the port back; the last callers get to read why."""
        self._doorman.close()
        end = time.monotonic() + PARTING
        while self._doorman.busy and time.monotonic() < end:
            self._turn(TICK)

    # The hands.

    def spawn(self, name: str) -> int:
        try:
            pid, output = self._processes.spawn(self._commands.command(name))
        except OSError as error:
            raise StartError(f"{name} cannot be started: {error}.") from error
        if self._guard:
            self._guard.group(pid)
        lines = Lines(partial(self._log.write, name))
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

    def ailing(self, pid: int) -> bool:
        # Where many models come and go, the control plane has the one loaded again.
        if self._box.multi_model:
            return False
        if self._children.pid != pid:
            self._children = Children(pid)
        return self._children.has_dead()

    def starved(self, patience: float) -> bool:
        return self._memory.starved(patience)

    def linger(self) -> None:
        # On a full disk callers learn it from the connection's end.
        with contextlib.suppress(OSError):
            self._box.draining_file.touch()

    def publish(self, state: Mapping[str, Any]) -> None:
        text = json.dumps(state)
        try:
            write_whole(self._box.state_file, text)
        except OSError:
            # The disk is full. The old file has room of its own; who reads it half written asks again.
            with self._box.state_file.open("r+") as file:
                file.write(text)
                file.truncate()

    def say(self, level: str, message: str) -> None:
        self._log.say(level, message)

    # What happens.

    def _take_signals(self) -> None:
        for number in self._signals.take():
            if number in STOPPING:
                self.crew.signalled(number)
        for pid, status in self._processes.reap():
            self._finish(pid)
            self.crew.ended(pid, status)

    def _read(self, pid: int) -> bool:
        """Take what a child printed; False if there is no more for now."""
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
        """A child is dead: its last lines before anything is said of its end."""
        if self._guard:
            self._guard.forget(pid)
        while pid in self._outputs and self._read(pid):
            pass
