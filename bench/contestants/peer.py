"""Base class of servers that run the models in their own processes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import ClassVar

from bench.contestant import Contestant, Request, environment_of


class Peer(Contestant):
    """The service is a module of :mod:`bench.peers`; it runs on a Python of its own.

    A model's path takes JSON with a field ``image``, as base64, or ``text``.
    """

    #: Whose packages it runs on: those of ``<packages>.txt``; its own name's if None.
    packages: ClassVar[str | None] = None
    #: Where the content itself may be sent; None where the server has no such way.
    raw_path: ClassVar[str | None] = None

    def prepare(self) -> None:
        environment_of(self.packages or self.name)

    @property
    def python(self) -> Path:
        return environment_of(self.packages or self.name)

    def request(self, model: str, form: str) -> Request | None:
        sample = self.sample(model)
        if form == "json":
            field = {"text": sample.text} if model == "bert_base" else {"image": sample.base64}
            body = json.dumps(field).encode()
            return Request(f"/{model}", {"Content-Type": "application/json"}, body, sample.expected)
        if self.raw_path is None:
            return None
        path = self.raw_path.format(model=model)
        return Request(path, {"Content-Type": sample.content_type}, sample.content, sample.expected)
