"""Read, and run, what opens and closes a stateful session."""

from __future__ import annotations

import time

import orjson

from sm.client.sessions import Sessions
from sm.errors import BadInput
from sm.http.messages import Answer
from sm.router.request_types import SessionCommand

SESSION_ID, NEW_SESSION_ID, CLOSED_SESSION_ID = (
    "X-Amzn-SageMaker-Session-Id",
    "X-Amzn-SageMaker-New-Session-Id",
    "X-Amzn-SageMaker-Closed-Session-Id",
)
#: The values of ``requestType`` that open and close a session.
NEW, CLOSE = "NEW_SESSION", "CLOSE"
#: Bytes of a body that opens or closes a session.
MAX_COMMAND_BYTES = 1024


def read_session_command(identity: str, body: bytes) -> SessionCommand | None:
    """Return the command in a request of the session ``identity``; None if it is an ordinary request."""
    request_type = _request_type(body)
    if identity == NEW:
        if request_type != NEW:
            raise BadInput(f'a new session is opened by the body {{"requestType":"{NEW}"}} and no other')
        return SessionCommand()
    if request_type is None:
        return None
    if request_type != CLOSE:
        raise BadInput(
            f"requestType {str(request_type)[:64]!r} is for no session that is open; there is {CLOSE}"
        )
    return SessionCommand(close=identity)


def _request_type(body: bytes) -> object:
    """Return the type in a body ``{"requestType": ...}``; None for any other body."""
    if len(body) > MAX_COMMAND_BYTES or b'"requestType"' not in body:
        return None
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    return value["requestType"] if isinstance(value, dict) and value.keys() == {"requestType"} else None


def run_session_command(sessions: Sessions | None, command: SessionCommand, caller: str) -> Answer:
    """Open a session of the caller's, or close one.

    Raises:
        BadInput: The session to close is not open.
        Overloaded: The caller, or all of them, may open no other.
    """
    # If sessions are off, the classifier has refused the command.
    assert sessions is not None
    if command.close:
        sessions.close(command.close)
        return Answer(b"{}", headers={CLOSED_SESSION_ID: command.close})
    session = sessions.open(caller)
    expires = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(session.expires))
    return Answer(b"{}", headers={SESSION_ID: session.id, NEW_SESSION_ID: f"{session.id}; Expires={expires}"})
