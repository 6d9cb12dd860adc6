"""The text of /metrics is collected a few times a second, however often it is asked for."""

from __future__ import annotations

import threading

from sm.router.routes.control_routes import MAX_SCRAPES_PER_S, ScrapeCache


class Clock:
    """A time that a test sets."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_flood_is_answered_with_few_collections_and_nothing_a_second_old() -> None:
    clock, made = Clock(), 0

    def collect() -> bytes:
        nonlocal made
        made += 1
        return str(clock.now).encode()

    cache = ScrapeCache(collect, clock)
    for number in range(10_000):
        clock.now = 100 + number / 1000
        assert clock.now - float(cache.text()) < 1
    assert made <= 10 * MAX_SCRAPES_PER_S


def test_a_few_scrapes_in_a_row_are_all_new() -> None:
    numbers = iter(range(100))
    cache = ScrapeCache(lambda: str(next(numbers)).encode(), Clock())
    assert [cache.text() for _ in range(MAX_SCRAPES_PER_S)] == [b"0", b"1", b"2", b"3", b"4"]
    assert cache.text() == b"4"


def test_while_one_collects_others_get_the_last_text_at_once() -> None:
    begun, end = threading.Event(), threading.Event()
    texts = iter([b"first", b"second"])

    def collect() -> bytes:
        text = next(texts)
        if text == b"second":
            begun.set()
            assert end.wait(10)
        return text

    cache = ScrapeCache(collect)
    assert cache.text() == b"first"
    found: list[bytes] = []
    collecting = threading.Thread(target=lambda: found.append(cache.text()))
    collecting.start()
    assert begun.wait(10)
    assert cache.text() == b"first"
    end.set()
    collecting.join()
    assert found == [b"second"]


def test_a_failed_collection_is_not_kept_for_one_that_runs() -> None:
    texts = iter([b"first", None, b"third"])

    def collect() -> bytes:
        text = next(texts)
        if text is None:
            raise OSError
        return text

    cache = ScrapeCache(collect)
    assert cache.text() == b"first"
    try:
        cache.text()
    except OSError:
        assert cache.text() == b"third"
