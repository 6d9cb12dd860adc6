"""The state of a box as the supervisor and Triton report it."""

from __future__ import annotations

from pathlib import Path

import pytest

from sm.control.state import ModelStates
from tests.support.nginx_front import make_box


@pytest.mark.parametrize(
    ("states", "models", "ready"),
    [
        ({}, [], True),
        ({}, ["a"], False),
        ({"a": "READY"}, ["a"], True),
        ({"a": "READY"}, ["a", "b"], False),
        ({"a": "READY", "b": "UNAVAILABLE"}, ["a", "b"], False),
    ],
)
def test_a_client_is_ready_if_all_models_that_it_needs_are(
    tmp_path: Path, states: dict[str, str], models: list[str], ready: bool
) -> None:
    index = [{"name": name, "state": state} for name, state in states.items()]
    assert ModelStates(make_box(tmp_path), index).describe("client", models)["ready"] is ready
