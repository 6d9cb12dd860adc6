"""Query Triton's state over plain HTTP, for processes that do not load gRPC.

All time-outs are short, because the caller must go on whether or not Triton answers. ``keys`` are the HTTP
headers for restricted APIs.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any
from urllib.parse import quote

from sm.run_state import CODE

REQUEST_TIMEOUT_S = 2.0
#: The headers if no API is restricted.
NO_KEYS: Mapping[str, str] = MappingProxyType({})


def ready(http_port: int, keys: Mapping[str, str] = NO_KEYS) -> bool:
    """True if Triton accepts connections and all of its models are loaded."""
    status, _ = _query(http_port, keys, "GET", "/v2/health/ready")
    return status == 200


def live(http_port: int, keys: Mapping[str, str] = NO_KEYS) -> bool:
    """True if Triton answers, whatever state its models are in."""
    status, _ = _query(http_port, keys, "GET", "/v2/health/live")
    return status == 200


def failures(http_port: int, keys: Mapping[str, str] = NO_KEYS) -> dict[str, str]:
    """Return the reasons why models are not served, by model; empty if Triton does not answer."""
    _, rows = _query(http_port, keys, "POST", "/v2/repository/index")
    return {
        row["name"]: _sentence(row.get("reason", ""))
        for row in rows or []
        if row.get("state") not in ("READY", "LOADING") and row["name"] != CODE
    }


def regions(http_port: int, keys: Mapping[str, str] = NO_KEYS) -> list[str]:
    """Return the names of the shared-memory regions that Triton has mapped."""
    _, rows = _query(http_port, keys, "GET", "/v2/systemsharedmemory/status")
    return [row["name"] for row in rows or []]


def unregister(http_port: int, region: str, keys: Mapping[str, str] = NO_KEYS) -> bool:
    """Make Triton unmap a region. Returns False if a request still uses it."""
    status, _ = _query(http_port, keys, "POST", f"/v2/systemsharedmemory/region/{region}/unregister")
    return status == 200


def last_end(http_port: int, model: str, keys: Mapping[str, str] = NO_KEYS) -> float | None:
    """Return when a model last ended an execution, whatever came of it, as time of day.

    It is 0 if it never did, or is not served any more; None if Triton does not answer.
    """
    status, answer = _query(http_port, keys, "GET", f"/v2/models/{quote(model, safe='')}/stats")
    rows = answer["model_stats"] if answer else []
    return max((row["last_inference"] / 1000 for row in rows), default=0.0) if status else None


def request(
    http_port: int, keys: Mapping[str, str], method: str, path: str, seconds: float = REQUEST_TIMEOUT_S
) -> tuple[int, bytes]:
    """Call one of Triton's routes; return status and body. Status 0 means no readable answer in time.

    Each call has a connection of its own, so that no bytes of an answer can reach another call.
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


def _query(http_port: int, keys: Mapping[str, str], method: str, path: str) -> tuple[int, Any]:
    """Call one of Triton's routes; return status and parsed body. The body is None if it is not JSON."""
    status, body = request(http_port, keys, method, path)
    try:
        return status, json.loads(body) if status == 200 and body else None
    except ValueError:
        return status, None


def _sentence(reason: str) -> str:
    """Return a reason without its traceback, which is in Triton's log."""
    return " ".join(reason.partition("\n\nAt:")[0].split()) or "Triton gives no reason"
