"""An answer whose parts are still being produced, and the contexts that stay open until it ends."""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager


class Stream:
    """The chunks of one answer, each made when it is asked for; the first is made at once.

    So whatever fails before there is anything to send is raised by the constructor, and becomes an ordinary
    error. The rest is made in the context the stream was begun in: the invocation's deadline is in it.
    ``held`` is left when the stream ends, however it ends; ``sent`` is called with each chunk after it.
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
        """Stop producing chunks: the caller has all of them, or is gone."""
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
