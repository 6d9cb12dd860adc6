"""A canary: a new version of a model that gets a share of the requests."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from sm.invocation import Invocation

#: The version that serves, and the one that gets a share of the requests.
STABLE, CANARY = "stable", "canary"


@dataclass(frozen=True)
class Canary:
    """The share of the requests that a new version gets, before it is promoted or rolled back."""

    percent: int
    #: True if the box decides by errors and times.
    auto: bool
    #: When it began, in seconds since 1970. Older sessions stay on the old version.
    since: float
    #: What had been counted then, see :mod:`sm.control.canary`.
    counted: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def takes(self, key: str) -> bool:
        """True if the new version gets the request, or the session, with this id."""
        digest = hashlib.blake2b(key.encode(errors="replace"), digest_size=8).digest()
        return int.from_bytes(digest, "big") % 100 < self.percent

    def is_for(self, request: Invocation) -> bool:
        """True if the new version gets this request: the same for all of one id, or of one session."""
        if request.session is None:
            return self.takes(request.request_id)
        return request.session.opened >= self.since and self.takes(request.session.id)
