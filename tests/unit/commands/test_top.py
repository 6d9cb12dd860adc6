"""The tables of ``sm top``: models, processes and events; text from the box is never taken as markup."""

from __future__ import annotations

import time
from typing import Any

from rich.console import Console

from sm.commands.top import show

IDLE: dict[str, Any] = {"answers": {}, "p50_ms": None, "p95_ms": None, "p99_ms": None, "queue": 0}


def printed_words(models: list[dict[str, Any]], recent: dict[str, Any], **box: Any) -> list[list[str]]:
    """Print the tables of an answer; return the words of each line."""
    answer = {
        "events": [{"at": 0, "text": f"event {number}"} for number in range(9)],
        "box": {
            "at": 0,
            "ready": True,
            "reason": "",
            "models": models,
            "processes": [],
            "shared_memory": {"used": 0, "size": 0, "free": 0},
            "last_minute": {"seconds": 60, "all": {**IDLE, "in_flight": 0}, "models": recent},
            **box,
        },
    }
    console = Console(width=200)
    with console.capture() as capture:
        console.print(show(answer, "http://box"))
    return [line.split() for line in capture.get().splitlines()]


def model_row(name: str, **fields: Any) -> dict[str, Any]:
    row = {"name": name, "client": None, "engine": "", "versions": ["1"], "revision": "", "state": "ready"}
    return {**row, "source": "/models", "bytes": 0, "used": None, "reason": "", **fields}


def test_models_are_listed_with_what_they_are_the_last_used_first() -> None:
    used: dict[str, Any] = {"used": 86_400.0 * 20, "bytes": 5_100_000, "revision": "3f2a91bc"}
    lines = printed_words([model_row("idle"), model_row("used", engine="openvino bf16", **used)], {})
    rows = [line for line in lines if line[:1] in (["used"], ["idle"])]
    clock = time.strftime("%H:%M:%S", time.localtime(used["used"]))
    assert rows == [
        ["used", "1", "3f2a91bc", "openvino", "bf16", "/models", "ready", "5.1", "MB", clock],
        ["idle", "1", "-", "/models", "ready", "0", "B", "-"],
    ]


def test_the_header_says_why_the_box_is_not_ready() -> None:
    assert "not ready: [red]triton[/red] is restarting" in " ".join(
        printed_words([], {}, ready=False, reason="[red]triton[/red] is restarting")[0]
    )
