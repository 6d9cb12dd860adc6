"""An answer whose parts are still being produced, with what must stay open until it ends."""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager


class Stream:
    """The chunks of one answer, each made when it is asked for; the first is made at once.

    So whatever fails before there is anything to send is raised by the constructor, and becomes an ordinary
    error. The rest is made in the context the stream was begun in: the invocation's deadline is in it.
    ``held`` is left when the stream ends, however it ends; ``sent`` is called after each chunk.
    """

    def __init__(
        self, chunks: Iterator[bytes], held: AbstractContextManager[object], sent: Callable[[], object]
    ) -> None:
        self._context = contextvars.copy_context()
        self._chunks = _within(chunks, held, sent)
        self._first: bytes | None = self._context.run(next, self._chunks, None)

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        chunk, self._first = self._first, None
        return self._context.run(next, self._chunks) if chunk is None else chunk

    def close(self) -> None:
        """Make no more chunks: the caller has all, or has gone."""
        self._first = None
        self._context.run(self._chunks.close)


def finish(chunks: object) -> None:
    """Close what a loop over it, left early, would leave open: a generator or a :class:`Stream`."""
    close = getattr(chunks, "close", None)
    if close:
        close()


def _within(
    chunks: Iterator[bytes], held: AbstractContextManager[object], sent: Callable[[], object]
) -> Generator[bytes, None, None]:
    with held:
        try:
            for chunk in chunks:
                yield chunk
                sent()
        finally:
            finish(chunks)
