"""The tables of ``sm top``: models, processes and events; text from the box is never taken as markup."""

from __future__ import annotations

import time
from typing import Any

from rich.console import Console

from sm.commands.top import show

IDLE: dict[str, Any] = {"answers": {}, "p50_ms": None, "p95_ms": None, "p99_ms": None, "queue": 0}
ROW: dict[str, Any] = {"client": None, "engine": "", "versions": ["1"], "revision": "", "state": "ready"}
ROW |= {"source": "/models", "bytes": 0, "used": None, "reason": ""}


def test_models_are_listed_the_last_used_first_and_the_header_says_why_the_box_is_not_ready() -> None:
    used = {"used": 86_400.0 * 20, "bytes": 5_100_000, "revision": "3f2a91bc", "engine": "openvino bf16"}
    box: dict[str, Any] = {
        "at": 0,
        "ready": False,
        "reason": "[red]triton[/red] is restarting",
        "models": [{**ROW, "name": "idle"}, {**ROW, "name": "used", **used}],
        "processes": [],
        "shared_memory": {"used": 0, "size": 0, "free": 0},
        "last_minute": {"seconds": 60, "all": {**IDLE, "in_flight": 0}, "models": {}},
    }
    console = Console(width=200)
    with console.capture() as capture:
        console.print(show({"events": [], "box": box}, "http://box"))
    header, *lines = capture.get().splitlines()
    assert box["reason"] in header
    rows = [line.split() for line in lines if line.split()[:1] in (["used"], ["idle"])]
    clock = time.strftime("%H:%M:%S", time.localtime(86_400 * 20))
    assert rows == [
        ["used", "1", "3f2a91bc", "openvino", "bf16", "/models", "ready", "5.1", "MB", clock],
        ["idle", "1", "-", "/models", "ready", "0", "B", "-"],
    ]
