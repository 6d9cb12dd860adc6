"""Changes of processes, models and the box between two polls are reported once, by name."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from sm.control.history import Changes, ProcessGroup


def group(name: str, pid: int | None = 1, workers: tuple[int, ...] = (), **counts: int) -> ProcessGroup:
    found = ProcessGroup(name, "ready", pid, counts.get("restarts", 0), children=frozenset(workers))
    found.processes, found.stopped = 1 + len(workers), counts.get("stopped", 0)
    return found


def assert_named(events: Iterable[str], *names: str) -> None:
    """There is one event for each name, in this order."""
    found = list(events)
    assert len(found) == len(names)
    assert all(name in event for name, event in zip(names, found, strict=True)), found


@pytest.mark.parametrize(
    ("states", "named", "restarts"),
    [
        # The supervisor does not count a process that it ended itself.
        ([group("triton", 5), group("triton", None), group("triton", 6)], ["", "", "triton"], 1),
        ([group("triton", 5), group("triton", 6, restarts=4)], ["", "triton"], 4),
        ([group("data", 1, (2, 3)), group("data", 1, (2, 4), restarts=1)], ["", "1 worker of data"], 2),
        ([group("triton", 1, (2, 3)), group("triton", 1, (4,))], ["", ""], 0),
        (
            [group("data", 1, (2, 3), stopped=stopped) for stopped in (0, 1, 1, 0)],
            *(["", "1 of 3 processes of data", "", "data"], 0),
        ),
    ],
    ids=["another pid", "counted exits", "a worker that ended", "processes of models", "stopped and back"],
)
def test_a_change_of_a_process_is_reported_once(
    states: list[ProcessGroup], named: list[str], restarts: int
) -> None:
    changes = Changes()
    for state, name in zip(states, named, strict=True):
        assert_named(changes.compare_processes([state]), *filter(None, [name]))
    assert changes.restarts(states[-1]) == restarts


def row(name: str, state: str = "ready", revision: str = "") -> dict[str, str]:
    return {"name": name, "state": state, "revision": revision}


def test_new_changed_replaced_and_unloaded_models_are_reported() -> None:
    changes = Changes()
    polls: list[tuple[list[dict[str, Any]], tuple[str, ...]]] = [
        ([row("a"), row("b"), row("d", revision="old")], ()),
        ([row("a", "not ready"), row("c"), row("d", revision="old")], ("a is not ready", "b ", "c is ready")),
        (
            [row("a", "not ready"), row("c"), *(row("d", revision=each) for each in ("old", "new"))],
            ("d new",),
        ),
        ([row("a", "not ready"), row("c"), row("d", revision="new")], ("d old",)),
    ]
    for rows, named in polls:
        assert_named(changes.compare_models(rows), *named)


def test_the_report_says_why_the_box_is_not_ready() -> None:
    changes = Changes()
    assert_named(changes.compare_box(True, ""))
    assert_named(changes.compare_box(False, "triton is restarting"), "triton is restarting")
    assert_named(changes.compare_box(True, ""), "ready")
