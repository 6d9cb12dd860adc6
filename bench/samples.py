"""The requests for every contestant: the clients' own samples."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from pathlib import Path

CLIENTS = Path(__file__).resolve().parent.parent / "clients"


@dataclass(frozen=True)
class Sample:
    """A picture or a text as bytes, and what its answer must contain: the likeliest class, object or word."""

    content: bytes
    content_type: str
    expected: bytes

    @property
    def base64(self) -> str:
        return base64.b64encode(self.content).decode()

    @property
    def text(self) -> str:
        return self.content.decode()


def sample(model: str) -> Sample:
    """Return the sample of ``resnet``, ``yolov5`` or ``bert_base``."""
    payload = json.loads((CLIENTS / model / "sample" / "payload.json").read_bytes())
    if model == "bert_base":
        return Sample(payload["text"].encode(), "text/plain", b"The world has no people.")
    expected = {"resnet": b"espresso", "yolov5": b"person"}[model]
    return Sample(base64.b64decode(payload["image"]), "image/jpeg", expected)
