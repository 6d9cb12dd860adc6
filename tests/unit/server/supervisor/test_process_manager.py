"""The rules of the supervisor, played as events: a recording backend, no process and a clock that the test moves."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from typing import Any

import pytest

from sm.server.supervisor.process_manager import (
    CONTROL,
    DATA,
    DEAD_IMPORT_GRACE_S,
    NGINX,
    TRITON,
    ProcessManager,
)

NAMES = (CONTROL, NGINX, TRITON, DATA)


class RecordingBackend:
    """A process backend that records its calls, with a clock that the test moves."""

    def __init__(self) -> None:
        self.now = 100.0
        self.pids = iter(range(1, 1000))
        self.running: dict[str, int] = {}
        self.ready_names: set[str] = set()
        self.failures: dict[str, str] = {}
        self.unready = ""
        self.lost: list[str] = []
        self.oom_kill_pending = False
        self.dead_import_error, self.replacement_reason, self.can_exclude = "", "", False
        self.calls: list[tuple[object, ...]] = []
        self.states: list[Mapping[str, Any]] = []
        self.log_messages: list[str] = []

    def clock(self) -> float:
        return self.now

    def spawn(self, name: str) -> int:
        self.running[name] = next(self.pids)
        self.calls.append(("spawn", name))
        return self.running[name]

    def signal(self, pid: int, number: int) -> None:
        self.calls.append((signal.Signals(number).name, self.name(pid)))

    def kill(self, pid: int) -> None:
        self.calls.append(("kill", self.name(pid)))

    def name(self, pid: int) -> str:
        return next(name for name, other in self.running.items() if other == pid)

    def ready(self, name: str) -> bool:
        return name in self.ready_names

    def failure(self, name: str) -> str:
        return self.failures.get(name, "")

    def unready_models(self) -> str:
        return self.unready

    def poll_model_processes(self, pid: int) -> list[str]:
        assert self.name(pid) == TRITON
        lost, self.lost = self.lost, []
        return lost

    def dead_import(self, pid: int) -> str:
        assert self.name(pid) == TRITON
        return self.dead_import_error

    def exclude_dead_import(self) -> bool:
        return self.can_exclude

    def replacement_wanted(self) -> str:
        reason, self.replacement_reason = self.replacement_reason, ""
        return reason

    def oom_killed(self, min_age: float) -> bool:
        pending, self.oom_kill_pending = self.oom_kill_pending, False
        return pending

    def disable_keepalive(self) -> None:
        self.calls.append(("disable keep-alive",))

    def publish(self, state: Mapping[str, Any]) -> None:
        self.states.append(state)

    def log(self, level: str, message: str) -> None:
        self.log_messages.append(message)


class Scenario:
    """A process manager on a recording backend, and the events that a test plays. Events can be chained."""

    def __init__(self, names: tuple[str, ...] = NAMES, max_restarts: int = 5, drain: float = 25.0) -> None:
        self.backend = RecordingBackend()
        self.manager = ProcessManager(
            self.backend,
            self.backend.clock,
            names,
            max_restarts=max_restarts,
            startup_timeout=60.0,
            drain_timeout=drain,
        )

    def advance(self, seconds: float) -> Scenario:
        self.backend.now += seconds
        self.manager.tick()
        return self

    def become_ready(self, *names: str) -> Scenario:
        self.backend.ready_names |= set(names)
        return self.advance(0.2)

    def exit(self, name: str, status: int) -> Scenario:
        self.backend.ready_names.discard(name)
        self.manager.handle_exit(self.backend.running[name], status)
        return self

    def start_all(self) -> Scenario:
        """Start all children, make them ready, and forget the calls so far."""
        self.advance(0).become_ready(CONTROL).become_ready(NGINX, TRITON).become_ready(DATA)
        self.advance(0.2)
        assert self.manager.ready
        self.backend.calls.clear()
        return self

    @property
    def state(self) -> Mapping[str, Any]:
        return self.backend.states[-1]

    @property
    def shutdown_code(self) -> int | None:
        """The code with which the box is going to exit."""
        return self.manager.shutdown.code if self.manager.shutdown else None


def test_nginx_waits_for_the_control_plane_and_the_workers_wait_for_the_models() -> None:
    scenario = Scenario().advance(0)
    assert scenario.backend.calls == [("spawn", CONTROL), ("spawn", TRITON)]
    assert scenario.manager.rejecting
    scenario.become_ready(CONTROL).advance(5)
    assert scenario.backend.calls[-1] == ("spawn", NGINX)
    assert not scenario.manager.rejecting
    scenario.become_ready(TRITON)
    assert scenario.backend.calls[-1] == ("spawn", DATA)


def test_the_state_says_why_the_box_is_not_ready_yet() -> None:
    scenario = Scenario().advance(0)
    assert (scenario.state["ready"], scenario.state["reason"]) == (False, "Triton is loading the models")
    scenario.become_ready(TRITON)
    assert scenario.state["reason"] == "the router is loading its clients"
    scenario.become_ready(DATA)
    assert scenario.state["ready"] is True
    assert scenario.state["reason"] == ""
    assert scenario.state["processes"][TRITON] == {
        "pid": scenario.backend.running[TRITON],
        "state": "ready",
        "restarts": 0,
    }


def test_a_ready_box_has_nothing_due() -> None:
    assert Scenario().start_all().manager.steady


@pytest.mark.parametrize(
    ("name", "reason"), [(TRITON, "Triton is restarting"), (DATA, "the router is restarting")]
)
def test_an_exit_is_reported_at_once_and_the_child_restarted_after_the_back_off(
    name: str, reason: str
) -> None:
    scenario = Scenario().start_all().exit(name, -9)
    assert (scenario.state["ready"], scenario.state["reason"]) == (False, reason)
    assert scenario.state["processes"][name] == {"pid": None, "state": "restarting", "restarts": 1}
    assert f"{name} ended: signal 9 (SIGKILL)" in scenario.backend.log_messages
    scenario.advance(0.05)
    assert scenario.backend.calls == []
    scenario.advance(0.1)
    assert scenario.backend.calls == [("spawn", name)]
    assert not scenario.state["ready"]
    scenario.become_ready(name)
    assert scenario.state["ready"]


@pytest.mark.parametrize("name", [NGINX, CONTROL])
def test_nginx_and_the_control_plane_are_restarted_too(name: str) -> None:
    scenario = Scenario().start_all().exit(name, 1).advance(0.2)
    assert scenario.backend.calls == [("spawn", name)]


def test_workers_that_load_while_triton_exits_are_restarted_without_counting() -> None:
    scenario = Scenario().advance(0).become_ready(TRITON).exit(TRITON, -9)
    assert scenario.backend.calls[-1] == ("kill", DATA)
    scenario.exit(DATA, -9).advance(0.2)
    assert scenario.backend.calls[-1] == ("spawn", TRITON)
    scenario.become_ready(TRITON).advance(0.1)
    assert scenario.backend.calls[-1] == ("spawn", DATA)
    assert scenario.state["processes"][DATA]["restarts"] == 0


def test_workers_that_exit_together_with_triton_wait_for_it() -> None:
    scenario = Scenario().start_all().exit(TRITON, -9).exit(DATA, 3).advance(5)
    assert ("spawn", DATA) not in scenario.backend.calls
    scenario.become_ready(TRITON).advance(0.1)
    assert scenario.backend.calls[-1] == ("spawn", DATA)


def test_the_back_off_doubles_up_to_five_seconds() -> None:
    scenario, waits = Scenario(max_restarts=100).start_all(), []
    for _ in range(8):
        scenario.exit(NGINX, -9)
        scenario.backend.calls.clear()
        started = scenario.backend.now
        while not scenario.backend.calls:
            scenario.advance(0.05)
        waits.append(round(scenario.backend.now - started, 1))
    assert waits == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0], abs=0.1)


@pytest.mark.parametrize(("status", "code"), [(7, 7), (-9, 137), (0, 1)])
def test_past_the_restart_limit_the_box_exits_with_the_childs_code(status: int, code: int) -> None:
    scenario = Scenario(max_restarts=2).start_all()
    for _ in range(2):
        scenario.exit(NGINX, status).advance(10)
    assert scenario.manager.shutdown is None
    scenario.exit(NGINX, status)
    assert not scenario.state["ready"]
    assert "nginx ended 3 times" in scenario.state["reason"]
    scenario.advance(0.1)
    for name in (DATA, TRITON, CONTROL):
        scenario.exit(name, 0).advance(0.1)
    assert scenario.manager.exit_code == code


def test_exits_of_more_than_five_minutes_ago_do_not_count() -> None:
    scenario = Scenario(max_restarts=1).start_all()
    for _ in range(5):
        scenario.exit(NGINX, 1).advance(301).become_ready(NGINX)
    assert scenario.manager.shutdown is None


def test_a_model_that_cannot_load_stops_the_first_start_with_its_error() -> None:
    scenario = Scenario().advance(0)
    scenario.backend.failures[TRITON] = "the model 'cat' cannot be loaded: no such file."
    scenario.advance(0.2)
    assert scenario.backend.failures[TRITON] in scenario.backend.log_messages
    assert scenario.shutdown_code == 1


def test_an_oom_kill_while_the_models_load_is_reported_with_the_model() -> None:
    scenario = Scenario().advance(0).become_ready(CONTROL)
    scenario.backend.oom_kill_pending = True
    scenario.advance(4)
    assert not any("memory ran out" in message for message in scenario.backend.log_messages)
    scenario.backend.failures[TRITON] = "the model 'cat' cannot be loaded: Stub process is not healthy."
    scenario.advance(0.2)
    (message,) = (message for message in scenario.backend.log_messages if "memory ran out" in message)
    assert message.startswith(
        "the model 'cat' cannot be loaded: Stub process is not healthy: a Python model process "
        "died, killed by the kernel"
    )


def test_a_triton_crash_after_an_oom_kill_is_reported_as_such() -> None:
    scenario = Scenario().advance(0)
    scenario.backend.oom_kill_pending = True
    scenario.exit(TRITON, -11).advance(0.2)
    assert "SIGSEGV): a Python model process died, killed by the kernel" in scenario.backend.log_messages[-1]
    assert scenario.backend.calls[-1] == ("spawn", TRITON)


@pytest.mark.parametrize("status", [3, 4])
def test_a_client_that_cannot_load_stops_the_first_start(status: int) -> None:
    scenario = Scenario().advance(0).become_ready(TRITON).exit(DATA, status)
    assert scenario.shutdown_code == 1


def test_workers_that_crash_on_their_first_start_are_restarted() -> None:
    scenario = Scenario().advance(0).become_ready(TRITON).exit(DATA, -11).advance(0.2)
    assert scenario.backend.calls[-1] == ("spawn", DATA)


def test_a_triton_that_rejects_its_options_stops_the_first_start() -> None:
    scenario = Scenario().advance(0).exit(TRITON, 1)
    assert scenario.manager.shutdown is not None
    assert "triton cannot start (exit code 1): its last lines above say why." in scenario.backend.log_messages


def test_a_clients_own_error_is_the_only_one_logged() -> None:
    scenario = Scenario().advance(0).become_ready(TRITON)
    scenario.backend.log_messages.clear()
    scenario.backend.failures[DATA] = "clients/a/client.py: line 1: no."
    scenario.exit(DATA, 3)
    assert scenario.backend.log_messages == ["clients/a/client.py: line 1: no."]


def test_after_a_failed_start_the_children_are_killed() -> None:
    scenario = Scenario().advance(0).become_ready(CONTROL).become_ready(NGINX, TRITON)
    scenario.backend.calls.clear()
    scenario.exit(DATA, 3).advance(0.05)
    assert scenario.backend.calls == [("kill", CONTROL), ("kill", NGINX), ("kill", TRITON)]
    for name in (CONTROL, NGINX, TRITON):
        scenario.exit(name, -9)
    assert scenario.advance(0.05).manager.exit_code == 1


def test_an_oom_killed_child_is_reported_as_such_and_restarted() -> None:
    scenario = Scenario().start_all()
    scenario.backend.oom_kill_pending = True
    scenario.exit(TRITON, -9).advance(0.2)
    assert (
        "triton ended: signal 9 (SIGKILL), killed by the kernel because memory ran out"
        in scenario.backend.log_messages[-1]
    )
    assert "--memory" in scenario.backend.log_messages[-1]
    assert scenario.backend.calls[-1] == ("spawn", TRITON)


def test_an_oom_kill_of_another_process_is_reported_too() -> None:
    scenario = Scenario().start_all()
    scenario.backend.oom_kill_pending = True
    scenario.advance(0.2).advance(0.2)
    assert [line for line in scenario.backend.log_messages if "memory ran out" in line] == [
        scenario.backend.log_messages[-1]
    ]
    assert scenario.manager.ready


def test_a_start_that_takes_too_long_ends_with_one_sentence() -> None:
    scenario = Scenario().advance(0).advance(61)
    assert scenario.manager.shutdown is not None
    assert any("was not ready within 60 s" in line for line in scenario.backend.log_messages)


def test_a_start_names_the_models_that_are_not_ready_while_it_waits_and_when_it_ends() -> None:
    scenario = Scenario().advance(0)
    scenario.backend.unready = "the model 'lazy' is not ready: asleep"
    scenario.advance(2)
    assert "'lazy' is not ready: asleep" in scenario.state["reason"]
    scenario.become_ready(TRITON)
    assert "lazy" not in scenario.state["reason"]

    scenario = Scenario().advance(0).become_ready(CONTROL, NGINX)
    scenario.backend.unready = "the model 'lazy' is not ready: asleep"
    scenario.advance(61)
    assert scenario.backend.log_messages[-1].endswith("'lazy' is not ready: asleep.")
    assert "'lazy'" in scenario.state["reason"]


def test_a_model_that_a_restarted_triton_cannot_load_costs_another_restart() -> None:
    scenario = Scenario().start_all().exit(TRITON, -9).advance(0.2)
    scenario.backend.failures[TRITON] = "the model 'resnet' cannot be loaded: No space left on device."
    scenario.advance(1)
    assert scenario.backend.calls[-1] == ("kill", TRITON)
    assert scenario.backend.log_messages[-1].endswith("No space left on device: Triton is started again")
    assert scenario.manager.shutdown is None
    scenario.exit(TRITON, -9)
    assert scenario.state["processes"][TRITON]["restarts"] == 2


def test_a_restart_that_takes_too_long_is_killed_and_counted() -> None:
    scenario = Scenario().start_all().exit(TRITON, -9).advance(0.2).advance(61)
    assert scenario.backend.calls[-1] == ("kill", TRITON)
    scenario.exit(TRITON, -9)
    assert scenario.manager.shutdown is None
    assert scenario.state["processes"][TRITON]["restarts"] == 2


def test_a_stop_goes_from_nginx_to_the_control_plane_and_exits_0() -> None:
    scenario = Scenario().start_all()
    scenario.manager.handle_signal(signal.SIGTERM)
    assert (scenario.state["ready"], scenario.state["draining"]) == (False, True)
    assert scenario.backend.calls == [("disable keep-alive",)]
    scenario.advance(0.1)
    assert not scenario.manager.rejecting
    scenario.advance(0.5)
    assert scenario.manager.rejecting
    for name, word in ((NGINX, "SIGQUIT"), (DATA, "SIGTERM"), (TRITON, "SIGTERM"), (CONTROL, "SIGTERM")):
        assert scenario.backend.calls[-1] == (word, name)
        scenario.exit(name, 0).advance(0.1)
    assert scenario.manager.exit_code == 0
    assert {child["state"] for child in scenario.state["processes"].values()} == {"stopped"}


def test_nothing_behind_nginx_is_stopped_before_it_has_drained() -> None:
    scenario = Scenario(drain=25).start_all()
    scenario.manager.handle_signal(signal.SIGTERM)
    scenario.advance(0.6).advance(24)
    assert scenario.backend.calls[-1] == ("SIGQUIT", NGINX)
    scenario.advance(1)
    assert scenario.backend.calls[-1] == ("kill", NGINX)


def test_a_stop_that_no_child_obeys_ends_within_the_platforms_30_s() -> None:
    scenario = Scenario(drain=25).start_all()
    scenario.manager.handle_signal(signal.SIGTERM)
    stop_time = scenario.backend.now
    while scenario.manager.exit_code is None:
        scenario.advance(0.1)
        if scenario.backend.calls[-1][0] == "kill":
            name = str(scenario.backend.calls[-1][1])
            if scenario.manager.children[name].pid is not None:
                scenario.exit(name, -9)
    assert scenario.backend.now - stop_time < 30
    assert scenario.manager.exit_code == 0


def test_a_second_interrupt_kills_at_once() -> None:
    scenario = Scenario().start_all()
    scenario.manager.handle_signal(signal.SIGINT)
    scenario.manager.handle_signal(signal.SIGINT)
    scenario.advance(0)
    assert {name for word, name in scenario.backend.calls[1:] if word == "kill"} == set(NAMES)
    for name in NAMES:
        scenario.exit(name, -9)
    assert scenario.advance(0).manager.exit_code == 130


def test_a_second_sigterm_changes_nothing() -> None:
    scenario = Scenario().start_all()
    scenario.manager.handle_signal(signal.SIGTERM)
    scenario.manager.handle_signal(signal.SIGTERM)
    assert scenario.advance(0).backend.calls == [("disable keep-alive",)]


def test_a_stop_while_the_models_load_does_not_wait_for_them() -> None:
    scenario = Scenario().advance(0).become_ready(CONTROL)
    scenario.manager.handle_signal(signal.SIGTERM)
    for name in (NGINX, TRITON, CONTROL):
        scenario.advance(0)
        scenario.exit(name, 0)
    assert scenario.advance(0).manager.exit_code == 0
    assert ("spawn", DATA) not in scenario.backend.calls


def test_a_model_that_lost_its_process_costs_no_restart() -> None:
    scenario = Scenario(max_restarts=0).start_all()
    scenario.backend.lost = ["a Python model process of 'echo' died"]
    scenario.advance(0.2)
    assert scenario.backend.log_messages[-1] == "a Python model process of 'echo' died; reloading the model"
    assert scenario.backend.calls == []
    assert scenario.manager.ready


def test_a_standstill_is_no_fault_of_any_process() -> None:
    scenario = Scenario(max_restarts=0).start_all()
    scenario.manager.handle_standstill(5.0)
    scenario.advance(1.0)
    assert scenario.backend.calls == []
    assert scenario.manager.ready
    assert scenario.backend.log_messages[-1] == "the box stood still for 5.0 s"


def test_a_client_that_cannot_load_ends_the_start_at_the_second_try_too() -> None:
    scenario = Scenario().advance(0).become_ready(CONTROL).become_ready(NGINX, TRITON)
    scenario.exit(DATA, 1).advance(1)
    assert scenario.manager.shutdown is None
    scenario.exit(DATA, 3)
    assert scenario.shutdown_code == 1


def test_nothing_is_restarted_during_a_stop() -> None:
    scenario = Scenario().start_all()
    scenario.manager.handle_signal(signal.SIGTERM)
    scenario.exit(TRITON, -9).advance(1)
    assert ("spawn", TRITON) not in scenario.backend.calls


def test_without_nginx_the_supervisor_rejects_requests_until_the_workers_are_ready() -> None:
    scenario = Scenario((CONTROL, TRITON, DATA)).advance(0)
    assert scenario.manager.rejecting
    scenario.become_ready(CONTROL, TRITON).become_ready(DATA)
    assert not scenario.manager.rejecting
    scenario.exit(DATA, 1)
    assert scenario.manager.rejecting


def test_without_nginx_the_workers_get_the_whole_drain_time() -> None:
    scenario = Scenario((CONTROL, TRITON, DATA), drain=25).advance(0)
    scenario.become_ready(CONTROL, TRITON).become_ready(DATA).advance(0.2)
    scenario.manager.handle_signal(signal.SIGTERM)
    scenario.advance(0).advance(24)
    assert scenario.backend.calls[-1] == ("SIGTERM", DATA)
    scenario.advance(1.1)
    assert scenario.backend.calls[-1] == ("kill", DATA)


DEAD_IMPORT = "the model 'm' cannot be loaded: the process of its model.py ended with exit code 3"


def wait_for_dead_import(scenario: Scenario) -> Scenario:
    """Make Triton wait for a stub process that is dead."""
    scenario.backend.dead_import_error = DEAD_IMPORT
    return scenario.advance(0)


def test_a_start_that_waits_for_a_dead_stub_says_why_and_ends() -> None:
    scenario = wait_for_dead_import(Scenario().advance(0).become_ready(CONTROL, NGINX))
    assert scenario.state["reason"] == DEAD_IMPORT
    assert scenario.manager.shutdown is None
    scenario.advance(DEAD_IMPORT_GRACE_S)
    assert scenario.backend.log_messages[-1] == f"{DEAD_IMPORT}. Its last lines are above."
    assert scenario.shutdown_code == 1


def test_a_dead_stub_that_triton_notices_in_time_does_not_end_the_start() -> None:
    scenario = wait_for_dead_import(Scenario().advance(0).become_ready(CONTROL, NGINX)).advance(
        DEAD_IMPORT_GRACE_S / 2
    )
    scenario.backend.dead_import_error = ""
    scenario.advance(0.1).advance(DEAD_IMPORT_GRACE_S)
    assert scenario.manager.shutdown is None
    assert scenario.state["reason"] == "Triton is loading the models"


def test_a_model_whose_stub_dies_at_a_restart_is_excluded_without_counting() -> None:
    scenario = Scenario(max_restarts=0).start_all()
    scenario.backend.can_exclude = True
    scenario.manager.children[TRITON].expected_exit = True
    wait_for_dead_import(scenario.exit(TRITON, -9).advance(1)).advance(DEAD_IMPORT_GRACE_S)
    assert scenario.backend.calls[-1] == ("kill", TRITON)
    assert scenario.backend.log_messages[-1] == f"{DEAD_IMPORT}: Triton is started without it"
    scenario.backend.dead_import_error = ""
    scenario.exit(TRITON, -9).advance(1).become_ready(TRITON).advance(1)
    assert scenario.manager.ready


def test_a_replacement_wanted_by_the_control_plane_does_not_count() -> None:
    scenario = Scenario(max_restarts=0).start_all()
    scenario.backend.replacement_reason = "16 loads do not end in Triton: it is started again"
    scenario.advance(1)
    assert scenario.backend.calls == [("kill", TRITON)]
    assert scenario.backend.log_messages[-1] == "16 loads do not end in Triton: it is started again"
    scenario.exit(TRITON, -9).advance(1).become_ready(TRITON).advance(1)
    assert scenario.manager.ready
