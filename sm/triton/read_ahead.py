"""Read a model's stream as fast as it comes, into a bounded buffer for its caller.

Triton keeps what nobody reads, without a limit. So the router reads always, and gives up a stream whose
caller falls too far behind.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable
from typing import Generic, TypeVar

from sm.errors import StreamStalled
from sm.invocation import Invocation, wait

#: Bytes that every stream may be behind, and bytes of all streams of the process above which no stream may be
#: further behind, nor further than its equal share of them.
STREAM_BYTES, TOTAL_BYTES = 2**23, 2**25
#: Bytes that each part counts for besides its own.
PART_OVERHEAD_BYTES = 2**11

Part = TypeVar("Part")


class StreamBacklog:
    """Counts how far the callers of all streams are behind, and limits how long one may take nothing.

    Args:
        seconds: The limit. A worker sets it.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.lock, self.buffered_bytes, self.streams = threading.Lock(), 0, 0

    def add(self, size: int, streams: int = 0) -> None:
        """Count bytes in the buffers of all streams, and streams; negative when they leave."""
        with self.lock:
            self.buffered_bytes += size
            self.streams += streams


STREAM_BACKLOG = StreamBacklog(20.0)


class _Buffer(Generic[Part]):
    """The parts that were read and not yet taken."""

    def __init__(self, size_of: Callable[[Part], int]) -> None:
        self._size_of = size_of
        self._changed = threading.Condition()
        self._parts: deque[tuple[Part, int]] = deque()
        self._bytes = 0
        #: Since when the caller is further behind than every caller may be; 0 if it is not.
        self._behind_since = 0.0
        self._error: BaseException | None = None
        self._ended = False
        STREAM_BACKLOG.add(0, streams=1)

    def fill(self, source: Iterable[Part], cancel: Callable[[], object]) -> None:
        """Read ``source``, in a thread of its own; ``cancel`` it if the caller is too far behind."""
        error: BaseException | None = None
        try:
            for part in source:
                if not self._put(part):
                    return
        except BaseException as failure:  # the caller's thread raises it
            error = failure
        finally:
            if error is None and isinstance(self._error, StreamStalled):
                cancel()
            self._end(error)

    def take(self, seconds: float) -> tuple[Part, ...] | None:
        """Return the next part, nothing at the end; None if there is no part for so many seconds."""
        with self._changed:
            if not self._parts and not self._ended:
                self._changed.wait(seconds)
            if self._parts:
                part, size = self._parts.popleft()
                self._count(-size)
                return (part,)
            if self._ended and self._error is not None:
                raise self._error
            return () if self._ended else None

    def close(self) -> None:
        """Drop what was not taken, and everything that still comes."""
        with self._changed:
            self._ended = True
            self._drop()
        STREAM_BACKLOG.add(0, streams=-1)

    def _put(self, part: Part) -> bool:
        """Add a part; False if no more is wanted."""
        size = self._size_of(part) + PART_OVERHEAD_BYTES
        with self._changed:
            if self._ended:
                return False
            self._parts.append((part, size))
            self._count(size)
            if self._is_too_far_behind():
                self._drop()
                self._error = StreamStalled(
                    "the stream was ended, because its caller takes it more slowly than the model answers"
                )
            self._changed.notify()
            return self._error is None

    def _is_too_far_behind(self) -> bool:
        # A caller that takes every part at once never has two of them to take, however large they are.
        if STREAM_BACKLOG.buffered_bytes > TOTAL_BYTES and len(self._parts) > 1:
            return self._bytes > min(STREAM_BYTES, TOTAL_BYTES // STREAM_BACKLOG.streams)
        return bool(self._behind_since) and time.monotonic() - self._behind_since > STREAM_BACKLOG.seconds

    def _count(self, size: int) -> None:
        self._bytes += size
        STREAM_BACKLOG.add(size)
        if self._bytes <= STREAM_BYTES:
            self._behind_since = 0.0
        else:
            self._behind_since = self._behind_since or time.monotonic()

    def _drop(self) -> None:
        self._parts.clear()
        self._count(-self._bytes)

    def _end(self, error: BaseException | None) -> None:
        with self._changed:
            self._error = self._error or error
            self._ended = True
            self._changed.notify()


def read_ahead(
    source: Iterable[Part],
    size_of: Callable[[Part], int],
    cancel: Callable[[], object],
    invocation: Invocation | None,
    check: Callable[[], object] | None = None,
) -> Generator[Part, None, None]:
    """Yield the parts of ``source``, which another thread reads.

    Args:
        source: Blocks until the next part.
        size_of: Returns a part's bytes.
        cancel: Makes ``source`` end soon. It may be called from any thread, more than once.
        invocation: The one that takes the parts; see :func:`sm.invocation.wait`.
        check: Called while it waits for a part; may raise.

    Raises:
        StreamStalled: The caller is too far behind.
        DeadlinePassed, CallerGone: The invocation ended first.
    """
    buffer: _Buffer[Part] = _Buffer(size_of)
    thread = threading.Thread(target=buffer.fill, args=(source, cancel), name="read-ahead", daemon=True)
    thread.start()
    try:
        while taken := wait(buffer.take, invocation, check):
            yield taken[0]
    finally:
        cancel()
        buffer.close()
        # After this, nothing reads the source or looks at the caller's connection.
        thread.join()
