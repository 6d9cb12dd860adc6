"""A client that returns its headers and its session, and sets both as the payload says."""

import os

from sm.client import Client, Payload


class Wanted(Payload):
    numbers: list[float] | None = None
    #: Values to store in the session.
    keep: dict[str, str] = {}
    #: The custom attributes of the response.
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
