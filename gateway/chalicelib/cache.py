"""A cache of answers by the content of their requests: least recently used, bounded in bytes and in age."""

from __future__ import annotations

import hashlib
import threading
import time
from collections import OrderedDict
from collections.abc import Callable

#: Seconds after which an answer is computed again, as another gateway may have loaded a new model.
MAX_AGE_S = 300.0


class Cache:
    """Bytes by hash, for all threads of a process. ``limit`` is in bytes; 0 switches the cache off."""

    def __init__(self, limit: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit, self._clock = limit, clock
        self._entries: OrderedDict[str, tuple[float, bytes]] = OrderedDict()
        self._size = 0
        self._lock = threading.Lock()

    @staticmethod
    def name(*parts: bytes) -> str:
        """Hash everything that an answer depends on. The length of each part is hashed with it."""
        digest = hashlib.sha256()
        for part in parts:
            digest.update(len(part).to_bytes(8, "big"))
            digest.update(part)
        return digest.hexdigest()

    def get(self, name: str) -> bytes | None:
        with self._lock:
            stored_at, answer = self._entries.get(name, (0.0, None))
            if answer is None:
                return None
            if self._clock() - stored_at > MAX_AGE_S:
                self._drop(name)
                return None
            self._entries.move_to_end(name)
            return answer

    def put(self, name: str, answer: bytes) -> None:
        """Store an answer, unless it alone is larger than the limit."""
        if len(answer) > self._limit:
            return
        with self._lock:
            self._drop(name)
            self._entries[name] = (self._clock(), answer)
            self._size += len(answer)
            while self._size > self._limit:
                self._drop(next(iter(self._entries)))

    def clear(self) -> None:
        with self._lock:
            self._entries.clear()
            self._size = 0

    @property
    def is_on(self) -> bool:
        return self._limit > 0

    def _drop(self, name: str) -> None:
        _, answer = self._entries.pop(name, (0.0, b""))
        self._size -= len(answer)
