"""The open-loop load generator counts right, wrong and refused responses of a real HTTP server."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from bench.driver import Request
from bench.open_loop import plan_request
from sm.settings import HERE
from tests.support.answering_server import server_with_fixed_response

PLANNED_REQUEST = plan_request(Request("/x", {"Content-Type": "application/json"}, b'{"text":"a"}', b"right"))


@pytest.mark.parametrize(
    ("plan", "status", "document", "counted"),
    [
        ({"rates": {"a": 40}}, 200, "right", "seconds"),
        ({"rates": {"a": 40}}, 200, "wrong", "failed"),
        ({"rates": {"a": 40}}, 429, "right", "refused"),
        ({"rates": {"a": 40}}, 500, "no", "failed"),
        # One function counts for all plans.
        ({"flood": {"a": 2}}, 200, "right", "seconds"),
        ({"mix": 2, "shares": {"a": 1}}, 200, "right", "seconds"),
    ],
)
def test_each_response_is_counted_by_its_outcome(
    tmp_path: Path, status: int, document: str, counted: str, plan: dict[str, object]
) -> None:
    with server_with_fixed_response(status, document) as server:
        port = urlsplit(server.url).port
        plan_file = tmp_path / "plan.json"
        plan_file.write_text(
            json.dumps({"port": port, "seconds": 0.5, "seed": 1, "requests": {"a": PLANNED_REQUEST}, **plan})
        )
        completed = subprocess.run(
            (sys.executable, "-m", "bench.open_loop", str(plan_file)),
            cwd=HERE,
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        counts = json.loads(completed.stdout)["a"]
        in_seconds = len(counts.pop("seconds"))
        counts["seconds"], in_time = in_seconds, counts.pop("in_time")
        assert counts[counted] == len(server.request_bodies) > 0
        assert sum(counts.values()) == counts[counted]
        assert in_time <= in_seconds
