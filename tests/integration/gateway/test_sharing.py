"""What callers share: a load, which outlives the request that started it, and answers, bounded in bytes and age."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from chalicelib.cache import MAX_AGE_S, Cache
from chalicelib.failures import LoadFailed
from chalicelib.loads import Loads

from sm.errors import BadInput, DeadlinePassed
from sm.invocation import Invocation, running
from tests.support.boxes import wait_until


@pytest.fixture
def waiting(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """Grows by each caller that has found or started the load that it waits for."""
    callers: list[None] = []
    monkeypatch.setattr("chalicelib.loads.current", lambda: callers.append(None))
    return callers


def share_load(loads: Loads, waiting: list[None], load: Callable[[], None]) -> list[BaseException | None]:
    """Let eight callers share a load that ends when all wait; return what each got."""
    release = threading.Event()

    def wait_and_load() -> None:
        assert release.wait(10)
        load()

    waiting.clear()
    with ThreadPoolExecutor(8) as pool:
        pending = [pool.submit(loads.share, "m", wait_and_load) for _ in range(8)]
        wait_until(lambda: len(waiting) == 8)
        loads.share("other", lambda: None)  # another model's load does not wait for this one
        release.set()
        return [future.exception(10) for future in pending]


def test_concurrent_callers_share_one_load(waiting: list[None]) -> None:
    loads, calls = Loads(), []
    for number in (1, 2):
        assert share_load(loads, waiting, lambda: calls.append(1)) == [None] * 8
        assert len(calls) == number


@pytest.mark.parametrize("error", [BadInput("no such luck"), OSError("no such luck")])
def test_every_waiting_caller_gets_the_failure_and_the_next_tries_again(
    waiting: list[None], error: Exception
) -> None:
    def fail() -> None:
        raise error

    loads = Loads()
    assert {type(found) for found in share_load(loads, waiting, fail)} == {LoadFailed}
    loads.share("m", lambda: None)


def test_a_caller_past_its_deadline_leaves_and_the_load_continues() -> None:
    loads, release, finished = Loads(), threading.Event(), threading.Event()

    def load() -> None:
        assert release.wait(10)
        finished.set()

    with running(Invocation(time.monotonic() + 0.1)), pytest.raises(DeadlinePassed):
        loads.share("m", load)
    release.set()
    assert finished.wait(10)


def test_the_least_recently_used_and_the_too_old_answers_are_evicted() -> None:
    now = [0.0]
    cache = Cache(10, lambda: now[0])
    for name, answer in {"a": b"aaaa", "b": b"bbbb", "larger": b"x" * 11}.items():
        cache.put(name, answer)
    assert cache.get("a") == b"aaaa"
    cache.put("c", b"cccc")
    assert [cache.get(name) for name in ("a", "b", "c", "larger")] == [b"aaaa", None, b"cccc", None]
    now[0] = MAX_AGE_S
    assert cache.get("a") == b"aaaa"
    now[0] = MAX_AGE_S + 1
    assert cache.get("a") is None


def test_different_parts_that_join_to_the_same_bytes_have_different_names() -> None:
    assert Cache.name(b"ab", b"c") != Cache.name(b"a", b"bc")
