"""Answer JSON lines, which batch transform sends: each line is a request of its own."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from sm import deadline
from sm.errors import BadInput, DeadlinePassed, TooLarge, TriremeError
from sm.http.messages import JSON, JSON_LINES, Answer
from sm.router.admission import Admission
from sm.router.answer import EncodedRecord, encode_failure, join_records
from sm.router.invocation import LinesRequest, Message
from sm.router.ordered import OrderedRunner

#: The first byte of a line that is not blank.
NOT_BLANK = re.compile(rb"\S")
#: Lines that are counted between two checks of the deadline.
CHECK_INTERVAL = 2**14


def answer_lines(
    request: LinesRequest,
    answer_line: Callable[[Message], Answer],
    runner: OrderedRunner,
    slot: Admission | None = None,
) -> Answer:
    """Answer each line, in order and several at a time; a line that failed gets ``{"error", "code"}``.

    Args:
        request: The lines.
        answer_line: Answers one.
        runner: Runs the lines. It must not have the executor of the records: lines that wait for their
            records could take all of its threads.
        slot: That of the request.

    Raises:
        TooLarge: The body has too many lines.
        TriremeError: The first failure, if no line succeeded.
    """
    check_count(request)
    deadline_failure = encode_failure(DeadlinePassed(deadline.PASSED))

    def answer(line: Message) -> EncodedRecord:
        with deadline.part("record") as record:
            try:
                return EncodedRecord(answer_line(line).read())
            except TriremeError as error:
                record.fail(error)
                return encode_failure(error)

    records = runner.run(messages(request.message), answer, lambda: deadline_failure, slot)
    body = join_records(records, b"\n")
    if not body:
        raise BadInput("the body has no line")
    return Answer(body, JSON_LINES)


def check_count(request: LinesRequest) -> None:
    """Raise :class:`TooLarge` if the body has more lines than the request may have records."""
    limit, body = request.limit, request.message.body
    # Counting line breaks is fast, and usually enough: only blank lines make it too high.
    if limit is None or body.count(b"\n") < limit.max_records:
        return
    running = deadline.current()
    for number, _ in enumerate(split(body), 1):
        if number > limit.max_records:
            raise TooLarge(
                f"the body has more than {limit.max_records:,} lines, the most that are accepted",
                max_records=limit.max_records,
            )
        if running is not None and number % CHECK_INTERVAL == 0:
            running.check()


def split(body: bytes) -> Iterator[bytes]:
    """Yield each line that is not blank, one by one: a list of a million lines would take much memory."""
    end = 0
    # Blank lines are skipped in one search, because a loop over 25 MB of them takes seconds.
    while first := NOT_BLANK.search(body, end):
        start = first.start()
        end = body.find(b"\n", start)
        end = len(body) if end < 0 else end
        yield body[start:end].rstrip()


def messages(message: Message) -> Iterator[Message]:
    """Yield each line as a message that accepts JSON."""
    headers = {**message.headers, "content-type": JSON, "accept": JSON}
    # Not with _replace: for short lines that would be a tenth of all the work.
    shared_fields = (headers, message.query, message.request_id, message.model)
    for line in split(message.body):
        yield Message(line, *shared_fields)
