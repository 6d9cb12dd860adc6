"""Limit the requests per second of each API key with a token bucket."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from sm.server.access.keys import ApiKey


class TokenBucket:
    """``rate`` requests per second, and up to ``burst`` at once after a pause."""

    def __init__(self, rate: float, burst: int, now: float) -> None:
        self.rate, self.burst = rate, burst
        self._tokens, self._updated = float(burst), now

    def take(self, now: float) -> float:
        """Count a request if it is allowed. Returns the seconds to wait; 0 if it is allowed."""
        self._tokens = min(self.burst, self._tokens + (now - self._updated) * self.rate)
        self._updated = now
        if self._tokens >= 1:
            self._tokens -= 1
            return 0.0
        return (1 - self._tokens) / self.rate


class RateLimits:
    """The buckets of all keys. Their number does not depend on what callers send."""

    def __init__(self, rate: float, burst: int, clock: Callable[[], float]) -> None:
        """``rate`` (0: no limit) and ``burst`` (0: one second's requests) are for keys without their own."""
        self._rate, self._burst, self._clock = rate, burst, clock
        self._buckets: dict[str, TokenBucket] = {}

    def replace_keys(self, keys: Iterable[ApiKey]) -> None:
        """Limit exactly these keys. A bucket keeps its tokens if its limit is unchanged."""
        now, before = self._clock(), self._buckets
        self._buckets = {}
        for key in keys:
            rate = self._rate if key.rate is None else key.rate
            if not rate:
                continue
            # The settings' burst goes with the settings' rate only.
            burst = key.burst or (self._burst if key.rate is None else 0) or math.ceil(rate)
            bucket = before.get(key.name)
            same = bucket is not None and (bucket.rate, bucket.burst) == (rate, burst)
            self._buckets[key.name] = bucket if bucket and same else TokenBucket(rate, burst, now)

    def seconds_to_wait(self, name: str) -> int:
        """Count a use of the key if it is allowed. Returns whole seconds to wait; 0 if it is allowed."""
        bucket = self._buckets.get(name)
        return math.ceil(bucket.take(self._clock())) if bucket else 0
