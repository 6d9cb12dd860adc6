"""Ask Triton over plain HTTP whether it is ready, for processes that load no gRPC.

Short time-outs throughout: whoever asks must go on whether or not Triton answers. ``keys`` are the headers
that open restricted APIs.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from sm.run_state import CODE

REQUEST_TIMEOUT_S = 2.0
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


def request(
    http_port: int, keys: Mapping[str, str], method: str, path: str, seconds: float = REQUEST_TIMEOUT_S
) -> tuple[int, bytes]:
    """Status and body of one of Triton's own routes; status 0 if it gives no answer that can be read in time.

    The connection is used once: nothing of this answer can become another's.
    """
    connection = http.client.HTTPConnection("127.0.0.1", http_port, timeout=seconds)
    try:
        connection.request(method, path, headers=dict(keys))
        answer = connection.getresponse()
        return answer.status, answer.read()
    except (OSError, http.client.HTTPException):
        return 0, b""
    finally:
        connection.close()


def _ask(http_port: int, keys: Mapping[str, str], method: str, path: str) -> tuple[int, Any]:
    """Status and parsed body; status 0 if Triton cannot be reached, None for a body that is not JSON."""
    status, body = request(http_port, keys, method, path)
    try:
        return status, json.loads(body) if status == 200 and body else None
    except ValueError:
        return status, None


def _sentence(reason: str) -> str:
    """The first paragraph: what follows is a traceback, which Triton's own log has."""
    return " ".join(reason.partition("\n\nAt:")[0].split()) or "Triton gives no reason"
