"""OOM kills are read from the kernel's counter and reported once."""

from __future__ import annotations

from pathlib import Path

import pytest

from sm.server.supervisor.oom_kills import OomKills, count_kills


class FakeKernel:
    """A kill counter and a clock that the test sets."""

    def __init__(self) -> None:
        self.killed, self.now = 3, 100.0
        self.oom_kills = OomKills(lambda: self.killed, lambda: self.now)


def test_kills_before_the_start_are_not_reported() -> None:
    assert not FakeKernel().oom_kills.oom_killed(0.0)


def test_a_kill_is_reported_once() -> None:
    kernel = FakeKernel()
    kernel.killed += 2
    assert kernel.oom_kills.oom_killed(0.0)
    assert not kernel.oom_kills.oom_killed(0.0)


def test_with_a_minimum_age_a_kill_is_reported_only_when_it_is_that_old() -> None:
    kernel = FakeKernel()
    kernel.killed += 1
    assert not kernel.oom_kills.oom_killed(3.0)
    kernel.now += 3
    assert kernel.oom_kills.oom_killed(3.0)
    assert not kernel.oom_kills.oom_killed(0.0)


@pytest.mark.parametrize(
    "text",
    ["low 0\nhigh 0\nmax 7\noom 4\noom_kill 2\n", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n"],
    ids=["cgroup v2", "cgroup v1"],
)
def test_kills_are_counted_in_both_versions_of_control_groups(tmp_path: Path, text: str) -> None:
    (tmp_path / "counter").write_text(text)
    assert count_kills((tmp_path / "absent", tmp_path / "counter")) == 2


def test_without_a_counter_there_are_no_kills(tmp_path: Path) -> None:
    assert count_kills((tmp_path / "absent",)) == 0
