"""OOM kills are read from the kernel's counter and reported once."""

from __future__ import annotations

from sm.server.supervisor.process_manager import OomKills


class FakeKernel:
    """A kill counter and a clock that the test sets."""

    def __init__(self) -> None:
        self.killed, self.now = 3, 100.0
        self.oom_kills = OomKills(lambda: self.killed, lambda: self.now)


def test_kills_since_the_start_are_reported_once() -> None:
    kernel = FakeKernel()
    assert not kernel.oom_kills.oom_killed(0.0)
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
