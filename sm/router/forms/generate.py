"""Triton's generate extension, where the box is set to it: any JSON object but a dispatch request."""

from __future__ import annotations

from sm.router.forms.dispatch import is_dispatch
from sm.router.forms.form import Form, Reading
from sm.router.forms.v2 import OBJECT
from sm.router.request_types import TritonRequest


class Generate(Form):
    """Flat JSON for Triton's generate extension."""

    def has(self, reading: Reading) -> bool:
        if reading.inference_type == "infer" or not (reading.is_json or OBJECT.match(reading.body)):
            return False
        return not is_dispatch(reading)

    def read(self, reading: Reading) -> TritonRequest:
        verb = "generate" if reading.is_line else reading.inference_type  # a line is never streamed
        return TritonRequest(reading.message, reading.model, reading.address.version, verb)


GENERATE = Generate()
