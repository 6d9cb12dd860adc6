"""What a model.py that means harm can do in the image: docs/run/security.md states each row.

Models are trusted, and run as the box's one user. The rows say what that user still cannot do.
"""

from __future__ import annotations

import json
import re

from sm.settings import HERE
from tests.support.containers import Container

PAGE = (HERE / "docs/run/security.md").read_text()


def test_the_page_says_what_a_hostile_model_can_do(shared_container: Container) -> None:
    request = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [1]}]}
    answer = shared_container.send(json.dumps(request).encode(), "application/json", "hostile")
    assert answer.ok, answer.text
    outcome = json.loads(answer.json()["outputs"][0]["data"][0])
    rows = dict(re.findall(r"^\| (.+?) \| (can|cannot) \|", PAGE, re.MULTILINE))
    assert outcome == rows
