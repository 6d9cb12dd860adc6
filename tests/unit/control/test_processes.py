"""Changes of processes, models and the box between two polls are reported once, as sentences."""

from __future__ import annotations

from sm.control.history import Changes, ProcessGroup


def process_group(
    name: str = "data", pid: int | None = 1, workers: tuple[int, ...] = (), **counts: int
) -> ProcessGroup:
    group = ProcessGroup(name, "ready", pid, counts.get("restarts", 0), children=frozenset(workers))
    group.processes, group.stopped = 1 + len(workers), counts.get("stopped", 0)
    return group


def test_a_process_with_another_pid_was_restarted() -> None:
    changes = Changes()
    list(changes.compare_processes([process_group("triton", 5)]))
    assert list(changes.compare_processes([process_group("triton", None)])) == []
    assert list(changes.compare_processes([process_group("triton", 6)])) == ["triton was started again"]
    # The supervisor does not count a process that it ended itself.
    assert changes.restarts(process_group("triton", 6)) == 1
    assert changes.restarts(process_group("triton", 6, restarts=4)) == 4


def test_a_worker_that_ended_counts_as_a_restart() -> None:
    changes = Changes()
    list(changes.compare_processes([process_group(workers=(2, 3))]))
    assert list(changes.compare_processes([process_group(workers=(2, 4))])) == ["1 worker of data ended"]
    assert changes.restarts(process_group(restarts=1)) == 2


def test_changed_processes_of_models_are_not_reported() -> None:
    changes = Changes()
    list(changes.compare_processes([process_group("triton", 1, (2, 3))]))
    assert list(changes.compare_processes([process_group("triton", 1, (4,))])) == []


def test_a_stopped_process_and_its_return_are_each_reported_once() -> None:
    changes = Changes()
    list(changes.compare_processes([process_group(workers=(2, 3))]))
    stopped = process_group(workers=(2, 3), stopped=1)
    assert list(changes.compare_processes([stopped])) == ["1 of 3 processes of data do not run: stopped"]
    assert list(changes.compare_processes([stopped])) == []
    assert list(changes.compare_processes([process_group(workers=(2, 3))])) == [
        "all processes of data run again"
    ]


def model_row(name: str, state: str = "ready", revision: str = "") -> dict[str, str]:
    return {"name": name, "state": state, "revision": revision}


def test_new_changed_and_unloaded_models_are_reported() -> None:
    changes = Changes()
    list(changes.compare_models([model_row("a"), model_row("b")]))
    assert list(changes.compare_models([model_row("a", "not ready"), model_row("c")])) == [
        "the model a is not ready",
        "the model b no longer serves",
        "the model c is ready",
    ]


def test_a_replaced_model_is_reported_by_its_versions() -> None:
    changes = Changes()
    list(changes.compare_models([model_row("a", revision="old")]))
    both = [model_row("a", revision="old"), model_row("a", revision="new")]
    assert list(changes.compare_models(both)) == ["the model a new is ready"]
    assert list(changes.compare_models(both[1:])) == ["the model a old no longer serves"]


def test_the_report_says_why_the_box_is_not_ready() -> None:
    changes = Changes()
    list(changes.compare_box(True, ""))
    assert list(changes.compare_box(False, "triton is restarting")) == [
        "the box is not ready: triton is restarting"
    ]
    assert list(changes.compare_box(True, "")) == ["the box is ready"]
