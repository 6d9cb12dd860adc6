"""The memory of a body's parsed form."""

from __future__ import annotations

from sm.client.decode_budget import bytes_of_json, bytes_of_marks
from sm.http.messages import CSV, JSON, LARGE_BODY_BYTES
from sm.router.forms.v2 import OBJECT
from sm.router.request_types import Message


def estimate_parsed_bytes(message: Message) -> int:
    """Estimate the memory of a large body's parsed JSON or CSV; 0 for other bodies.

    It is not part of the classification, because it decides whether the body may be parsed now.
    """
    body = message.body
    if len(body) < LARGE_BODY_BYTES:
        return 0
    if message.kind == JSON or OBJECT.match(body):
        return bytes_of_json(body)
    return bytes_of_marks(body.count(b",") + body.count(b"\n")) if message.kind == CSV else 0
