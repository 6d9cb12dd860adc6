"""The runtime stays small enough to be read: a change that makes it grow says why."""

from __future__ import annotations

import json

from tests.support.sizes import KEPT, MAX_GROWTH, runtime_lines


def test_a_runtime_that_grew_by_2_percent_has_a_reason() -> None:
    kept = json.loads(KEPT.read_text())["runtime lines"]
    assert runtime_lines() <= kept * (1 + MAX_GROWTH), (
        "say in the commit what this replaces and why the rest is needed; then: python -m tests.support.sizes --keep"
    )
