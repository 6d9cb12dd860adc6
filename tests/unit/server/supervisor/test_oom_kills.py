"""The kernel's count of what it killed for want of memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from sm.server.supervisor.oom_kills import OomKills, count_kills


class Kernel:
    """A count and a clock that stand still."""

    def __init__(self) -> None:
        self.killed, self.now = 3, 100.0
        self.memory = OomKills(lambda: self.killed, lambda: self.now)


def test_what_was_killed_before_is_no_news() -> None:
    assert not Kernel().memory.oom_killed(0.0)


def test_a_kill_is_told_once() -> None:
    kernel = Kernel()
    kernel.killed += 2
    assert kernel.memory.oom_killed(0.0)
    assert not kernel.memory.oom_killed(0.0)


def test_who_has_patience_is_told_when_nobody_else_has_asked() -> None:
    kernel = Kernel()
    kernel.killed += 1
    assert not kernel.memory.oom_killed(3.0)
    kernel.now += 3
    assert kernel.memory.oom_killed(3.0)
    assert not kernel.memory.oom_killed(0.0)


@pytest.mark.parametrize(
    "text", ["low 0\nhigh 0\nmax 7\noom 4\noom_kill 2\n", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n"]
)
def test_both_forms_of_control_groups_count(tmp_path: Path, text: str) -> None:
    (tmp_path / "counter").write_text(text)
    assert count_kills((tmp_path / "absent", tmp_path / "counter")) == 2


def test_a_kernel_that_counts_nothing_has_killed_nothing(tmp_path: Path) -> None:
    assert count_kills((tmp_path / "absent",)) == 0
