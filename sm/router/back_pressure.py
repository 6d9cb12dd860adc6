"""The chunks of a streamed answer; a caller who takes them too slowly ends it."""

from __future__ import annotations

import contextlib
import contextvars
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager

from sm.errors import StreamStalled
from sm.triton.read_ahead import STREAM_BACKLOG

#: Bytes a second that a caller must take who has held the stream up for as long as it may: 128 kbit/s.
MIN_RATE = 2**14


class Stream:
    """The chunks of one answer. The constructor produces the first one; iteration produces the others.

    So an error before the first chunk is raised by the constructor, and becomes an ordinary error answer. All
    chunks are produced in the constructor's context, because it holds the invocation's deadline.

    Args:
        chunks: Produces the answer.
        resources: Entered before the first chunk and left when the stream ends, however it ends.
        sent: Called with each chunk when it was sent.
    """

    def __init__(
        self,
        chunks: Iterator[bytes],
        resources: AbstractContextManager[object],
        sent: Callable[[bytes], object],
    ) -> None:
        self._context = contextvars.copy_context()
        self._chunks = _within(chunks, resources, sent)
        self._first: bytes | None = self._context.run(next, self._chunks, None)

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        chunk, self._first = self._first, None
        return self._context.run(next, self._chunks) if chunk is None else chunk

    def close(self) -> None:
        """Stop producing chunks: the caller has all of them, or has disconnected."""
        self._first = None
        with contextlib.suppress(StreamStalled):  # nobody is left to read it
            self._context.run(self._chunks.close)


def finish(chunks: object) -> None:
    """Close a generator or a :class:`Stream` that was not read to its end."""
    close = getattr(chunks, "close", None)
    if close:
        close()


@contextlib.contextmanager
def finishing(chunks: object) -> Iterator[None]:
    """Close a generator or a :class:`Stream` when the block ends, however it ends."""
    try:
        yield
    finally:
        finish(chunks)


def _within(
    chunks: Iterator[bytes], resources: AbstractContextManager[object], sent: Callable[[bytes], object]
) -> Generator[bytes, None, None]:
    taken, held_up = 0, 0.0
    with resources, finishing(chunks):
        for chunk in chunks:
            handed = time.monotonic()
            try:
                yield chunk
            except GeneratorExit:
                # nginx may have closed the connection a moment before, for the same reason.
                if time.monotonic() - handed < STREAM_BACKLOG.seconds / 2:
                    raise
                raise StreamStalled("the caller took nothing, so the stream was ended") from None
            sent(chunk)
            taken += len(chunk)
            held_up += time.monotonic() - handed
            if held_up > STREAM_BACKLOG.seconds + taken / MIN_RATE:
                raise StreamStalled("the caller takes the stream too slowly, so it was ended")
