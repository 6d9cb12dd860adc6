"""The supervisor's rules: the order of starts, the reaction to a death, the course of a stop.

The rules touch no process. All actions go through :class:`ProcessBackend`, so a test is a table of events.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from signal import SIGINT, SIGKILL, SIGQUIT, SIGTERM
from typing import Any, Protocol

from sm.hardware import OOM_KILLED, describe_exit
from sm.polling import SLOW_WATCH_S

MODEL_OOM_KILLED = f": a Python model process died{OOM_KILLED}"


class OomKills:
    """Compares the kernel's count of killed processes with the one that it read last."""

    def __init__(self, count: Callable[[], int], clock: Callable[[], float]) -> None:
        self._count, self._clock = count, clock
        self._last_count = count()
        self._since: float | None = None

    def oom_killed(self, min_age: float) -> bool:
        """True if the kernel killed a process ``min_age`` seconds ago or earlier; reports each kill once."""
        count, now = self._count(), self._clock()
        if count > self._last_count and self._since is None:
            self._since = now
        self._last_count = count
        if self._since is None or now - self._since < min_age:
            return False
        self._since = None
        return True


class ProcessBackend(Protocol):
    """The actions and queries of the rules."""

    def spawn(self, name: str) -> int:
        """Start a child. Returns its process id, which is also its group's."""

    def signal(self, pid: int, number: int) -> None:
        """Send a signal to the child alone; it stops its own children."""

    def kill(self, pid: int) -> None:
        """Kill the child and its whole group at once."""

    def ready(self, name: str) -> bool:
        """True if the child serves. Bounded in time."""

    def failure(self, name: str) -> str:
        """Return a sentence if the child will never be ready, else an empty text."""

    def unready_models(self) -> str:
        """Return which models a starting Triton is not ready for, with its reasons; empty if unknown."""

    def poll_model_processes(self, pid: int) -> list[str]:
        """Take out the models of which the Triton ``pid`` has lost a process; return a sentence for each."""

    def dead_import(self, pid: int) -> str:
        """Return a sentence if a starting Triton will never be ready, because it waits for a dead process."""

    def exclude_dead_import(self) -> bool:
        """Exclude that model from Triton's next start; False if that is not allowed or not possible."""

    def replacement_wanted(self) -> str:
        """Return the control plane's reason to start Triton again, once; else an empty text."""

    def oom_killed(self, min_age: float) -> bool:
        """True if the kernel killed a process for lack of memory at least ``min_age`` seconds ago; each kill
        is reported once.
        """

    def disable_keepalive(self) -> None:
        """Make the front answer with ``Connection: close``, so that callers reconnect."""

    def publish(self, state: Mapping[str, Any]) -> None:
        """Write the state for the control plane."""

    def log(self, level: str, message: str) -> None:
        """Log a line."""


@dataclass
class Shutdown:
    """A stop of the box that has begun."""

    #: The box's exit code.
    code: int
    #: The steps that are left, one for each tick.
    steps: Iterator[None]
    #: The front serves as before.
    front_serves: bool = True
    #: Kill all children at once.
    forced: bool = False


#: Seconds within which deaths count against the restart limit.
RESTART_WINDOW_S = 300.0
#: Seconds before a restart: the first, and the longest.
FIRST_BACKOFF_S, MAX_BACKOFF_S = 0.1, 5.0
#: Seconds between two probes of a child that is starting.
PROBE_INTERVAL_S = 0.1

WAITING, STARTING, READY, RESTARTING, STOPPED = "waiting", "starting", "ready", "restarting", "stopped"


@dataclass
class Child:
    """A process of the box. Times are seconds on the supervisor's clock."""

    name: str
    state: str = WAITING
    pid: int | None = None
    restarts: int = 0
    #: When it was last started.
    since: float = 0.0
    #: Do not start or probe it before this time.
    not_before: float = 0.0
    ever_ready: bool = False
    #: True if the supervisor ends it, so that its exit is not counted.
    expected_exit: bool = False
    #: The times of its deaths within the window.
    deaths: list[float] = field(default_factory=list)

    def mark_started(self, pid: int, now: float) -> None:
        self.pid, self.since, self.not_before = pid, now, now
        self.state = RESTARTING if self.state == RESTARTING else STARTING

    def mark_exited(self, now: float) -> None:
        """Record its exit; it is started again after the back-off."""
        self.pid = None
        self.state = RESTARTING if self.ever_ready or not self.expected_exit else WAITING
        if self.expected_exit:
            self.expected_exit = False
            return
        self.restarts += 1
        self.deaths = [death for death in self.deaths if death > now - RESTART_WINDOW_S] + [now]
        self.not_before = now + min(MAX_BACKOFF_S, FIRST_BACKOFF_S * 2 ** min(len(self.deaths) - 1, 10))

    def mark_stopped(self) -> None:
        self.pid, self.state = None, STOPPED


def exit_code(status: int) -> int:
    """Translate a child's exit (negative: a signal) to the box's exit code, which is never 0."""
    return 128 - status if status < 0 else status or 1


NGINX, CONTROL, KEYS, TRITON, DATA = "nginx", "control", "keys", "triton", "data"
#: gunicorn's exit codes for a worker that did not boot and an application that did not load.
CANNOT_LOAD = (3, 4)
#: Seconds that running requests get when the box gives up.
SHORT_DRAIN_S = 2.0
#: Seconds in which the front still serves and answers with ``Connection: close``, before it stops.
KEEPALIVE_DRAIN_S = 0.5
#: Seconds between two polls of the processes of Triton's Python models.
PROCESS_POLL_INTERVAL_S = 0.2
#: Seconds that a process may be dead while Triton starts. Triton waits within 3 s for one that fails to
#: initialize.
DEAD_IMPORT_GRACE_S = 5.0
#: Seconds for a killed Triton to end, before its processes are polled again.
KILL_GRACE_S = 1.0
#: Attribute an OOM kill to a worker after this many seconds.
OOM_ATTRIBUTION_S = 3.0


class ProcessManager:
    """The children of a box and the rules for them."""

    def __init__(
        self,
        backend: ProcessBackend,
        clock: Callable[[], float],
        names: tuple[str, ...],
        *,
        max_restarts: int,
        startup_timeout: float,
        drain_timeout: float,
    ) -> None:
        """``names`` are in start order; the time-outs are in seconds."""
        self.backend, self.clock = backend, clock
        self.max_restarts = max_restarts
        self.startup_timeout, self.drain_timeout = startup_timeout, drain_timeout
        self.children = {name: Child(name) for name in names}
        #: The box's exit code, once everything has ended.
        self.exit_code: int | None = None
        self.shutdown: Shutdown | None = None
        self.ever_ready = False
        self.began_at = clock()
        self._failure = ""
        self._next_process_poll = 0.0
        self._dead_import, self._dead_import_since = "", 0.0
        #: The models that Triton is not ready for, with its reasons, and when to ask again.
        self._unready_models, self._next_unready_query = "", 0.0
        self._published: dict[str, Any] = {}

    # Events.

    def tick(self) -> None:
        """Take the steps that are due: start, stop, probe or give up processes."""
        now = self.clock()
        if self.shutdown:
            self._continue_stop(self.shutdown)
        else:
            for child in self.children.values():
                self._attend(child, now)
                if self.shutdown:
                    break
        self.publish()

    def handle_exit(self, pid: int, status: int) -> None:
        """Handle a process's end. ``status`` is its exit code, or minus the signal that killed it."""
        child = next((child for child in self.children.values() if child.pid == pid), None)
        if child is None:
            return
        if self.shutdown:
            child.mark_stopped()
        else:
            self._handle_death(child, status)
        self.publish()

    def handle_signal(self, number: int) -> None:
        """Handle a signal to stop the box."""
        if self.shutdown is None:
            self.backend.log("info", "stopping: running requests are finished first")
            self._stop(0, self.drain_timeout)
        elif number == SIGINT and not self.shutdown.forced:
            self.backend.log("warning", "interrupted again: stopping at once")
            self.shutdown.forced, self.shutdown.code = True, 130
        self.publish()

    def handle_standstill(self, seconds: float) -> None:
        """Handle a pause of ``seconds`` in which the supervisor, and probably the whole machine, did not run.

        No process is at fault. If Triton gave up on one, a worker reads its message.
        """
        if self.children[TRITON].ever_ready:
            self.backend.log("warning", f"the box stood still for {seconds:.1f} s")

    # State.

    @property
    def steady(self) -> bool:
        """True if nothing is due until an event happens."""
        return not self.shutdown and all(child.state == READY for child in self.children.values())

    @property
    def ready(self) -> bool:
        return not self.reason

    @property
    def reason(self) -> str:
        """The reason why the box is not ready, in a sentence; empty if it is."""
        if self.shutdown:
            return self._failure or "the box is stopping"
        sentences = {
            KEYS: ("the API keys are being read", "the API key checker is restarting"),
            TRITON: ("Triton is loading the models", "Triton is restarting"),
            DATA: ("the router is loading its clients", "the router is restarting"),
        }
        for name, (loading, restarting) in sentences.items():
            child = self.children.get(name)
            if child and child.state != READY:
                if name == TRITON and self._dead_import:
                    return self._dead_import
                sentence = restarting if child.state == RESTARTING else loading
                models = self._unready_models if name == TRITON else ""
                return f"{sentence}: {models}" if models else sentence
        return ""

    @property
    def front_is_ready(self) -> bool:
        """True if nginx serves the public port."""
        front = self.children.get(NGINX)
        return front is not None and front.state == READY

    @property
    def rejecting(self) -> bool:
        """True if only the supervisor answers at the public port."""
        front = self.children.get(NGINX)
        if front.state == WAITING if front else self.children[DATA].state != READY:
            return True
        return self.shutdown is not None and (self.shutdown.forced or not self.shutdown.front_serves)

    def publish(self) -> None:
        """Publish the state if it has changed."""
        state = {
            "ready": self.ready,
            "draining": self.shutdown is not None,
            "reason": self.reason,
            "processes": {
                child.name: {"pid": child.pid, "state": child.state, "restarts": child.restarts}
                for child in self.children.values()
            },
        }
        if state != self._published:
            self._published = state
            self.backend.publish(state)

    # Rules.

    def _attend(self, child: Child, now: float) -> None:
        if child.pid is None:
            self._start_when_due(child, now)
        elif child.state != READY and now >= child.not_before:
            # A client compares itself with its model when it is loaded: until then the workers only import.
            if child.name == DATA and self.children[TRITON].state != READY:
                child.since = now
            else:
                self._probe(child, now)
        if child.name != TRITON or child.pid is None or self.shutdown:
            return
        # While models load, Triton itself reports a process that fails.
        if child.state == READY:
            self._watch_model_processes(child, now)
        else:
            self._watch_imports(child, now)

    def _start_when_due(self, child: Child, now: float) -> None:
        if now < child.not_before:
            return
        # Until the control plane can answer, the supervisor answers at the port itself, with the reason.
        if child.name == NGINX and not self.children[CONTROL].ever_ready:
            return
        child.mark_started(self.backend.spawn(child.name), now)

    def _probe(self, child: Child, now: float) -> None:
        if self.backend.ready(child.name):
            child.state, child.ever_ready = READY, True
            if child.name == TRITON:
                self._unready_models = ""
            self._log_ready(child, now)
            return
        child.not_before = now + PROBE_INTERVAL_S
        # A data plane that cannot load its clients exits. A Triton that cannot load a model goes on running.
        failure = self.backend.failure(child.name) if child.name == TRITON or not child.ever_ready else ""
        if failure and child.ever_ready:
            # The model loaded before, so the cause, such as a full /dev/shm, may pass.
            self.backend.log("error", f"{failure.removesuffix('.')}: Triton is started again")
            self._kill(child)
        elif failure:
            cause = self._model_killed_for_memory(child)
            self._give_up(1, f"{failure.removesuffix('.')}{cause}." if cause else failure)
        elif now > child.since + self.startup_timeout:
            self._check_startup_timeout(child)
        elif child.name == TRITON and now >= max(self._next_unready_query, child.since + SLOW_WATCH_S):
            self._next_unready_query = now + SLOW_WATCH_S
            self._unready_models = self.backend.unready_models()

    def _watch_model_processes(self, triton: Child, now: float) -> None:
        """Take out the Python models whose process died or stalled; the control plane loads them again.

        Triton 2.51 keeps running without the process of a Python model, and fails every request for that
        model.
        """
        if now < self._next_process_poll:
            return
        self._next_process_poll = now + PROCESS_POLL_INTERVAL_S
        for sentence in self.backend.poll_model_processes(triton.pid or 0):
            self.backend.log("error", f"{sentence}; reloading the model")
        # While models load, the killed process is probably a model's: then the start fails with that reason.
        # Here a model is the reason only if it was killed before the search for its processes saw it.
        if self.backend.oom_killed(OOM_ATTRIBUTION_S):
            self.backend.log(
                "error", f"a process of the router, of nginx or of a model died{OOM_KILLED}; starting another"
            )
        if reason := self.backend.replacement_wanted():
            triton.expected_exit = True
            self._replace_triton(triton, now, reason)

    def _watch_imports(self, triton: Child, now: float) -> None:
        """Give up a start that would never end: Triton 2.51 waits for ever for a model.py whose process is
        dead.

        This polls at each tick: such a process may live for only 0.1 s, and cannot be identified later.
        """
        sentence = self.backend.dead_import(triton.pid or 0)
        if sentence != self._dead_import:
            self._dead_import, self._dead_import_since = sentence, now
        if not sentence or now - self._dead_import_since < DEAD_IMPORT_GRACE_S:
            return
        self._dead_import = ""
        if self.backend.exclude_dead_import():
            triton.expected_exit = True
            self._replace_triton(triton, now, f"{sentence}: Triton is started without it")
        elif triton.ever_ready:
            self.backend.log("error", f"{sentence}: Triton is started again")
            self._kill(triton)
        else:
            self._give_up(1, f"{sentence}. Its last lines are above.")

    def _replace_triton(self, triton: Child, now: float, sentence: str) -> None:
        """Kill Triton at once: its outstanding answers would never come."""
        self.backend.log("error", sentence)
        self._kill(triton)
        self._next_process_poll = now + KILL_GRACE_S

    def _log_ready(self, child: Child, now: float) -> None:
        self.backend.log("info", f"{child.name} is ready after {now - child.since:.1f} s")
        if self.ready and child.name in (TRITON, DATA):
            after = "" if self.ever_ready else f" after {now - self.began_at:.1f} s"
            self.ever_ready = True
            self.backend.log("info", f"the box is ready{after}")

    def _check_startup_timeout(self, child: Child) -> None:
        seconds = f"{self.startup_timeout:g} s (set by SAGEMAKER_STARTUP_TIMEOUT)"
        models = f": {self.backend.unready_models()}" if child.name == TRITON else ""
        sentence = f"{child.name} was not ready within {seconds}{models.rstrip(': .')}."
        if child.ever_ready:
            self.backend.log("error", sentence)
            self._kill(child)
        else:
            self._give_up(1, sentence)

    def _handle_death(self, child: Child, status: int) -> None:
        first = not child.ever_ready
        was_expected = child.expected_exit
        child.mark_exited(self.clock())
        if was_expected:
            if child.name == TRITON:
                self._expect_data_exit()
            return
        if first and self._is_permanent_failure(child, status):
            cause = f"{child.name} cannot start ({describe_exit(status)}): its last lines above say why."
            self._give_up(1, self.backend.failure(child.name) or cause)
            return
        self.backend.log("error", self._describe_end(child, status))
        if len(child.deaths) > self.max_restarts:
            self._give_up(
                exit_code(status),
                f"{child.name} ended {len(child.deaths)} times in 5 minutes, "
                f"more than TRIREME_RESTARTS={self.max_restarts} allows: giving up.",
            )
        elif child.name == TRITON:
            self._expect_data_exit()

    def _describe_end(self, child: Child, status: int) -> str:
        """Describe how a process ended, in a sentence."""
        was_oom_killed = status == -SIGKILL and self.backend.oom_killed(0.0)
        cause = OOM_KILLED if was_oom_killed else self._model_killed_for_memory(child)
        load_failure = self.backend.failure(child.name) if status in CANNOT_LOAD else ""
        return load_failure or f"{child.name} ended: {describe_exit(status)}{cause}"

    def _model_killed_for_memory(self, child: Child) -> str:
        """Return the reason if memory ran out: Triton 2.51 crashes when one of two instances dies in its
        warm-up.
        """
        return MODEL_OOM_KILLED if child.name == TRITON and self.backend.oom_killed(0.0) else ""

    def _is_permanent_failure(self, child: Child, status: int) -> bool:
        """True if a restart would fail in the same way: a wrong option, or a client that cannot load."""
        if child.name == DATA:
            return status in CANNOT_LOAD
        return child.name == TRITON and status > 0

    def _expect_data_exit(self) -> None:
        """Workers that serve stay and wait for Triton. Workers that are loading cannot go on without it, so
        their exit is expected.
        """
        data = self.children[DATA]
        if data.pid is not None and data.state != READY and not data.expected_exit:
            data.expected_exit = True
            self._kill(data)

    def _kill(self, child: Child) -> None:
        if child.pid is not None:
            self.backend.kill(child.pid)

    def _give_up(self, code: int, sentence: str) -> None:
        self._failure = sentence.rstrip(".")
        self.backend.log("error", sentence)
        self._stop(code, min(SHORT_DRAIN_S, self.drain_timeout))
        if self.shutdown and not self.ever_ready:  # no request is running
            self.shutdown.forced = True

    def _stop(self, code: int, drain: float) -> None:
        front = self.children.get(NGINX)
        seconds = 0.0
        if front and front.state == READY and self.ready:
            self.backend.disable_keepalive()
            seconds = min(KEEPALIVE_DRAIN_S, drain)
        self.shutdown = Shutdown(code, self._stop_in_order(self.clock(), seconds, drain))

    def _stop_in_order(self, began: float, keepalive_drain: float, drain: float) -> Iterator[None]:
        """Stop one child after the other, and kill one that does not end in time."""
        assert self.shutdown is not None
        while self.clock() < began + keepalive_drain:
            yield
        self.shutdown.front_serves = False
        end = began + drain
        # The seconds that a child gets, and when it is killed at the latest.
        stages = (
            (NGINX, SIGQUIT, drain, end),
            # nginx has ended, so the callers of the remaining requests are gone.
            (DATA, SIGTERM, 3.0 if NGINX in self.children else drain, end + 1.0),
            # The platform kills everything 30 s after its SIGTERM.
            # With 11 models on 2 cores it needs 6 s: it looks once a second whether the next step is due.
            (TRITON, SIGTERM, 15.0, end + 3.5),
            (KEYS, SIGTERM, 1.0, end + 3.5),
            (CONTROL, SIGTERM, 2.0, end + 4.0),
        )
        for name, number, seconds, latest in stages:
            child = self.children.get(name)
            if child is None or child.pid is None:
                continue
            self.backend.signal(child.pid, number)
            until = min(self.clock() + seconds, latest)
            while child.pid is not None:
                yield
                if child.pid is not None and self.clock() >= until:
                    until = math.inf
                    self.backend.log("warning", f"{name} did not stop in time: killed")
                    self._kill(child)

    def _continue_stop(self, shutdown: Shutdown) -> None:
        if shutdown.forced:
            for child in self.children.values():
                self._kill(child)
        else:
            next(shutdown.steps, None)
        if all(child.pid is None for child in self.children.values()):
            for child in self.children.values():
                child.mark_stopped()
            self.exit_code = shutdown.code
