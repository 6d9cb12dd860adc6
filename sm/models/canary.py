"""A canary: a new version of a model that gets a share of the requests."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from sm.invocation import Invocation

#: The version that serves, and the one that gets a share of the requests.
STABLE, CANARY = "stable", "canary"


def says_failed(status: int) -> bool | None:
    """Return whether an answer of this status is a version's failure; None if it says nothing of it.

    A caller can make as many 4xx as it likes, and 429 is a full box.
    """
    return {2: False, 5: True}.get(status // 100)


@dataclass(frozen=True)
class Canary:
    """The share of the requests that a new version gets, before it is promoted or rolled back."""

    percent: int
    #: True if the box decides by errors and times.
    auto: bool
    #: When it began, in seconds since 1970. Older sessions stay on the old version.
    since: float
    #: A secret, so that callers cannot choose ids that the new version gets. All workers read it.
    salt: str = ""
    #: What the judge had counted by that time, see :mod:`sm.models.versions`.
    counted: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def takes(self, key: str) -> bool:
        """True if the new version gets the request, or the session, with this id."""
        digest = hashlib.blake2b(
            key.encode(errors="replace"), digest_size=8, key=bytes.fromhex(self.salt)
        ).digest()
        return int.from_bytes(digest, "big") % 100 < self.percent

    def is_for(self, invocation: Invocation) -> bool:
        """True if the new version gets this request: the same for all of one id, or of one session."""
        if invocation.session is None:
            return self.takes(invocation.request_id)
        return invocation.session.opened >= self.since and self.takes(invocation.session.id)
