"""API keys. Only their hashes are known here, and none of a key is ever logged."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sm.errors import BadInput, Forbidden

from .failures import Unauthorized

HEADER = "x-api-key"


def presented_key(event: Mapping[str, Any]) -> str:
    """Return the key in a request's event of API Gateway; empty if it has none.

    Raises:
        BadInput: The header is there twice: which of the two counts would be anybody's guess.
    """
    single = {name: [value] for name, value in (event.get("headers") or {}).items()}
    headers: Mapping[str, list[str]] = event.get("multiValueHeaders") or single
    keys = [value for name, values in headers.items() if name.lower() == HEADER for value in values]
    if len(keys) > 1:
        raise BadInput(f"the request has {len(keys)} headers {HEADER}: send one")
    return keys[0] if keys else ""


@dataclass(frozen=True)
class Keys:
    """SHA-256 hashes by the keys' owners. Keys are long and random, so a slow hash has no advantage."""

    hashes: Mapping[str, str]

    def owner(self, key: str) -> str:
        """Return the owner of a key.

        Raises :class:`Unauthorized` without a key, and :class:`Forbidden` for a wrong one.

        Every hash is compared, each in constant time, so that the duration reveals nothing.
        """
        if not key:
            raise Unauthorized(f"the request has no {HEADER} header")
        digest = hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()
        owners = [name for name, key_hash in self.hashes.items() if hmac.compare_digest(key_hash, digest)]
        if not owners:
            raise Forbidden("the API key is not known")
        return owners[0]
