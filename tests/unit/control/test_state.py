"""The state of a box as the supervisor and Triton report it."""

from __future__ import annotations

import pytest

from sm.control.state import all_ready


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
    states: dict[str, str], models: list[str], ready: bool
) -> None:
    entries = [{"name": name, "state": state} for name, state in states.items()]
    assert all_ready(entries, models) is ready
