"""A client that answers what it was given, and does what it is told with the session and the headers."""

from __future__ import annotations

import os

from sm.client.base import Client, Payload


class Wanted(Payload):
    numbers: list[float] | None = None
    #: What the session is to keep.
    keep: dict[str, str] = {}
    #: What the answer's custom attributes are to be.
    attributes: str | None = None


class Probe(Client):
    payload = Wanted

    def inference(self, payload: Wanted) -> object:
        if payload.attributes is not None:
            payload.answer_attributes(payload.attributes)
        if payload.numbers is not None:
            return payload.numbers
        session = payload.session
        if session is not None:
            session.update({key: value.encode() for key, value in payload.keep.items()})
        return {
            "headers": payload.headers,
            "session": None if session is None else {key: kept.decode() for key, kept in session.items()},
            "process": os.getpid(),
        }
