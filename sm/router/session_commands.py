"""Open and close stateful sessions."""

from __future__ import annotations

import time

from sm.client.sessions import Sessions
from sm.http.messages import Answer
from sm.router.classify import SessionCommand

SESSION_ID, NEW_SESSION_ID, CLOSED_SESSION_ID = (
    "X-Amzn-SageMaker-Session-Id",
    "X-Amzn-SageMaker-New-Session-Id",
    "X-Amzn-SageMaker-Closed-Session-Id",
)


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
