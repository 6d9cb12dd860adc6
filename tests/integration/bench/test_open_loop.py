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
from tests.support.http_server import server_with_fixed_response

REQUEST = plan_request(Request("/x", {"Content-Type": "application/json"}, b'{"text":"a"}', b"right"))


@pytest.mark.parametrize(
    ("plan", "status", "document", "counted"),
    [
        ({"rates": {"a": 40}}, 200, "wrong", "failed"),
        ({"rates": {"a": 40}}, 429, "right", "refused"),
        # One function counts for all plans.
        ({"flood": {"a": 2}}, 500, "no", "failed"),
        ({"mix": 2, "shares": {"a": 1}}, 200, "right", "seconds"),
    ],
)
def test_each_response_is_counted_by_its_outcome(
    tmp_path: Path, status: int, document: str, counted: str, plan: dict[str, object]
) -> None:
    with server_with_fixed_response(status, document) as server:
        whole_plan = {
            "port": urlsplit(server.url).port,
            "seconds": 0.5,
            "seed": 1,
            "requests": {"a": REQUEST},
            **plan,
        }
        (tmp_path / "plan.json").write_text(json.dumps(whole_plan))
        command = (sys.executable, "-m", "bench.open_loop", str(tmp_path / "plan.json"))
        printed = subprocess.run(command, cwd=HERE, capture_output=True, timeout=60, check=True).stdout
        sent = len(server.request_bodies)
    counts = json.loads(printed)["a"]
    counts["seconds"], in_time = len(counts["seconds"]), counts.pop("in_time")
    assert counts[counted] == sum(counts.values()) == sent > 0
    assert in_time <= counts["seconds"]
