"""Names that say what a thing is: the same content has the same name, so that no run makes it twice."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

from sm.errors import StartError

#: The tag by which a deployment's things are known, and that of a configuration's predecessor.
TAG, PREVIOUS = "trireme:deployment", "trireme:previous"
#: SageMaker's names have 63 characters; a hyphen and the hash take some.
HASH, LONGEST = 12, 63 - 12 - 1
VARIANT = "AllTraffic"


def check(name: str) -> str:
    """The name, if SageMaker takes it; else :class:`StartError`."""
    if len(name) > LONGEST or not re.fullmatch(r"[a-zA-Z0-9](-*[a-zA-Z0-9])*", name):
        raise StartError(
            f"{name!r} cannot be a deployment's name: letters, digits and single hyphens between them, "
            f"at most {LONGEST} characters."
        )
    return name


def hashed(name: str, content: Any) -> str:
    """``NAME-<12 digits of the content's SHA-256>``; ``content`` is anything that JSON takes."""
    text = json.dumps(content, sort_keys=True)
    return f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:HASH]}"


def is_own(name: str, found: str) -> bool:
    """Whether ``found`` is a name that :func:`hashed` gave to this deployment."""
    return bool(re.fullmatch(rf"{re.escape(name)}-[0-9a-f]{{{HASH}}}", found))
