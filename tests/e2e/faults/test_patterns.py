"""What a body costs the workers grows with its size only, whatever it repeats."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import requests

from tests.e2e.faults import FULL
from tests.support.boxes import RunningBox
from tests.support.faults.words import long_texts

#: Bytes of a body, and the processor time that a worker may take for it. The dearest route takes a tenth of it.
SIZE = 2**20 if FULL else 2**18
LIMIT_S = 0.15 + 1.5 * SIZE / 2**20
SECONDS_PER_LINE = 0.0005  # each line of JSON lines is a request
JSON, SAYS = "application/json", "/invocations?modelname=says"
ROUTES = [
    *((path, JSON) for path in ("/invocations", "/endpoints/any/invocations", SAYS, "/models")),
    *(
        (path, JSON)
        for path in ("/endpoints/any/invocations-response-stream", "/v1/embeddings", "/v1/rerank")
    ),
    *((f"/v2/models/says/{verb}", JSON) for verb in ("infer", "generate")),
    ("/v2/models/streams/generate_stream", JSON),
    *((SAYS, kind) for kind in ("text/plain", "application/jsonlines", "text/csv", "image/jpeg")),
    (SAYS, "application/octet-stream"),
]


def processor_seconds(pids: list[int]) -> float:
    """Return the processor time of processes, which no other work on the machine makes longer."""
    stats = [Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split() for pid in pids]
    return sum(int(fields[11]) + int(fields[12]) for fields in stats) / os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize(("path", "content_type"), ROUTES)
def test_no_repeated_text_is_dear(words_box: RunningBox, path: str, content_type: str) -> None:
    pids = words_box.workers()
    with requests.Session() as session:
        for name, text in long_texts(SIZE):
            before, headers = processor_seconds(pids), {"Content-Type": content_type}
            answer = session.post(f"{words_box.url}{path}", text.encode(), headers=headers, timeout=60)
            seconds = processor_seconds(pids) - before
            lines = text.count("\n") if content_type == "application/jsonlines" else 0
            assert seconds < LIMIT_S + SECONDS_PER_LINE * lines, (name, seconds, answer.text[:200])
            assert answer.status_code < 504 and answer.status_code != 502, (name, answer.text[:200])
            assert "Traceback" not in answer.text, name
    assert words_box.workers() == pids
