"""JSON lines: each line is a request of any form of JSON, or a payload alone."""

from __future__ import annotations

from sm.http.messages import JSON_LINES
from sm.router.forms.form import Form, Reading
from sm.router.request_types import LinesRequest, RecordLimit


class Lines(Form):
    """JSON lines, in the session of the request and under its limit of records."""

    def has(self, reading: Reading) -> bool:
        return reading.kind == JSON_LINES

    def read(self, reading: Reading) -> LinesRequest:
        most = reading.max_records
        return LinesRequest(reading.message, reading.session, None if most is None else RecordLimit(most))


LINES = Lines()
