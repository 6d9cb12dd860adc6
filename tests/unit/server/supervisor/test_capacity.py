"""How much the box accepts at once follows from its memory and its limit of open files."""

from __future__ import annotations

import pytest

from sm.errors import StartError
from sm.server.supervisor.nginx import capacity, describe_limits, fit_to_descriptors
from sm.settings import Settings

SETTINGS = Settings(workers=2)


@pytest.mark.parametrize(
    ("memory", "medium", "large"),
    [(2**28, 96 + 64, 96 + 16), (2**33, 96 + 536, 96 + 20), (2**40, 96 + 4096, 96 + 512)],
)
def test_more_memory_allows_more_bodies_at_once(memory: int, medium: int, large: int) -> None:
    limits = capacity(SETTINGS, memory, 65536)
    assert (limits.in_flight, limits.medium_bodies, limits.large_bodies) == (640, medium, large)


@pytest.mark.parametrize(
    ("files", "threads", "queue", "connections", "in_flight"),
    [(65536, 8, 32, 8192, 640), (1024, 8, 32, 1024, 256), (128, 6, 32, 128, 32), (96, 2, 32, 96, 24)],
)
def test_fewer_open_files_mean_fewer_threads_connections_and_requests(
    files: int, threads: int, queue: int, connections: int, in_flight: int
) -> None:
    fitted = fit_to_descriptors(SETTINGS, files)
    limits = capacity(fitted, 2**33, files)
    assert (fitted.threads, fitted.queue) == (threads, queue)
    assert (limits.connections, limits.in_flight) == (connections, in_flight)
    level, _ = describe_limits(SETTINGS, fitted, limits, files)
    assert level == ("info" if files >= 1024 else "warning")


def test_too_few_open_files_stop_the_start() -> None:
    with pytest.raises(StartError):
        fit_to_descriptors(SETTINGS, 95)
