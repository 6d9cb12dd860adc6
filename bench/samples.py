"""The requests for every contestant: the clients' own samples, and photographs."""

from __future__ import annotations

import base64
import functools
import json
from dataclasses import dataclass

from bench.photos import PHOTOS
from sm.settings import HERE


@dataclass(frozen=True)
class Sample:
    """A picture or a text as bytes, and what its answer must contain: the likeliest class, object or word."""

    model: str
    content: bytes
    content_type: str
    expected: bytes

    @property
    def payload(self) -> dict[str, str]:
        """The content as a field of JSON: ``text``, or ``image`` in base64."""
        if self.content_type == "text/plain":
            return {"text": self.content.decode()}
        return {"image": base64.b64encode(self.content).decode()}


@functools.cache
def sample(name: str) -> Sample:
    """Return the sample of a model (``resnet``), or one of the photographs for it (``resnet-12MP``)."""
    model, _, photo = name.partition("-")
    if photo == "screenshot":
        # Its class is of no interest.
        return Sample(model, PHOTOS[photo](), "image/png", b'"')
    payload = json.loads((HERE / "clients" / model / "sample" / "payload.json").read_bytes())
    if model == "bert_base":
        return Sample(model, payload["text"].encode(), "text/plain", b"The world has no people.")
    content = PHOTOS[photo]() if photo else base64.b64decode(payload["image"])
    return Sample(model, content, "image/jpeg", {"resnet": b"espresso", "yolov5": b"person"}[model])
