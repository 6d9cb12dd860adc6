"""Answer JSON lines, which batch transform sends: each line is a request of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Executor

from sm import deadline
from sm.errors import BadInput, DeadlinePassed, TooLarge, TriremeError
from sm.router.answer import Answer, EncodedRecord, encode_failure, join_records
from sm.router.invocation import JSON, JSON_LINES, LinesRequest, Message
from sm.router.ordered import OrderedRunner


class Lines:
    """Runs the lines of a body side by side, so that Triton's dynamic batching finds something to batch.

    ``executor`` has ``threads`` of them. It must not be the one that a line's own records run on: lines that
    wait for their records would take all of its threads.
    """

    def __init__(self, executor: Executor, threads: int) -> None:
        self._runner = OrderedRunner(executor, threads)

    def run(self, request: LinesRequest, handle_line: Callable[[Message], Answer]) -> Answer:
        """The answers of ``handle_line`` in the order of the lines; ``{"error", "code"}`` where one
        failed.

        Raises the first failure where no line succeeded, and :class:`TooLarge` for too many lines.
        """
        check_count(request)
        late = encode_failure(DeadlinePassed(deadline.PASSED))
        records = self._runner.run(
            messages(request.message), lambda line: _answer(line, handle_line), lambda: late
        )
        body = join_records(records, b"\n")
        if not body:
            raise BadInput("the body has no line")
        return Answer(body, JSON_LINES)


def check_count(request: LinesRequest) -> None:
    """:class:`TooLarge` for a body of more lines than the request may have records."""
    limit, body = request.limit, request.message.body
    # Blank lines are no records, but few bodies have so many lines that it matters.
    if limit is None or body.count(b"\n") < limit.max_records:
        return
    for number, _ in enumerate(split(body), 1):
        if number > limit.max_records:
            raise TooLarge(
                f"the body has more than {limit.max_records:,} lines, which is how many are accepted",
                max_records=limit.max_records,
            )


def split(body: bytes) -> Iterator[bytes]:
    """Each line that is not blank. A million lines are not split all at once."""
    start = 0
    while start < len(body):
        end = body.find(b"\n", start)
        end = len(body) if end < 0 else end
        line = body[start:end].strip()
        start = end + 1
        if line:
            yield line


def messages(message: Message) -> Iterator[Message]:
    """Each line as a message that wants JSON."""
    headers = {**message.headers, "content-type": JSON, "accept": JSON}
    # Not with dataclasses.replace: where lines are short, it would be a tenth of all the work.
    shared_fields = (headers, message.query, message.request_id, message.model)
    for line in split(message.body):
        yield Message(line, *shared_fields)


def _answer(line: Message, handle_line: Callable[[Message], Answer]) -> EncodedRecord:
    try:
        return EncodedRecord(handle_line(line).read())
    except TriremeError as error:
        return encode_failure(error)
