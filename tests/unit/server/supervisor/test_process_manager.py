"""The supervisor's rules, as tables of events: no process, no clock but the table's."""

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
from sm.server.supervisor.stub_monitor import StubCondition

NAMES = (CONTROL, NGINX, TRITON, DATA)


class Recorder:
    """Hands that write down what they are told, and a clock that stands still."""

    def __init__(self) -> None:
        self.now = 100.0
        self.pids = iter(range(1, 1000))
        self.running: dict[str, int] = {}
        self.answering: set[str] = set()
        self.failures: dict[str, str] = {}
        self.condition = StubCondition.HEALTHY
        self.stubs = True
        self.in_doubt = False
        self.starving = False
        self.dead, self.wanted, self.may_leave_out = "", "", False
        self.done: list[tuple[object, ...]] = []
        self.states: list[Mapping[str, Any]] = []
        self.said: list[str] = []

    def clock(self) -> float:
        return self.now

    def spawn(self, name: str) -> int:
        self.in_doubt = self.in_doubt and name != TRITON
        self.running[name] = next(self.pids)
        self.done.append(("spawn", name))
        return self.running[name]

    def signal(self, pid: int, number: int) -> None:
        self.done.append((signal.Signals(number).name, self.name(pid)))

    def kill(self, pid: int) -> None:
        self.done.append(("kill", self.name(pid)))

    def name(self, pid: int) -> str:
        return next(name for name, other in self.running.items() if other == pid)

    def ready(self, name: str) -> bool:
        return name in self.answering

    def failure(self, name: str) -> str:
        return self.failures.get(name, "")

    def stub_condition(self, pid: int) -> StubCondition:
        assert self.name(pid) == TRITON
        return self.condition

    def dead_import(self, pid: int) -> str:
        assert self.name(pid) == TRITON
        return self.dead

    def exclude_dead_import(self) -> bool:
        return self.may_leave_out

    def replacement_wanted(self) -> str:
        wanted, self.wanted = self.wanted, ""
        return wanted

    def has_stubs(self) -> bool:
        return self.stubs

    def answers_in_doubt(self) -> bool:
        return self.in_doubt

    def put_answers_in_doubt(self) -> None:
        self.in_doubt = True
        self.done.append(("doubt",))

    def oom_killed(self, min_age: float) -> bool:
        starving, self.starving = self.starving, False
        return starving

    def disable_keepalive(self) -> None:
        self.done.append(("linger",))

    def publish(self, state: Mapping[str, Any]) -> None:
        self.states.append(state)

    def log(self, level: str, message: str) -> None:
        self.said.append(message)


class Ship:
    """A process manager, its recorder, and the events of a table."""

    def __init__(self, names: tuple[str, ...] = NAMES, budget: int = 5, drain: float = 25.0) -> None:
        self.backend = Recorder()
        self.manager = ProcessManager(
            self.backend,
            self.backend.clock,
            names,
            max_restarts=budget,
            startup_timeout=60.0,
            drain_timeout=drain,
        )

    def after(self, seconds: float) -> Ship:
        self.backend.now += seconds
        self.manager.tick()
        return self

    def answers(self, *names: str) -> Ship:
        self.backend.answering |= set(names)
        return self.after(0.2)

    def dies(self, name: str, status: int) -> Ship:
        self.backend.answering.discard(name)
        self.manager.handle_exit(self.backend.running[name], status)
        return self

    def up(self) -> Ship:
        """All of it ready, and the record clean."""
        self.after(0).answers(CONTROL).answers(NGINX, TRITON).answers(DATA)
        self.after(0.2)
        assert self.manager.ready
        self.backend.done.clear()
        return self

    @property
    def state(self) -> Mapping[str, Any]:
        return self.backend.states[-1]


def test_the_front_waits_for_the_control_plane_and_the_workers_for_the_models() -> None:
    ship = Ship().after(0)
    assert ship.backend.done == [("spawn", CONTROL), ("spawn", TRITON)]
    assert ship.manager.rejecting
    ship.answers(CONTROL).after(5)
    assert ship.backend.done[-1] == ("spawn", NGINX)
    assert not ship.manager.rejecting
    ship.answers(TRITON)
    assert ship.backend.done[-1] == ("spawn", DATA)


def test_the_state_tells_why_the_box_is_not_ready_yet() -> None:
    ship = Ship().after(0)
    assert (ship.state["ready"], ship.state["reason"]) == (False, "Triton is loading the models")
    ship.answers(TRITON)
    assert ship.state["reason"] == "the router is loading its clients"
    ship.answers(DATA)
    assert ship.state["ready"] is True
    assert ship.state["reason"] == ""
    assert ship.state["processes"][TRITON] == {
        "pid": ship.backend.running[TRITON],
        "state": "ready",
        "restarts": 0,
    }


def test_the_state_is_published_only_when_it_changes() -> None:
    ship = Ship().up()
    published = len(ship.backend.states)
    ship.after(1).after(1)
    assert len(ship.backend.states) == published


def test_a_ready_box_has_nothing_due() -> None:
    assert Ship().up().manager.steady


@pytest.mark.parametrize(
    ("name", "reason"), [(TRITON, "Triton is restarting"), (DATA, "the router is restarting")]
)
def test_a_death_is_told_at_once_and_healed_after_the_back_off(name: str, reason: str) -> None:
    ship = Ship().up().dies(name, -9)
    assert (ship.state["ready"], ship.state["reason"]) == (False, reason)
    assert ship.state["processes"][name] == {"pid": None, "state": "restarting", "restarts": 1}
    assert f"{name} ended: signal 9 (SIGKILL)" in ship.backend.said
    ship.after(0.05)
    assert ship.backend.done == []
    ship.after(0.1)
    assert ship.backend.done == [("spawn", name)]
    assert not ship.state["ready"]
    ship.answers(name)
    assert ship.state["ready"]


@pytest.mark.parametrize("name", [NGINX, CONTROL])
def test_the_front_and_the_control_plane_come_back_too(name: str) -> None:
    ship = Ship().up().dies(name, 1).after(0.2)
    assert ship.backend.done == [("spawn", name)]


def test_workers_that_serve_stay_while_triton_restarts() -> None:
    ship = Ship().up().dies(TRITON, -11).after(0.2)
    assert ship.backend.done == [("spawn", TRITON)]


def test_workers_that_are_loading_when_triton_dies_are_started_again_and_not_blamed() -> None:
    ship = Ship().after(0).answers(TRITON).dies(TRITON, -9)
    assert ship.backend.done[-1] == ("kill", DATA)
    ship.dies(DATA, -9).after(0.2)
    assert ship.backend.done[-1] == ("spawn", TRITON)
    ship.answers(TRITON).after(0.1)
    assert ship.backend.done[-1] == ("spawn", DATA)
    assert ship.state["processes"][DATA]["restarts"] == 0


def test_workers_that_die_with_triton_wait_for_it() -> None:
    ship = Ship().up().dies(TRITON, -9).dies(DATA, 3).after(5)
    assert ("spawn", DATA) not in ship.backend.done
    ship.answers(TRITON).after(0.1)
    assert ship.backend.done[-1] == ("spawn", DATA)


def test_the_back_off_doubles_up_to_five_seconds() -> None:
    ship, waits = Ship(budget=100).up(), []
    for _ in range(8):
        ship.dies(NGINX, -9)
        ship.backend.done.clear()
        started = ship.backend.now
        while not ship.backend.done:
            ship.after(0.05)
        waits.append(round(ship.backend.now - started, 1))
    assert waits == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0], abs=0.1)


@pytest.mark.parametrize(("status", "code"), [(7, 7), (-9, 137), (0, 1)])
def test_past_the_budget_the_box_ends_with_the_childs_code(status: int, code: int) -> None:
    ship = Ship(budget=2).up()
    for _ in range(2):
        ship.dies(NGINX, status).after(10)
    assert ship.manager.shutdown is None
    ship.dies(NGINX, status)
    assert not ship.state["ready"]
    assert "nginx ended 3 times" in ship.state["reason"]
    ship.after(0.1)
    for name in (DATA, TRITON, CONTROL):
        ship.dies(name, 0).after(0.1)
    assert ship.manager.exit_code == code


def test_deaths_of_more_than_five_minutes_ago_are_forgiven() -> None:
    ship = Ship(budget=1).up()
    for _ in range(5):
        ship.dies(NGINX, 1).after(301).answers(NGINX)
    assert ship.manager.shutdown is None


def test_a_model_that_cannot_load_stops_the_first_start_with_its_sentence() -> None:
    ship = Ship().after(0)
    ship.backend.failures[TRITON] = "the model 'cat' cannot be loaded: no such file."
    ship.after(0.2)
    assert ship.backend.failures[TRITON] in ship.backend.said
    assert ship.manager.shutdown is not None
    assert ship.manager.shutdown.code == 1


def test_memory_that_runs_out_while_the_models_load_is_said_with_the_model() -> None:
    ship = Ship().after(0).answers(CONTROL)
    ship.backend.starving = True
    ship.after(4)
    assert not any("memory ran out" in sentence for sentence in ship.backend.said)
    ship.backend.failures[TRITON] = "the model 'cat' cannot be loaded: Stub process is not healthy."
    ship.after(0.2)
    (said,) = (sentence for sentence in ship.backend.said if "memory ran out" in sentence)
    assert said.startswith(
        "the model 'cat' cannot be loaded: Stub process is not healthy: the process of a python model has "
        "died, killed by the kernel"
    )


def test_a_triton_that_crashes_over_a_starved_process_is_said_to() -> None:
    ship = Ship().after(0)
    ship.backend.starving = True
    ship.dies(TRITON, -11).after(0.2)
    assert "SIGSEGV): the process of a python model has died, killed by the kernel" in ship.backend.said[-1]
    assert ship.backend.done[-1] == ("spawn", TRITON)


@pytest.mark.parametrize("status", [3, 4])
def test_a_client_that_cannot_load_stops_the_first_start(status: int) -> None:
    ship = Ship().after(0).answers(TRITON).dies(DATA, status)
    assert ship.manager.shutdown is not None
    assert ship.manager.shutdown.code == 1


def test_workers_that_crash_on_their_first_start_are_tried_again() -> None:
    ship = Ship().after(0).answers(TRITON).dies(DATA, -11).after(0.2)
    assert ship.backend.done[-1] == ("spawn", DATA)


def test_a_triton_that_refuses_its_options_stops_the_first_start() -> None:
    ship = Ship().after(0).dies(TRITON, 1)
    assert ship.manager.shutdown is not None
    assert "triton cannot start (exit code 1): its last lines above say why." in ship.backend.said


def test_a_client_s_own_sentence_is_the_only_one_said() -> None:
    ship = Ship().after(0).answers(TRITON)
    ship.backend.said.clear()
    ship.backend.failures[DATA] = "clients/a/client.py: line 1: no."
    ship.dies(DATA, 3)
    assert ship.backend.said == ["clients/a/client.py: line 1: no."]


def test_what_never_was_ready_is_not_asked_to_stop_but_killed() -> None:
    ship = Ship().after(0).answers(CONTROL).answers(NGINX, TRITON)
    ship.backend.done.clear()
    ship.dies(DATA, 3).after(0.05)
    assert ship.backend.done == [("kill", CONTROL), ("kill", NGINX), ("kill", TRITON)]
    for name in (CONTROL, NGINX, TRITON):
        ship.dies(name, -9)
    assert ship.after(0.05).manager.exit_code == 1


def test_a_child_that_the_kernel_kills_for_memory_is_said_to_be_and_started_again() -> None:
    ship = Ship().up()
    ship.backend.starving = True
    ship.dies(TRITON, -9).after(0.2)
    assert (
        "triton ended: signal 9 (SIGKILL), killed by the kernel because memory ran out"
        in ship.backend.said[-1]
    )
    assert "--memory" in ship.backend.said[-1]
    assert ship.backend.done[-1] == ("spawn", TRITON)


def test_a_python_model_s_process_that_the_kernel_kills_is_said_to_be() -> None:
    ship = Ship().up()
    ship.backend.condition = StubCondition.DEAD
    ship.after(0.2)
    ship.backend.starving = True
    ship.after(0.5)
    assert "python model has died, killed by the kernel because memory ran out" in ship.backend.said[-1]


def test_somebody_else_s_process_that_the_kernel_kills_is_told_of_too() -> None:
    ship = Ship().up()
    ship.backend.starving = True
    ship.after(0.2).after(0.2)
    assert [line for line in ship.backend.said if "memory ran out" in line] == [ship.backend.said[-1]]
    assert ship.manager.ready


def test_a_start_that_takes_too_long_is_given_up_in_one_sentence() -> None:
    ship = Ship().after(0).after(61)
    assert ship.manager.shutdown is not None
    assert any("was not ready within 60 s" in line for line in ship.backend.said)


def test_a_model_that_a_restarted_triton_cannot_load_is_tried_again_and_counts() -> None:
    ship = Ship().up().dies(TRITON, -9).after(0.2)
    ship.backend.failures[TRITON] = "the model 'resnet' cannot be loaded: No space left on device."
    ship.after(1)
    assert ship.backend.done[-1] == ("kill", TRITON)
    assert ship.backend.said[-1].endswith("No space left on device: Triton is started again")
    assert ship.manager.shutdown is None
    ship.dies(TRITON, -9)
    assert ship.state["processes"][TRITON]["restarts"] == 2


def test_a_restart_that_takes_too_long_is_killed_and_counts() -> None:
    ship = Ship().up().dies(TRITON, -9).after(0.2).after(61)
    assert ship.backend.done[-1] == ("kill", TRITON)
    ship.dies(TRITON, -9)
    assert ship.manager.shutdown is None
    assert ship.state["processes"][TRITON]["restarts"] == 2


def test_a_stop_goes_from_the_front_to_the_back_and_exits_0() -> None:
    ship = Ship().up()
    ship.manager.handle_signal(signal.SIGTERM)
    assert (ship.state["ready"], ship.state["draining"]) == (False, True)
    assert ship.backend.done == [("linger",)]
    ship.after(0.1)
    assert not ship.manager.rejecting
    ship.after(0.5)
    assert ship.manager.rejecting
    for name, word in ((NGINX, "SIGQUIT"), (DATA, "SIGTERM"), (TRITON, "SIGTERM"), (CONTROL, "SIGTERM")):
        assert ship.backend.done[-1] == (word, name)
        ship.dies(name, 0).after(0.1)
    assert ship.manager.exit_code == 0
    assert {child["state"] for child in ship.state["processes"].values()} == {"stopped"}


def test_nothing_behind_the_front_is_stopped_while_requests_run_and_the_drain_is_not_over() -> None:
    ship = Ship(drain=25).up()
    ship.manager.handle_signal(signal.SIGTERM)
    ship.after(0.6).after(24)
    assert ship.backend.done[-1] == ("SIGQUIT", NGINX)
    ship.after(1)
    assert ship.backend.done[-1] == ("kill", NGINX)


def test_a_stop_that_nobody_heeds_is_over_before_the_platforms_thirty_seconds() -> None:
    ship = Ship(drain=25).up()
    ship.manager.handle_signal(signal.SIGTERM)
    began = ship.backend.now
    while ship.manager.exit_code is None:
        ship.after(0.1)
        if ship.backend.done[-1][0] == "kill":
            name = str(ship.backend.done[-1][1])
            if ship.manager.children[name].pid is not None:
                ship.dies(name, -9)
    assert ship.backend.now - began < 30
    assert ship.manager.exit_code == 0


def test_a_second_interrupt_kills_at_once() -> None:
    ship = Ship().up()
    ship.manager.handle_signal(signal.SIGINT)
    ship.manager.handle_signal(signal.SIGINT)
    ship.after(0)
    assert {name for word, name in ship.backend.done[1:] if word == "kill"} == set(NAMES)
    for name in NAMES:
        ship.dies(name, -9)
    assert ship.after(0).manager.exit_code == 130


def test_a_second_sigterm_changes_nothing() -> None:
    ship = Ship().up()
    ship.manager.handle_signal(signal.SIGTERM)
    ship.manager.handle_signal(signal.SIGTERM)
    assert ship.after(0).backend.done == [("linger",)]


def test_a_stop_while_the_models_load_does_not_wait_for_them() -> None:
    ship = Ship().after(0).answers(CONTROL)
    ship.manager.handle_signal(signal.SIGTERM)
    for name in (NGINX, TRITON, CONTROL):
        ship.after(0)
        ship.dies(name, 0)
    assert ship.after(0).manager.exit_code == 0
    assert ("spawn", DATA) not in ship.backend.done


def test_a_triton_that_lives_on_without_a_models_process_is_started_again() -> None:
    ship = Ship().up()
    ship.backend.condition = StubCondition.DEAD
    ship.after(0.2)
    assert ("kill", TRITON) not in ship.backend.done
    ship.after(0.5)
    assert ship.backend.done == [("doubt",), ("kill", TRITON)]
    ship.backend.condition = StubCondition.HEALTHY
    ship.dies(TRITON, -9).after(0.2)
    assert ship.backend.done[-1] == ("spawn", TRITON)
    assert ship.state["reason"] == "Triton is restarting"


def test_a_models_process_that_stalls_costs_its_triton_before_triton_notices() -> None:
    ship = Ship().up()
    ship.backend.condition = StubCondition.STOPPED
    ship.after(0.2)
    assert ship.backend.done == []
    ship.after(0.2)
    # Triton gives up on the process after 0.7 s at the earliest.
    assert ship.backend.done == [("doubt",), ("kill", TRITON)]
    ship.after(0.2)
    assert ship.backend.done.count(("kill", TRITON)) == 1
    ship.dies(TRITON, -9).after(0.2)
    assert ship.backend.done[-1] == ("spawn", TRITON)
    assert ship.state["processes"][TRITON]["restarts"] == 1


def test_a_process_that_is_stopped_for_a_moment_is_no_matter() -> None:
    ship = Ship().up()
    for condition in (StubCondition.STOPPED, StubCondition.HEALTHY, StubCondition.STOPPED):
        ship.backend.condition = condition
        ship.after(0.2)
    assert ship.backend.done == []


def test_a_triton_whose_answers_a_worker_doubts_is_started_again() -> None:
    ship = Ship().up()
    ship.backend.in_doubt = True
    ship.after(0.2)
    assert ("kill", TRITON) in ship.backend.done
    ship.dies(TRITON, -9).after(0.2).answers(TRITON)
    ship.after(2)
    assert ship.manager.ready


def test_a_box_that_stood_still_starts_triton_again_at_no_cost() -> None:
    ship = Ship(budget=0).up()
    ship.manager.handle_standstill(5.0)
    assert ship.backend.done == [("doubt",), ("kill", TRITON)]
    assert "the box stood still for 5.0 s" in ship.backend.said[-1]
    ship.dies(TRITON, -9).after(0.2)
    assert ship.backend.done[-1] == ("spawn", TRITON)
    assert ship.manager.shutdown is None
    assert ship.state["processes"][TRITON]["restarts"] == 0


def test_a_standstill_while_the_workers_load_starts_them_again_too() -> None:
    ship = Ship().after(0).answers(CONTROL).answers(NGINX, TRITON)
    ship.manager.handle_standstill(5.0)
    ship.dies(TRITON, -9)
    assert ("kill", DATA) in ship.backend.done


def test_a_standstill_does_not_matter_to_models_without_processes_of_their_own() -> None:
    ship = Ship().up()
    ship.backend.stubs = False
    ship.manager.handle_standstill(5.0)
    assert ship.backend.done == []


def test_a_standstill_before_the_first_models_are_there_harms_nobody() -> None:
    ship = Ship().after(0)
    ship.backend.done.clear()
    ship.manager.handle_standstill(5.0)
    assert ship.backend.done == []


def test_a_standstill_during_a_stop_only_keeps_answers_back() -> None:
    ship = Ship().up()
    ship.manager.handle_signal(signal.SIGTERM)
    ship.backend.done.clear()
    ship.manager.handle_standstill(5.0)
    assert ship.backend.done == [("doubt",)]


def test_a_client_that_cannot_load_is_hopeless_also_at_the_second_try() -> None:
    ship = Ship().after(0).answers(CONTROL).answers(NGINX, TRITON)
    ship.dies(DATA, 1).after(1)
    assert ship.manager.shutdown is None
    ship.dies(DATA, 3)
    assert ship.manager.shutdown is not None
    assert ship.manager.shutdown.code == 1


def test_a_process_that_triton_ends_itself_is_no_matter() -> None:
    ship = Ship().up()
    for condition in (StubCondition.DEAD, StubCondition.HEALTHY, StubCondition.DEAD):
        ship.backend.condition = condition
        ship.after(0.5)
    assert ship.backend.done == []


def test_nothing_is_restarted_during_a_stop() -> None:
    ship = Ship().up()
    ship.manager.handle_signal(signal.SIGTERM)
    ship.dies(TRITON, -9).after(1)
    assert ("spawn", TRITON) not in ship.backend.done


def test_without_nginx_the_supervisor_answers_until_the_workers_do() -> None:
    ship = Ship((CONTROL, TRITON, DATA)).after(0)
    assert ship.manager.rejecting
    ship.answers(CONTROL, TRITON).answers(DATA)
    assert not ship.manager.rejecting
    ship.dies(DATA, 1)
    assert ship.manager.rejecting


def test_without_nginx_the_workers_get_the_whole_drain() -> None:
    ship = Ship((CONTROL, TRITON, DATA), drain=25).after(0)
    ship.answers(CONTROL, TRITON).answers(DATA).after(0.2)
    ship.manager.handle_signal(signal.SIGTERM)
    ship.after(0).after(24)
    assert ship.backend.done[-1] == ("SIGTERM", DATA)
    ship.after(1.1)
    assert ship.backend.done[-1] == ("kill", DATA)


def test_an_orphan_that_ends_is_nobodys_business() -> None:
    ship = Ship().up()
    ship.manager.handle_exit(99999, -9)
    assert ship.manager.ready


DEAD = "the model 'm' cannot be loaded: the process of its model.py ended with exit code 3"


def dead_import(ship: Ship) -> Ship:
    """Triton waits for a process that is dead."""
    ship.backend.dead = DEAD
    return ship.after(0)


def test_a_start_that_waits_for_a_dead_process_says_why_and_ends() -> None:
    ship = dead_import(Ship().after(0).answers(CONTROL, NGINX))
    assert ship.state["reason"] == DEAD
    assert ship.manager.shutdown is None
    ship.after(DEAD_IMPORT_GRACE_S)
    assert ship.backend.said[-1] == f"{DEAD}. Its last lines are above."
    assert ship.manager.shutdown is not None
    assert ship.manager.shutdown.code == 1


def test_a_dead_process_that_triton_asks_for_in_time_ends_nothing() -> None:
    ship = dead_import(Ship().after(0).answers(CONTROL, NGINX)).after(DEAD_IMPORT_GRACE_S / 2)
    ship.backend.dead = ""
    ship.after(0.1).after(DEAD_IMPORT_GRACE_S)
    assert ship.manager.shutdown is None
    assert ship.state["reason"] == "Triton is loading the models"


def test_a_model_that_ends_when_triton_is_started_again_is_left_out_at_no_cost() -> None:
    ship = Ship(budget=0).up()
    ship.backend.may_leave_out = True
    ship.manager.children[TRITON].expected_exit = True
    dead_import(ship.dies(TRITON, -9).after(1)).after(DEAD_IMPORT_GRACE_S)
    assert ship.backend.done[-1] == ("kill", TRITON)
    assert ship.backend.said[-1] == f"{DEAD}: Triton is started without it"
    ship.backend.dead = ""
    ship.dies(TRITON, -9).after(1).answers(TRITON).after(1)
    assert ship.manager.ready


def test_a_triton_that_the_control_plane_wants_replaced_is_at_no_cost() -> None:
    ship = Ship(budget=0).up()
    ship.backend.wanted = "16 loads do not end in Triton: it is started again"
    ship.after(1)
    assert ship.backend.done == [("doubt",), ("kill", TRITON)]
    assert ship.backend.said[-1] == "16 loads do not end in Triton: it is started again"
    ship.dies(TRITON, -9).after(1).answers(TRITON).after(1)
    assert ship.manager.ready
