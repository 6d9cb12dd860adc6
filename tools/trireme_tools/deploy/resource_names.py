"""Names that identify content: the same content has the same name, so no run creates it twice."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

from sm.errors import CommandError

#: The tag of a deployment's resources, and the tag with a configuration's predecessor.
TAG, PREVIOUS = "trireme:deployment", "trireme:previous"
#: SageMaker's names have up to 63 characters, of which a hyphen and the hash take some.
HASH_LENGTH, MAX_LENGTH = 12, 63 - 12 - 1
#: Archives are uploaded below this prefix.
KEY_PREFIX = "trireme"
VARIANT, SHADOW = "AllTraffic", "shadow"


def check(name: str) -> str:
    """Return the name if SageMaker accepts it. Raises :class:`CommandError`."""
    if len(name) > MAX_LENGTH or not re.fullmatch(r"[a-zA-Z0-9](-*[a-zA-Z0-9])*", name):
        raise CommandError(
            f"{name!r} cannot be a deployment's name: letters, digits and single hyphens between them, "
            f"at most {MAX_LENGTH} characters."
        )
    return name


def add_hash(name: str, content: Any) -> str:
    """Return ``NAME-<12 digits of the content's SHA-256>``; ``content`` is any JSON value."""
    text = json.dumps(content, sort_keys=True)
    return f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:HASH_LENGTH]}"


def is_own(name: str, candidate: str) -> bool:
    """True if :func:`add_hash` created the name for this deployment."""
    return bool(re.fullmatch(rf"{re.escape(name)}-[0-9a-f]{{{HASH_LENGTH}}}", candidate))
