"""What ``sm top`` prints of an answer: whatever is in it, and nothing of it as markup."""

from __future__ import annotations

from typing import Any

import pytest
from rich.console import Console

from sm.tools.top.tables import duration, show, size

NOTHING: dict[str, Any] = {"answers": {}, "p50_ms": None, "p95_ms": None, "p99_ms": None, "queue": 0}
BUSY = {"answers": {"2xx": 540, "5xx": 60}, "p50_ms": 12.34, "p95_ms": 99.0, "p99_ms": 2500.0, "queue": 4}


def printed(models: list[dict[str, Any]], recent: dict[str, Any], **box: Any) -> list[list[str]]:
    """The words of each line."""
    answer = {
        "events": [{"at": 0, "text": f"event {number}"} for number in range(9)],
        "box": {
            "at": 0,
            "ready": True,
            "reason": "",
            "models": models,
            "processes": [],
            "shared_memory": {"used": 0, "size": 0, "free": 0},
            "last_minute": {"seconds": 60, "all": {**NOTHING, "in_flight": 0}, "models": recent},
            **box,
        },
    }
    console = Console(width=200)
    with console.capture() as capture:
        console.print(show(answer, "http://box"))
    return [line.split() for line in capture.get().splitlines()]


def served(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "client": None, "versions": ["1"], "state": "ready", "reason": "", **more}


def test_a_model_has_its_numbers_and_the_busiest_is_first() -> None:
    lines = printed([served("idle"), served("busy")], {"busy": {**BUSY, "threads": 2, "stages_ms": {}}})
    rows = [line for line in lines if line[:1] in (["busy"], ["idle"])]
    assert rows == [
        ["busy", "1", "ready", "10.0", "12.3", "ms", "99", "ms", "2.5", "s", "60", "2", "4"],
        ["idle", "1", "ready", "0.0", "-", "-", "-", "0", "0", "0"],
    ]


def test_a_model_that_was_unloaded_is_still_shown_with_its_last_minute() -> None:
    lines = printed([], {"gone": {**BUSY, "threads": 0, "stages_ms": {}}})
    assert any(line[:4] == ["gone", "-", "not", "served"] for line in lines)


def test_a_box_that_is_not_ready_says_why() -> None:
    assert "not ready: [red]triton[/red] is restarting" in " ".join(
        printed([], {}, ready=False, reason="[red]triton[/red] is restarting")[0]
    )


def test_the_last_events_are_there_the_newest_first() -> None:
    events = [line[-1] for line in printed([], {}) if "event" in line]
    assert events == ["8", "7", "6", "5", "4"]


def test_stopped_processes_are_told() -> None:
    row = {
        "name": "data",
        "state": "ready",
        "pid": 7,
        "processes": 3,
        "stopped": 1,
        "restarts": 2,
        "memory": 2e9,
    }
    (line,) = [line for line in printed([], {}, processes=[row]) if line[:1] == ["data"]]
    assert line == ["data", "ready,", "1", "stopped", "3", "2", "GB", "2"]


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0 B"), (999, "999 B"), (1.26e9, "1.26 GB"), (5e15, "5000 TB")]
)
def test_bytes_are_short(number: float, text: str) -> None:
    assert size(number) == text


@pytest.mark.parametrize(
    ("number", "text"), [(None, "-"), (0.123, "0.123 ms"), (999, "999 ms"), (61_000, "61.0 s")]
)
def test_times_are_short(number: float | None, text: str) -> None:
    assert duration(number) == text
