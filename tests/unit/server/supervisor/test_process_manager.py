"""The rules of the supervisor, played as events: no process, and a clock that the test moves."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count
from signal import SIGINT, SIGTERM, Signals
from typing import Any

import pytest

from sm.server.supervisor.process_manager import (
    CONTROL,
    DATA,
    DEAD_IMPORT_GRACE_S,
    NGINX,
    TRITON,
    OomKills,
    ProcessManager,
)

NAMES = (CONTROL, NGINX, TRITON, DATA)


class PlayedBox:
    """A process manager on a backend that records its calls, and the events of a test, which can be chained."""

    def __init__(self, names: tuple[str, ...] = NAMES, max_restarts: int = 5) -> None:
        self.now, self.pids = 100.0, count(1)
        self.running: dict[str, int] = {}
        self.ready_names: set[str] = set()
        self.failures: dict[str, str] = {}
        self.lost: list[str] = []
        self.unready = self.dead = self.replacement = ""
        self.has_oom_kill = self.can_exclude = False
        self.calls: list[tuple[object, ...]] = []
        self.states: list[Mapping[str, Any]] = []
        self.logged: list[str] = []
        limits: Any = {"max_restarts": max_restarts, "startup_timeout": 60.0, "drain_timeout": 25.0}
        self.manager = ProcessManager(self, lambda: self.now, names, **limits)

    # What the manager calls.

    def spawn(self, name: str) -> int:
        self.running[name] = next(self.pids)
        self.calls.append(("spawn", name))
        return self.running[name]

    def signal(self, pid: int, number: int) -> None:
        self.calls.append((Signals(number).name, self.name(pid)))

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
        return self.dead

    def exclude_dead_import(self) -> bool:
        return self.can_exclude

    def replacement_wanted(self) -> str:
        reason, self.replacement = self.replacement, ""
        return reason

    def oom_killed(self, min_age: float) -> bool:
        pending, self.has_oom_kill = self.has_oom_kill, False
        return pending

    def disable_keepalive(self) -> None:
        self.calls.append(("disable keep-alive",))

    def publish(self, state: Mapping[str, Any]) -> None:
        self.states.append(state)

    def log(self, level: str, message: str) -> None:
        self.logged.append(message)

    # What happens.

    def advance(self, seconds: float = 0.0) -> PlayedBox:
        self.now += seconds
        self.manager.tick()
        return self

    def become_ready(self, *names: str) -> PlayedBox:
        self.ready_names |= set(names)
        return self.advance(0.2)

    def exit(self, name: str, status: int) -> PlayedBox:
        self.ready_names.discard(name)
        self.manager.handle_exit(self.running[name], status)
        return self

    def interrupt(self, number: int = SIGTERM) -> PlayedBox:
        self.manager.handle_signal(number)
        return self

    def start_all(self) -> PlayedBox:
        """Start all children, make them ready, and forget the calls so far."""
        self.advance().become_ready(CONTROL).become_ready(NGINX, TRITON).become_ready(DATA).advance(0.2)
        assert self.manager.ready
        self.calls.clear()
        return self

    # What came of it.

    @property
    def state(self) -> Mapping[str, Any]:
        return self.states[-1]

    @property
    def reason(self) -> str:
        return str(self.state["reason"])

    def restarts(self, name: str) -> int:
        return int(self.state["processes"][name]["restarts"])

    @property
    def stop_code(self) -> int | None:
        """The code with which the box is going to exit, if it stops."""
        return self.manager.shutdown.code if self.manager.shutdown else None


def test_nginx_waits_for_the_control_plane_and_the_workers_for_the_models_while_they_import() -> None:
    box = PlayedBox().advance()
    assert box.calls == [("spawn", CONTROL), ("spawn", TRITON), ("spawn", DATA)]
    assert box.manager.rejecting
    box.become_ready(CONTROL).advance(5)
    assert box.calls[-1] == ("spawn", NGINX)
    assert not box.manager.rejecting and not box.manager.front_is_ready
    assert box.become_ready(NGINX).manager.front_is_ready
    assert box.become_ready(DATA).state["processes"][DATA]["state"] == "starting"
    assert box.become_ready(TRITON).become_ready(DATA).manager.ready


def test_the_time_of_the_workers_begins_when_the_models_are_loaded() -> None:
    box = PlayedBox().advance().become_ready(CONTROL).become_ready(NGINX).advance(55)
    box.become_ready(TRITON).advance(55)
    assert box.stop_code is None
    box.advance(10)
    assert box.stop_code == 1


def test_the_state_says_why_the_box_is_not_ready_yet() -> None:
    box = PlayedBox().advance()
    assert not box.state["ready"] and "Triton" in box.reason
    box.become_ready(TRITON)
    assert not box.state["ready"] and "router" in box.reason
    box.become_ready(DATA)
    assert (box.state["ready"], box.reason) == (True, "")
    assert box.state["processes"][TRITON] == {"pid": box.running[TRITON], "state": "ready", "restarts": 0}
    assert not box.manager.steady
    assert PlayedBox().start_all().manager.steady


@pytest.mark.parametrize(
    ("name", "ready", "named"),
    [(TRITON, False, "Triton"), (DATA, False, "router"), (NGINX, True, ""), (CONTROL, True, "")],
)
def test_a_child_that_ends_is_reported_and_restarted_after_the_back_off(
    name: str, ready: bool, named: str
) -> None:
    box = PlayedBox().start_all().exit(name, -9)
    assert box.state["ready"] is ready and named in box.reason
    assert box.state["processes"][name] == {"pid": None, "state": "restarting", "restarts": 1}
    assert "SIGKILL" in box.logged[-1]
    assert box.advance(0.05).calls == []
    assert box.advance(0.1).calls == [("spawn", name)]
    assert box.state["ready"] is ready
    assert box.become_ready(name).state["ready"]


def test_workers_that_load_while_triton_exits_are_restarted_without_counting() -> None:
    box = PlayedBox().advance().become_ready(TRITON).exit(TRITON, -9)
    assert box.calls[-1] == ("kill", DATA)
    assert box.exit(DATA, -9).advance(0.2).calls[-2:] == [("spawn", TRITON), ("spawn", DATA)]
    assert box.become_ready(TRITON).become_ready(DATA).restarts(DATA) == 0


def test_workers_that_exit_together_with_triton_wait_for_it() -> None:
    box = PlayedBox().start_all().exit(TRITON, -9).exit(DATA, 3).advance(5)
    assert box.become_ready(DATA).state["processes"][DATA]["state"] == "restarting"
    assert box.become_ready(TRITON).become_ready(DATA).manager.ready


def test_the_back_off_doubles_up_to_five_seconds() -> None:
    box, waits = PlayedBox(max_restarts=100).start_all(), []
    for _ in range(8):
        box.exit(NGINX, -9).calls.clear()
        began = box.now
        while not box.calls:
            box.advance(0.05)
        waits.append(round(box.now - began, 1))
    assert waits == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0], abs=0.1)


@pytest.mark.parametrize(("status", "code"), [(7, 7), (-9, 137), (0, 1)])
def test_past_the_restart_limit_the_box_exits_with_the_childs_code(status: int, code: int) -> None:
    box = PlayedBox(max_restarts=2).start_all()
    for _ in range(2):
        box.exit(NGINX, status).advance(10)
    assert box.stop_code is None
    box.exit(NGINX, status)
    assert not box.state["ready"] and "nginx" in box.reason
    box.advance(0.1)
    for name in (DATA, TRITON, CONTROL):
        box.exit(name, 0).advance(0.1)
    assert box.manager.exit_code == code


def test_exits_of_more_than_five_minutes_ago_do_not_count() -> None:
    box = PlayedBox(max_restarts=1).start_all()
    for _ in range(5):
        box.exit(NGINX, 1).advance(301).become_ready(NGINX)
    assert box.stop_code is None


@pytest.mark.parametrize("status", [3, 4])
@pytest.mark.parametrize("sentence", ["", "clients/a/client.py: line 1: no"])
@pytest.mark.parametrize("tries", [1, 2])
def test_a_client_that_cannot_load_ends_the_first_start(tries: int, sentence: str, status: int) -> None:
    box = PlayedBox().advance().become_ready(CONTROL).become_ready(NGINX, TRITON)
    if tries == 2:
        assert box.exit(DATA, -11).advance(1).calls[-1] == ("spawn", DATA), "a crash is no such error"
    box.logged.clear()
    box.failures[DATA] = sentence
    assert box.exit(DATA, status).stop_code == 1
    assert len(box.logged) == 1 and sentence in box.reason


def test_a_triton_that_cannot_load_a_model_or_take_its_options_ends_the_first_start() -> None:
    box = PlayedBox().advance()
    box.failures[TRITON] = "the model 'cat' cannot be loaded: no such file"
    assert box.advance(0.2).stop_code == 1
    assert box.reason == box.failures[TRITON]
    assert PlayedBox().advance().exit(TRITON, 1).stop_code == 1


def test_after_a_failed_start_the_children_are_killed() -> None:
    box = PlayedBox().advance().become_ready(CONTROL).become_ready(NGINX, TRITON)
    box.calls.clear()
    assert box.exit(DATA, 3).advance(0.05).calls == [("kill", CONTROL), ("kill", NGINX), ("kill", TRITON)]
    for name in (CONTROL, NGINX, TRITON):
        box.exit(name, -9)
    assert box.advance(0.05).manager.exit_code == 1


def test_an_oom_kill_while_the_models_load_is_reported_with_the_model() -> None:
    box = PlayedBox().advance().become_ready(CONTROL)
    box.has_oom_kill = True
    assert not any("memory" in line for line in box.advance(4).logged)
    box.failures[TRITON] = "the model 'cat' cannot be loaded: Stub process is not healthy."
    assert box.advance(0.2).reason.startswith(box.failures[TRITON].removesuffix("."))
    assert "memory" in box.reason


@pytest.mark.parametrize(("status", "is_started"), [(-11, False), (-9, True)])
def test_a_child_that_ends_after_an_oom_kill_is_restarted_with_the_cause(
    status: int, is_started: bool
) -> None:
    box = PlayedBox().start_all() if is_started else PlayedBox().advance()
    box.has_oom_kill = True
    assert box.exit(TRITON, status).advance(0.2).calls[-1] == ("spawn", TRITON)
    assert "memory" in box.logged[-1]
    # A Triton that is not killed itself has lost a process of a model.
    assert ("Python model" in box.logged[-1]) is (status != -9)


def test_an_oom_kill_of_another_process_is_reported_once() -> None:
    box = PlayedBox().start_all()
    box.has_oom_kill = True
    assert [line for line in box.advance(0.2).advance(0.2).logged if "memory" in line] == [box.logged[-1]]
    assert box.manager.ready


def test_oom_kills_are_counted_from_the_start_and_from_their_age_on() -> None:
    killed, now = 3, 100.0
    kills = OomKills(lambda: killed, lambda: now)
    assert not kills.oom_killed(0.0)
    killed += 2
    assert [kills.oom_killed(0.0), kills.oom_killed(0.0)] == [True, False]
    killed += 1
    assert not kills.oom_killed(3.0)
    now += 3
    assert [kills.oom_killed(3.0), kills.oom_killed(0.0)] == [True, False]


def test_a_start_that_takes_too_long_ends_with_one_sentence() -> None:
    box = PlayedBox().advance().advance(61)
    assert box.stop_code == 1 and "60 s" in box.reason


def test_a_start_names_the_models_that_are_not_ready_while_it_waits_and_when_it_ends() -> None:
    box = PlayedBox().advance()
    box.unready = "the model 'lazy' is not ready: asleep"
    assert box.unready in box.advance(2).reason
    assert "lazy" not in box.become_ready(TRITON).reason
    box = PlayedBox().advance().become_ready(CONTROL, NGINX)
    box.unready = "the model 'lazy' is not ready: asleep"
    assert box.unready in box.advance(61).reason
    assert box.logged[-1].endswith(f"{box.unready}.")


@pytest.mark.parametrize(
    ("failure", "seconds"), [("the model 'resnet' cannot be loaded: No space left on device.", 1), ("", 61)]
)
def test_a_restart_that_fails_or_takes_too_long_costs_another(failure: str, seconds: float) -> None:
    box = PlayedBox().start_all().exit(TRITON, -9).advance(0.2)
    box.failures[TRITON] = failure
    assert box.advance(seconds).calls[-1] == ("kill", TRITON)
    assert failure.removesuffix(".") in box.logged[-1]
    assert (box.stop_code, box.exit(TRITON, -9).restarts(TRITON)) == (None, 2)


def test_a_stop_goes_from_nginx_to_the_control_plane_and_exits_0() -> None:
    box = PlayedBox().start_all().interrupt()
    assert (box.state["ready"], box.state["draining"]) == (False, True)
    assert box.calls == [("disable keep-alive",)]
    assert not box.advance(0.1).manager.rejecting
    assert box.advance(0.5).manager.rejecting
    for name, word in ((NGINX, "SIGQUIT"), (DATA, "SIGTERM"), (TRITON, "SIGTERM"), (CONTROL, "SIGTERM")):
        assert box.calls[-1] == (word, name)
        box.exit(name, 0).advance(0.1)
    assert box.manager.exit_code == 0
    assert {child["state"] for child in box.state["processes"].values()} == {"stopped"}


@pytest.mark.parametrize(
    ("names", "first", "word"), [(NAMES, NGINX, "SIGQUIT"), ((CONTROL, TRITON, DATA), DATA, "SIGTERM")]
)
def test_what_accepts_requests_gets_the_drain_time(names: tuple[str, ...], first: str, word: str) -> None:
    box = PlayedBox(names).advance().become_ready(CONTROL).become_ready(NGINX, TRITON).become_ready(DATA)
    box.advance(0.2).interrupt().advance(0.6).advance(24)
    assert box.calls[-1] == (word, first)
    assert box.advance(1.1).calls[-1] == ("kill", first)


def test_a_triton_that_unloads_many_models_is_not_killed() -> None:
    """One with 11 real models needs 4 s on a busy machine for them, and 2 more for its own steps."""
    box = PlayedBox().start_all().interrupt().advance(0.6)
    for name in (NGINX, DATA):
        box.exit(name, 0).advance(0.1)
    for _ in range(12):
        assert box.advance(1.0).calls[-1] == ("SIGTERM", TRITON)
    assert box.exit(TRITON, 0).advance(0.1).calls[-1] == ("SIGTERM", CONTROL)


def test_a_stop_that_no_child_obeys_ends_within_the_platforms_30_s() -> None:
    box = PlayedBox().start_all().interrupt()
    began = box.now
    while box.manager.exit_code is None:
        word, *names = box.advance(0.1).calls[-1]
        if word == "kill" and box.manager.children[str(names[0])].pid is not None:
            box.exit(str(names[0]), -9)
    assert box.now - began < 30
    assert box.manager.exit_code == 0


def test_a_second_interrupt_kills_at_once_and_a_second_sigterm_changes_nothing() -> None:
    box = PlayedBox().start_all().interrupt().interrupt().advance()
    assert box.calls == [("disable keep-alive",)]
    box = PlayedBox().start_all().interrupt(SIGINT).interrupt(SIGINT).advance()
    assert {name for word, name in box.calls[1:] if word == "kill"} == set(NAMES)
    for name in NAMES:
        box.exit(name, -9)
    assert box.advance().manager.exit_code == 130


def test_a_stop_while_the_models_load_does_not_wait_for_them() -> None:
    box = PlayedBox().advance().become_ready(CONTROL).interrupt()
    for name in (NGINX, DATA, TRITON, CONTROL):
        box.advance().exit(name, 0)
    assert box.advance().manager.exit_code == 0


def test_nothing_is_restarted_during_a_stop() -> None:
    box = PlayedBox().start_all().interrupt().exit(TRITON, -9).advance(1)
    assert ("spawn", TRITON) not in box.calls


def test_a_model_that_lost_its_process_and_a_standstill_cost_no_restart() -> None:
    box = PlayedBox(max_restarts=0).start_all()
    box.lost = ["a Python model process of 'echo' died"]
    assert box.lost[0] in box.advance(0.2).logged[-1]
    box.manager.handle_standstill(5.0)
    assert "5.0 s" in box.advance(1.0).logged[-1]
    assert (box.calls, box.manager.ready) == ([], True)


def test_without_nginx_the_supervisor_rejects_requests_until_the_workers_are_ready() -> None:
    box = PlayedBox((CONTROL, TRITON, DATA)).advance()
    assert box.manager.rejecting
    assert not box.become_ready(CONTROL, TRITON).become_ready(DATA).manager.rejecting
    assert box.exit(DATA, 1).manager.rejecting


DEAD_IMPORT = "the model 'm' cannot be loaded: the process of its model.py ended with exit code 3"


def test_a_start_that_waits_for_a_dead_stub_says_why_and_ends_unless_triton_notices() -> None:
    for notices in (True, False):
        box = PlayedBox().advance().become_ready(CONTROL, NGINX)
        box.dead = DEAD_IMPORT
        assert (box.advance().reason, box.stop_code) == (DEAD_IMPORT, None)
        box.advance(DEAD_IMPORT_GRACE_S / 2)
        if notices:
            box.dead = ""
        box.advance(0.1).advance(DEAD_IMPORT_GRACE_S)
        assert box.stop_code == (None if notices else 1)
        assert (DEAD_IMPORT in box.reason) is not notices


def test_a_model_whose_stub_dies_at_a_restart_is_excluded_without_counting() -> None:
    box = PlayedBox(max_restarts=0).start_all()
    box.can_exclude = True
    box.manager.children[TRITON].expected_exit = True
    box.exit(TRITON, -9).advance(1)
    box.dead = DEAD_IMPORT
    assert box.advance().advance(DEAD_IMPORT_GRACE_S).calls[-1] == ("kill", TRITON)
    assert DEAD_IMPORT in box.logged[-1]
    box.dead = ""
    assert box.exit(TRITON, -9).advance(1).become_ready(TRITON).advance(1).manager.ready


def test_a_replacement_wanted_by_the_control_plane_does_not_count() -> None:
    box = PlayedBox(max_restarts=0).start_all()
    box.replacement = "16 loads do not end in Triton: it is started again"
    assert box.advance(1).calls == [("kill", TRITON)]
    assert box.logged[-1] == "16 loads do not end in Triton: it is started again"
    assert box.exit(TRITON, -9).advance(1).become_ready(TRITON).advance(1).manager.ready
