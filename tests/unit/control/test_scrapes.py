"""The text of /metrics is collected at most a few times a second, however often it is requested."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from sm.control.routes import MAX_TEXT_AGE_S
from sm.errors import NotReady
from sm.polling import SharedQuestion


def test_many_scrapes_need_few_collections_and_get_no_old_text() -> None:
    now, collections = 100.0, list[float]()

    def collect() -> float:
        collections.append(now)
        return now

    scrape = SharedQuestion(collect, MAX_TEXT_AGE_S, 0.0, lambda: now)
    for milliseconds in range(10_000):
        now = 100 + milliseconds / 1000
        assert now - scrape.ask(10) < MAX_TEXT_AGE_S
    assert len(collections) <= 51


def test_scrapes_during_a_collection_get_its_text_and_after_a_failed_one_the_next() -> None:
    may_end, texts = threading.Event(), iter([None, b"second"])

    def collect() -> bytes:
        assert may_end.wait(10)
        if text := next(texts):
            return text
        raise NotReady("no series")

    scrape = SharedQuestion(collect, MAX_TEXT_AGE_S, 0.0)
    may_end.set()
    with pytest.raises(NotReady):
        scrape.ask(10)
    may_end.clear()
    with ThreadPoolExecutor(3) as callers:
        scraped = [callers.submit(scrape.ask, 10) for _ in range(3)]
        may_end.set()
        assert [each.result() for each in scraped] == [b"second"] * 3
