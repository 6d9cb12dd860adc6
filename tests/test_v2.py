"""Which bodies are v2; what Triton makes of them is in tests/box/test_v2.py."""

from __future__ import annotations

import pytest

from sm.invocation import Message
from sm.v2 import is_json


@pytest.mark.parametrize(
    ("body", "theirs"),
    [
        (b'{"inputs": []}', True),
        (b' {\n"id" : "1", "inputs": []}', True),
        (b'{"parameters": {"payload": 1}, "inputs": []}', True),
        (b'{"parameters": {"modelname": "m", "payload": 1}, "inputs": []}', True),
        (b'{"modelname": "m", "inputs": []}', True),
        (b'{"modelname": "m", "payload": {"inputs": []}}', False),
        (b'{"modelname": "m\\"", "payload": {"inputs": []}}', False),
        (b'{"payload": 1, "inputs": []}', False),
        (b'{"inputs"}', False),
        (b'["inputs"]', False),
    ],
)
def test_a_body_with_inputs_and_without_payload_is_v2(body: bytes, theirs: bool) -> None:
    assert is_json(Message(body, {}, {}, "id")) is theirs
