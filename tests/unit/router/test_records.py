"""Lists and JSON lines are answered in order, a few records at a time, even if some fail."""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import FrameType
from typing import Any
from unittest.mock import MagicMock

import pytest

from sm.errors import BadInput, TooLarge
from sm.http.messages import JSON_LINES, Answer
from sm.invocation import Invocation
from sm.router.records import (
    MAX_BATCH,
    MAX_BATCHES_PER_THREAD,
    OrderedMap,
    answer_lines,
    count_lines,
    messages,
    split,
)
from sm.router.request_types import LinesRequest, Message, RecordLimit


@pytest.fixture
def ordered_map() -> Iterator[OrderedMap]:
    with ThreadPoolExecutor(4) as pool:
        yield OrderedMap(pool, 4)


def lines_request(body: bytes, limit: int | None = None) -> LinesRequest:
    message = Message(body, {"content-type": JSON_LINES, "accept": "*/*"}, {}, "id")
    return LinesRequest(message, limit=None if limit is None else RecordLimit(limit))


def endless() -> Invocation:
    return Invocation(math.inf)


def echo(line: Message) -> Answer:
    return Answer(line.body)


def test_answers_are_in_the_order_of_the_lines_whichever_ends_first(ordered_map: OrderedMap) -> None:
    def answer_first_line_slowly(line: Message) -> Answer:
        time.sleep(0.05 if line.body == b"0" else 0)
        return echo(line)

    body = b"\n".join(str(index).encode() for index in range(200))
    answer = answer_lines(lines_request(body), answer_first_line_slowly, ordered_map, endless())
    assert (answer.body, answer.content_type) == (body, JSON_LINES)


def test_blank_lines_and_carriage_returns_are_ignored() -> None:
    lines = list(messages(lines_request(b"\r\n1\r\n\n  \n2\n").message))
    assert [line.body for line in lines] == [b"1", b"2"]
    assert (lines[0].content_type, lines[0].headers["accept"]) == ("application/json",) * 2


def test_too_many_lines_are_refused_before_any_is_run_and_blank_ones_do_not_count(
    ordered_map: OrderedMap,
) -> None:
    body, answer = b"\n\n1\n\n2\n\n3", MagicMock(side_effect=echo)
    assert answer_lines(lines_request(body, 3), answer, ordered_map, endless()).body == b"1\n2\n3"
    answer.reset_mock()
    with pytest.raises(TooLarge):
        answer_lines(lines_request(body, 2), answer, ordered_map, endless())
    answer.assert_not_called()


def lines_executed(work: Callable[[], object]) -> int:
    """Return how many lines of Python a function executes in this thread."""
    count = 0

    def trace(_: FrameType, event: str, __: object) -> Callable[..., Any]:
        nonlocal count
        count += event == "line"
        return trace

    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(None)
    return count


@pytest.mark.parametrize("blank", [b"\n", b" \r\n"], ids=["line breaks", "white space"])
def test_blank_lines_are_counted_without_a_loop_over_them(ordered_map: OrderedMap, blank: bytes) -> None:
    body = blank * (5 * 2**20 // len(blank))

    def answer(body: bytes) -> bytes:
        return answer_lines(lines_request(body, 1000), echo, ordered_map, endless()).read()

    def refuse() -> None:
        for without_a_line in (b"", body):
            with pytest.raises(BadInput):
                answer(without_a_line)

    assert lines_executed(refuse) < 10_000
    assert answer(body + b"1") == b"1"


@pytest.mark.parametrize("body", [b"", b"1", b"\n1", b" \n\r\n1 2\n\n \t\n3\n", b"\n \n", b"1\n2\r\n3"])
def test_lines_are_counted_as_they_are_split(body: bytes) -> None:
    assert count_lines(body) == len([*split(body)])


THREADS = 4
#: Items that may have been started when the work is stopped.
MAX_IN_FLIGHT = (THREADS * MAX_BATCHES_PER_THREAD + 1) * MAX_BATCH


class Work:
    """Notes the items that are started, which take a millisecond each."""

    def __init__(self) -> None:
        self.started: list[int] = []

    def __call__(self, item: int) -> int:
        self.started.append(item)
        time.sleep(0.001)
        return item


def late() -> int:
    return -1


def test_only_as_many_items_are_consumed_as_may_be_in_flight(ordered_map: OrderedMap) -> None:
    consumed: list[int] = []

    def items() -> Iterator[int]:
        for item in range(100_000):
            consumed.append(item)
            yield item

    work = Work()
    results: Any = ordered_map.run(items(), work, late, endless())
    assert [next(results) for _ in range(200)] == list(range(200))
    assert len(consumed) <= 200 + MAX_IN_FLIGHT + MAX_BATCH
    results.close()
    started = len(work.started)
    time.sleep(0.1)
    assert len(work.started) <= started + THREADS * MAX_BATCH


@pytest.mark.parametrize(("max_batch", "submitted"), [(16, 2), (1, 1)])
def test_while_others_have_requests_a_list_has_few_batches_under_way(max_batch: int, submitted: int) -> None:
    """What is submitted they wait for. An item that goes alone is a client's whole batch."""
    at_once, most, lock, company = 0, [0], threading.Lock(), [True]

    def work(_: int) -> None:
        nonlocal at_once
        with lock:
            at_once += 1
            most[-1] = max(most[-1], at_once)
        time.sleep(0.005)
        with lock:
            at_once -= 1

    with ThreadPoolExecutor(8) as pool:
        ordered_map = OrderedMap(pool, 8, lambda: company[-1])
        for is_accompanied in (True, False):
            most.append(0)
            company.append(is_accompanied)
            assert len([*ordered_map.run(range(40), work, lambda: None, endless(), max_batch)]) == 40
    with_company, alone = most[1:]
    assert with_company <= submitted and alone > 2


def test_after_the_deadline_no_item_is_started_and_every_item_has_a_result(ordered_map: OrderedMap) -> None:
    work = Work()

    class CountedDeadline(Invocation):
        """Passes when some items are started, however long that takes."""

        def remaining(self) -> float:
            return 60.0 if len(work.started) < 50 else 0.0

    results = list(ordered_map.run(range(100_000), work, late, CountedDeadline(math.inf)))
    started = set(work.started)
    # A thread may take an item before the deadline passes, and see afterwards that it has passed.
    assert results == [item if item in started else -1 for item in range(100_000)]
    assert 50 <= len(started) <= 50 + MAX_IN_FLIGHT


def test_lists_and_lists_in_lists_go_on_while_all_shared_threads_are_busy() -> None:
    with ThreadPoolExecutor(1) as pool:
        ordered_map, is_released = OrderedMap(pool, 1), threading.Event()
        pool.submit(is_released.wait)

        def total(count: int) -> int:
            return sum(ordered_map.run(range(count), Work(), late, endless()))

        lists = ordered_map.run(range(40), total, late, endless())
        assert list(lists) == [sum(range(count)) for count in range(40)]
        is_released.set()


def test_items_run_at_once() -> None:
    both = threading.Barrier(2, timeout=10)
    with ThreadPoolExecutor(2) as pool:
        met = OrderedMap(pool, 2).run(range(2), lambda _: both.wait(), late, endless())
        assert sorted(met) == [0, 1]
