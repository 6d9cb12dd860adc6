"""What changes between two looks is said once, in words."""

from __future__ import annotations

from sm.server.history.box_processes import ProcessGroup
from sm.server.history.changes import Changes


def group(
    name: str = "data", pid: int | None = 1, workers: tuple[int, ...] = (), **more: int
) -> ProcessGroup:
    found = ProcessGroup(name, "ready", pid, more.get("restarts", 0), children=frozenset(workers))
    found.processes, found.stopped = 1 + len(workers), more.get("stopped", 0)
    return found


def test_the_first_look_finds_nothing() -> None:
    changes = Changes()
    assert list(changes.compare_processes([group(workers=(2, 3))])) == []
    assert list(changes.compare_models([{"name": "m", "state": "ready"}])) == []
    assert list(changes.compare_box(False, "the box is starting")) == []


def test_a_process_with_another_number_was_started_again() -> None:
    changes = Changes()
    list(changes.compare_processes([group("triton", 5)]))
    assert list(changes.compare_processes([group("triton", None)])) == []
    assert list(changes.compare_processes([group("triton", 6)])) == ["triton was started again"]
    # The supervisor counts none: it has ended this one itself.
    assert changes.restarts(group("triton", 6)) == 1
    assert changes.restarts(group("triton", 6, restarts=4)) == 4


def test_a_worker_that_ended_counts_as_a_restart() -> None:
    changes = Changes()
    list(changes.compare_processes([group(workers=(2, 3))]))
    assert list(changes.compare_processes([group(workers=(2, 4))])) == ["1 worker of data ended"]
    assert changes.restarts(group(restarts=1)) == 2


def test_the_processes_of_models_come_and_go_as_usual() -> None:
    changes = Changes()
    list(changes.compare_processes([group("triton", 1, (2, 3))]))
    assert list(changes.compare_processes([group("triton", 1, (4,))])) == []


def test_a_stopped_process_is_told_once_and_so_is_its_return() -> None:
    changes = Changes()
    list(changes.compare_processes([group(workers=(2, 3))]))
    stopped = group(workers=(2, 3), stopped=1)
    assert list(changes.compare_processes([stopped])) == ["1 of 3 processes of data do not run: stopped"]
    assert list(changes.compare_processes([stopped])) == []
    assert list(changes.compare_processes([group(workers=(2, 3))])) == ["all processes of data run again"]


def test_models_are_told_as_they_come_change_and_go() -> None:
    changes = Changes()
    list(changes.compare_models([{"name": "a", "state": "ready"}, {"name": "b", "state": "ready"}]))
    rows = [{"name": "a", "state": "not ready"}, {"name": "c", "state": "ready"}]
    assert list(changes.compare_models(rows)) == [
        "the model a is not ready",
        "the model b was unloaded",
        "the model c is ready",
    ]


def test_the_box_says_why_it_is_not_ready() -> None:
    changes = Changes()
    list(changes.compare_box(True, ""))
    assert list(changes.compare_box(False, "triton is restarting")) == [
        "the box is not ready: triton is restarting"
    ]
    assert list(changes.compare_box(True, "")) == ["the box is ready"]
