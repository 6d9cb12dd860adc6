"""What the supervisor and gunicorn's master ask Triton: over HTTP, so that they need no gRPC.

Short time-outs throughout: whoever asks must go on whether or not Triton answers. ``keys`` are the headers
that open restricted APIs.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from sm.box import CODE

SECONDS = 2.0
#: Where no API is restricted.
NO_KEYS: Mapping[str, str] = MappingProxyType({})


def ready(http_port: int, keys: Mapping[str, str] = NO_KEYS) -> bool:
    """Whether Triton listens and all of its models are loaded."""
    status, _ = _ask(http_port, keys, "GET", "/v2/health/ready")
    return status == 200


def live(http_port: int, keys: Mapping[str, str] = NO_KEYS) -> bool:
    """Whether Triton answers, whatever its models do."""
    status, _ = _ask(http_port, keys, "GET", "/v2/health/live")
    return status == 200


def failures(http_port: int, keys: Mapping[str, str] = NO_KEYS) -> dict[str, str]:
    """Why a model is not served, by its name. Empty if all are, or if Triton does not answer (yet)."""
    _, rows = _ask(http_port, keys, "POST", "/v2/repository/index")
    return {
        row["name"]: _sentence(row.get("reason", ""))
        for row in rows or []
        if row.get("state") not in ("READY", "LOADING") and row["name"] != CODE
    }


def regions(http_port: int, keys: Mapping[str, str] = NO_KEYS) -> list[str]:
    """Names of the shared-memory regions that Triton has mapped."""
    _, rows = _ask(http_port, keys, "GET", "/v2/systemsharedmemory/status")
    return [row["name"] for row in rows or []]


def unregister(http_port: int, region: str, keys: Mapping[str, str] = NO_KEYS) -> bool:
    """Have Triton let go of a region. It refuses, and this is False, while a request uses it."""
    status, _ = _ask(http_port, keys, "POST", f"/v2/systemsharedmemory/region/{region}/unregister")
    return status == 200


def _ask(http_port: int, keys: Mapping[str, str], method: str, path: str) -> tuple[int, Any]:
    """Status and parsed body; status 0 if Triton cannot be reached, None for a body that is not JSON."""
    connection = http.client.HTTPConnection("127.0.0.1", http_port, timeout=SECONDS)
    try:
        connection.request(method, path, headers=dict(keys))
        answer = connection.getresponse()
        body = answer.read()
    except (OSError, http.client.HTTPException):
        return 0, None
    finally:
        connection.close()
    try:
        return answer.status, json.loads(body) if answer.status == 200 and body else None
    except ValueError:
        return answer.status, None


def _sentence(reason: str) -> str:
    """The first paragraph: what follows is a traceback, which Triton's own log has."""
    return " ".join(reason.partition("\n\nAt:")[0].split()) or "Triton gives no reason"
