"""JSON lines, what batch transform sends: each is a request of its own, its answer the line in its place."""

from __future__ import annotations

import contextvars
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from dataclasses import replace

from sm.answer import Answer, dumps
from sm.errors import BadInput, TriremeError
from sm.invocation import JSON, JSON_LINES, Message

#: Lines that are begun before the first of them has its answer, by thread.
AHEAD = 4


class Lines:
    """Runs the lines of a body side by side, so that Triton's dynamic batching finds something to batch.

    ``executor`` has ``threads`` of them. It must not be the one that a line's own records run on: lines that
    wait for their records would take all of its threads.
    """

    def __init__(self, executor: Executor, threads: int) -> None:
        self._executor, self._most = executor, AHEAD * threads

    def run(self, message: Message, one: Callable[[Message], Answer]) -> Answer:
        """The answers of ``one`` in the order of the lines; ``{"error", "code"}`` for a line that failed.

        Raises the first failure where no line succeeded.
        """
        answers = list(self._in_order(message, one))
        failures = [answer for answer in answers if isinstance(answer, TriremeError)]
        if not answers:
            raise BadInput("the body has no line")
        if len(failures) == len(answers):
            raise failures[0]
        return Answer(b"\n".join(map(_line, answers)), JSON_LINES)

    def _in_order(
        self, message: Message, one: Callable[[Message], Answer]
    ) -> Iterator[Answer | TriremeError]:
        """No more than so many at a time: a body may have a million lines."""
        waiting: deque[Future[Answer | TriremeError]] = deque()
        for request in requests(message):
            waiting.append(self._executor.submit(contextvars.copy_context().run, _answer, request, one))
            if len(waiting) == self._most:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def requests(message: Message) -> Iterator[Message]:
    """Each line that is not blank as a request that wants JSON. A million lines are not split all at once."""
    headers = {**message.headers, "content-type": JSON, "accept": JSON}
    start = 0
    while start < len(message.body):
        end = message.body.find(b"\n", start)
        end = len(message.body) if end < 0 else end
        line = message.body[start:end].strip()
        start = end + 1
        if line:
            yield replace(message, body=line, headers=headers)


def _answer(request: Message, one: Callable[[Message], Answer]) -> Answer | TriremeError:
    try:
        return one(request)
    except TriremeError as error:
        return error


def _line(answer: Answer | TriremeError) -> bytes:
    if isinstance(answer, TriremeError):
        return dumps({"error": answer.sentence, "code": answer.code, **answer.details})
    return answer.whole()
