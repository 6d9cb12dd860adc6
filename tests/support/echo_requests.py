"""A v2 request for the model ``echo`` of :mod:`tests.support.tritons`."""

from __future__ import annotations

import json
from typing import Any

ECHO_REQUEST: dict[str, Any] = {
    "inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}]
}
ECHO_BODY = json.dumps(ECHO_REQUEST).encode()
