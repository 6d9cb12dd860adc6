"""JSON lines: a line in, a line out, in order, whatever becomes of one of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from sm.errors import BadInput, TooLarge, UnknownModel
from sm.router.answer import Answer
from sm.router.invocation import JSON_LINES, LinesRequest, Message, RecordLimit
from sm.router.lines import Lines, messages


@pytest.fixture
def lines() -> Iterator[Lines]:
    with ThreadPoolExecutor(4) as pool:
        yield Lines(pool, 4)


def message(body: bytes) -> Message:
    return Message(body, {"content-type": JSON_LINES, "accept": "image/png"}, {}, "id")


def request(body: bytes, limit: RecordLimit | None = None) -> LinesRequest:
    return LinesRequest(message(body), limit=limit)


def echo(line: Message) -> Answer:
    if line.body == b"bad":
        raise BadInput("bad line", field="payload")
    return Answer(line.body)


def test_answers_are_in_the_order_of_the_lines_whatever_is_done_first(lines: Lines) -> None:
    def slow(line: Message) -> Answer:
        time.sleep(0.05 if line.body == b"0" else 0)
        return Answer(line.body)

    body = b"\n".join(str(number).encode() for number in range(200))
    answer = lines.run(request(body), slow)
    assert (answer.body, answer.content_type) == (body, JSON_LINES)


def test_blank_lines_and_carriage_returns_are_no_requests() -> None:
    asked = list(messages(message(b"\r\n1\r\n\n  \n2\n")))
    assert [line.body for line in asked] == [b"1", b"2"]
    assert asked[0].content_type == "application/json"
    assert asked[0].headers["accept"] == "application/json"


def test_a_line_that_fails_has_its_error_in_its_place(lines: Lines) -> None:
    answer = lines.run(request(b"1\nbad\n3"), echo)
    assert answer.body == b'1\n{"error":"bad line","code":"bad_input","field":"payload"}\n3'


def test_where_all_lines_fail_the_first_error_is_the_answer(lines: Lines) -> None:
    def fails(line: Message) -> Answer:
        raise UnknownModel(f"no {line.body.decode()}")

    with pytest.raises(UnknownModel, match="no a"):
        lines.run(request(b"a\nb"), fails)


@pytest.mark.parametrize("body", [b"", b"\n \n"])
def test_a_body_without_a_line_is_an_error(lines: Lines, body: bytes) -> None:
    with pytest.raises(BadInput, match="no line"):
        lines.run(request(body), echo)


def test_more_lines_than_are_accepted_are_refused_unread_and_blank_ones_do_not_count(lines: Lines) -> None:
    body = b"\n\n1\n\n2\n\n3"
    assert lines.run(request(body, RecordLimit(3)), echo).body == b"1\n2\n3"
    answered: list[Message] = []

    def notes(line: Message) -> Answer:
        answered.append(line)
        return Answer(b"")

    with pytest.raises(TooLarge, match="more than 2 lines"):
        lines.run(request(body, RecordLimit(2)), notes)
    assert answered == []


def test_no_more_lines_are_begun_than_a_few_for_each_thread() -> None:
    stopped = threading.Event()
    answered: list[bytes] = []

    class Counting(ThreadPoolExecutor):
        begun = 0

        def submit(self, *arguments: Any, **options: Any) -> Any:
            self.begun += 1
            return super().submit(*arguments, **options)

    def waits(line: Message) -> Answer:
        stopped.wait(10)
        answered.append(line.body)
        return Answer(line.body)

    with Counting(2) as pool:
        runner = threading.Thread(target=lambda: Lines(pool, 2).run(request(b"1\n" * 1000), waits))
        runner.start()
        time.sleep(0.2)
        assert pool.begun == 2
        stopped.set()
        runner.join(10)
    assert len(answered) == 1000
