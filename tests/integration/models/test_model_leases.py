"""A hold ends with the process that has it."""

from __future__ import annotations

import os
from pathlib import Path

from sm.models.model_leases import ModelLeases, alone


def test_the_holds_of_a_dead_process_are_gone(tmp_path: Path) -> None:
    pid = os.fork()
    if not pid:
        ModelLeases(tmp_path).take("a")
        os._exit(0)
    os.waitpid(pid, 0)
    with alone(tmp_path, "a") as is_idle:
        assert is_idle
