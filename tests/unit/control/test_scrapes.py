"""The text of /metrics is collected at most a few times a second, however often it is requested."""

from __future__ import annotations

import threading

import pytest

from sm.control.routes import MAX_TEXT_AGE_S
from sm.polling import at_most_every


class Clock:
    """A time that a test sets."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_many_scrapes_need_few_collections_and_get_no_old_text() -> None:
    clock, collections = Clock(), 0

    def collect() -> bytes:
        nonlocal collections
        collections += 1
        return str(clock.now).encode()

    scrape = at_most_every(MAX_TEXT_AGE_S, collect, clock)
    for milliseconds in range(10_000):
        clock.now = 100 + milliseconds / 1000
        assert clock.now - float(scrape()) < MAX_TEXT_AGE_S
    assert collections <= 51


def test_scrapes_during_a_collection_get_its_text() -> None:
    may_end, texts = threading.Event(), iter([b"first"])

    def collect() -> bytes:
        assert may_end.wait(10)
        return next(texts)

    scrape, read = at_most_every(MAX_TEXT_AGE_S, collect), []
    threads = [threading.Thread(target=lambda: read.append(scrape())) for _ in range(3)]
    for thread in threads:
        thread.start()
    may_end.set()
    for thread in threads:
        thread.join()
    assert read == [b"first"] * 3


def test_after_a_failed_collection_the_next_scrape_collects_again() -> None:
    texts = iter([None, b"second"])

    def collect() -> bytes:
        text = next(texts)
        if text is None:
            raise OSError("no series")
        return text

    scrape = at_most_every(MAX_TEXT_AGE_S, collect)
    with pytest.raises(OSError, match="no series"):
        scrape()
    assert scrape() == b"second"
