"""Write a client for each kind of fault. All use the model ``echo``, which returns its list of numbers."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.tritons import MODELS

#: The client's source: ``{head}`` runs at import, ``{fields}`` are the payload's, ``{declared}`` the class's.
CLIENT = '''
import threading
import time

import numpy as np
from pydantic import Field

from sm.client import Payload, TensorClient
{head}


class Numbers(Payload):
    numbers: list[float] = Field(min_length=1, max_length=1000)
{fields}


class Echo(TensorClient):
    """The numbers, as they came."""

    model, payload = "echo", Numbers
{declared}

    def setup(self):
        self.seen = []

    def preprocess(self, payload):
{preprocess}

    def postprocess(self, outputs, payload):
{postprocess}
'''

SOUND_PARTS = {
    "head": "",
    "fields": "",
    "declared": "",
    "preprocess": 'return {"x": np.clip(np.array(payload.numbers), -1e9, 1e9).astype(np.float32)}',
    "postprocess": 'return outputs["y"].tolist()',
}
PREPROCESS_WITH_LABEL = SOUND_PARTS["preprocess"].replace(
    "payload.numbers", "payload.numbers * len(payload.label.strip() or 'x')"
)
#: The parts of the source that each fault changes.
FAULTS: dict[str, dict[str, str]] = {
    "wrong_dtype": {"preprocess": 'return {"x": np.array(payload.numbers)}'},
    "wrong_dtype_named": {"declared": '    inputs = {"x": ("FP64", (-1,))}'},
    "wrong_shape": {"preprocess": 'return {"x": np.ones((1, len(payload.numbers)), np.float32)}'},
    "order_of_a_batch": {
        "declared": """
    def postprocess_batch(self, outputs, payloads):
        return outputs["y"][::-1].tolist()
"""
    },
    "unhandled_null": {"fields": '    label: str | None = ""', "preprocess": PREPROCESS_WITH_LABEL},
    "five_faults": {
        "fields": '    label: str | None = ""',
        "preprocess": f"payload.numbers.sort()\nself.last = list(payload.numbers)\n{PREPROCESS_WITH_LABEL}",
        "postprocess": "self.seen.append(np.ones(10_000))\nreturn [number + 2 for number in self.last]",
    },
    "network_at_import": {
        "head": 'import urllib.request\n\nurllib.request.urlopen("http://weights.example/labels.txt")'
    },
    "sound": {},
}


def write_clients(folder: Path) -> None:
    """Write ``clients/<fault>`` for each fault, and ``model/echo`` beside them."""
    MODELS["echo"].write(folder / "model" / "echo")
    for name, changes in FAULTS.items():
        sample = folder / "clients" / name / "sample"
        sample.mkdir(parents=True)
        (sample.parent / "client.py").write_text(source(changes))
        (sample / "payload.json").write_text(json.dumps({"numbers": [3, 1, 2]}))
        (sample / "golden.json").write_text(json.dumps([3, 1, 2]))


def source(changes: dict[str, str]) -> str:
    """Return a client's source."""
    parts = {**SOUND_PARTS, **changes}
    bodies = {
        name: "\n".join(f"        {line}" for line in parts[name].splitlines())
        for name in ("preprocess", "postprocess")
    }
    return CLIENT.format(**{**parts, **bodies})
