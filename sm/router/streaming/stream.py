"""An answer whose parts are still being produced, and the resources that stay open until it ends."""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager


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
        self._context.run(self._chunks.close)


def finish(chunks: object) -> None:
    """Close a generator or a :class:`Stream` that was not read to its end."""
    close = getattr(chunks, "close", None)
    if close:
        close()


def _within(
    chunks: Iterator[bytes], resources: AbstractContextManager[object], sent: Callable[[bytes], object]
) -> Generator[bytes, None, None]:
    with resources:
        try:
            for chunk in chunks:
                yield chunk
                sent(chunk)
        finally:
            finish(chunks)
