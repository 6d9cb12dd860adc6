"""The reference design: nginx, Flask and Triton combined in the simplest way."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from bench.contestant import PROCESSES, Contestant, Request
from bench.reference import THREADS
from bench.samples import sample


class Reference(Contestant):
    name = "reference"
    about = (
        f"nginx, gunicorn ({PROCESSES} workers, {THREADS} threads each), Flask, the standard base64, "
        "Pillow, a gRPC client a request, tensors as bytes to the same Triton"
    )

    def command(self) -> Sequence[str]:
        return (sys.executable, "-m", "bench.reference")

    def request(self, model: str, form: str) -> Request | None:
        if form != "json":
            return None
        given = sample(model)
        body = json.dumps({"modelname": given.model, "payload": given.payload}).encode()
        return Request("/invocations", {"Content-Type": "application/json"}, body, given.expected)
