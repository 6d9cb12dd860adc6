"""The text of /metrics is collected at most a few times a second, however often it is requested."""

from __future__ import annotations

import threading

import pytest

from sm.control.routes import MAX_SCRAPES_PER_S, ScrapeCache


class Clock:
    """A time that a test sets."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_many_scrapes_need_few_collections_and_get_no_text_older_than_a_second() -> None:
    clock, collections = Clock(), 0

    def collect() -> bytes:
        nonlocal collections
        collections += 1
        return str(clock.now).encode()

    cache = ScrapeCache(collect, clock)
    for milliseconds in range(10_000):
        clock.now = 100 + milliseconds / 1000
        assert clock.now - float(cache.text()) < 1
    assert collections <= 10 * MAX_SCRAPES_PER_S


def test_during_a_collection_other_scrapes_get_the_last_text_at_once() -> None:
    collecting_second, may_end = threading.Event(), threading.Event()
    texts = iter([b"first", b"second"])

    def collect() -> bytes:
        text = next(texts)
        if text == b"second":
            collecting_second.set()
            assert may_end.wait(10)
        return text

    cache = ScrapeCache(collect)
    assert cache.text() == b"first"
    late_texts: list[bytes] = []
    collecting_thread = threading.Thread(target=lambda: late_texts.append(cache.text()))
    collecting_thread.start()
    assert collecting_second.wait(10)
    assert cache.text() == b"first"
    may_end.set()
    collecting_thread.join()
    assert late_texts == [b"second"]


def test_after_a_failed_collection_the_next_scrape_collects_again() -> None:
    texts = iter([b"first", None, b"third"])

    def collect() -> bytes:
        text = next(texts)
        if text is None:
            raise OSError("no series")
        return text

    cache = ScrapeCache(collect)
    assert cache.text() == b"first"
    with pytest.raises(OSError, match="no series"):
        cache.text()
    assert cache.text() == b"third"
