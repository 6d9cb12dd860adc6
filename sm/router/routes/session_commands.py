"""Open, resolve and close stateful sessions by the platform's headers and bodies."""

from __future__ import annotations

import time

import orjson

from sm.client.sessions import Session, Sessions
from sm.errors import BadInput
from sm.router.answer import Answer
from sm.router.invocation import HEADER_PREFIX, Message

HEADER = f"{HEADER_PREFIX}session-id"
NEW, CLOSE = "NEW_SESSION", "CLOSE"
ANSWERED, OPENED, CLOSED = (
    "X-Amzn-SageMaker-Session-Id",
    "X-Amzn-SageMaker-New-Session-Id",
    "X-Amzn-SageMaker-Closed-Session-Id",
)
#: Bytes: a body that opens or closes a session is no longer.
MAX_COMMAND_BYTES = 1024


def resolve_session(sessions: Sessions | None, message: Message) -> Answer | Session | None:
    """The session that a request belongs to, if any; the answer, where it is about the session itself.

    :class:`BadInput` where there is no such session, or sessions are off.
    """
    identity = message.headers.get(HEADER)
    if identity is None:
        return None
    if sessions is None:
        raise BadInput("stateful sessions are off; SAGEMAKER_ENABLE_STATEFUL_SESSIONS=true turns them on")
    asked = request_type(message.body)
    if identity == NEW:
        if asked != NEW:
            raise BadInput(f'a new session is opened by the body {{"requestType":"{NEW}"}} and no other')
        return _session_opened(sessions.open())
    if asked is None:
        return sessions.get(identity)
    if asked != CLOSE:
        raise BadInput(f"requestType {str(asked)[:64]!r} is for no session that is open; there is {CLOSE}")
    sessions.close(identity)
    return Answer(b"{}", headers={CLOSED: identity})


def request_type(body: bytes) -> object:
    """What a body of nothing but ``{"requestType": ...}`` wants; None for any other."""
    if len(body) > MAX_COMMAND_BYTES or b'"requestType"' not in body:
        return None
    try:
        said = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    return said["requestType"] if isinstance(said, dict) and said.keys() == {"requestType"} else None


def _session_opened(session: Session) -> Answer:
    until = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(session.expires))
    return Answer(b"{}", headers={ANSWERED: session.id, OPENED: f"{session.id}; Expires={until}"})
