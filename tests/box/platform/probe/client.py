"""A client that answers what it was given: numbers, or the request's own headers."""

from __future__ import annotations

from sm.base import Client, Payload


class Wanted(Payload):
    numbers: list[float] | None = None


class Probe(Client):
    payload = Wanted

    def inference(self, payload: Wanted) -> object:
        return payload.headers if payload.numbers is None else payload.numbers
