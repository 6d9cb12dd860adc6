"""What a body costs the workers grows with its size only, whatever it repeats."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from tests.e2e.faults import FULL
from tests.support.boxes import WAIT_TIMEOUT_S, RunningBox, running_box
from tests.support.faults.words import long_texts, write_models

#: Bytes of a body, and the processor time that a worker may take for it. The dearest route takes a tenth of it.
SIZE = 2**20 if FULL else 2**18
SECONDS_PER_MB, SECONDS_PER_REQUEST = 1.5, 0.15
#: Each line of JSON lines is a request.
SECONDS_PER_LINE = 0.0005
ROUTES = {
    "dispatch": ("/invocations", "application/json"),
    "endpoint": ("/endpoints/any/invocations", "application/json"),
    "in parts": ("/endpoints/any/invocations-response-stream", "application/json"),
    "v2": ("/v2/models/says/infer", "application/json"),
    "v2 as an invocation": ("/invocations?modelname=says", "application/json"),
    "generate": ("/v2/models/says/generate", "application/json"),
    "generate_stream": ("/v2/models/streams/generate_stream", "application/json"),
    "text": ("/invocations?modelname=says", "text/plain"),
    "lines": ("/invocations?modelname=says", "application/jsonlines"),
    "csv": ("/invocations?modelname=says", "text/csv"),
    "picture": ("/invocations?modelname=says", "image/jpeg"),
    "unknown type": ("/invocations?modelname=says", "application/octet-stream"),
    "embeddings": ("/v1/embeddings", "application/json"),
    "rerank": ("/v1/rerank", "application/json"),
    "load": ("/models", "application/json"),
}


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBox]:
    folder = tmp_path_factory.mktemp("patterns")
    (folder / "calls").touch()
    write_models(folder / "model", folder / "calls")
    with running_box(
        folder, folder / "model", wait_until_ready=False, SAGEMAKER_MODEL_SERVER_WORKERS="1"
    ) as started:
        started.wait_ready(2 * WAIT_TIMEOUT_S)  # beside other work
        yield started


def processor_seconds(pids: list[int]) -> float:
    """Return the processor time of processes, which no other work on the machine makes longer."""
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize("route", ROUTES)
def test_no_repeated_text_is_dear(box: RunningBox, route: str) -> None:
    path, content_type = ROUTES[route]
    pids = box.workers()
    limit = SECONDS_PER_REQUEST + SECONDS_PER_MB * SIZE / 2**20
    with requests.Session() as session:
        for name, text in long_texts(SIZE):
            before = processor_seconds(pids)
            answer = session.post(
                f"{box.url}{path}", text.encode(), headers={"Content-Type": content_type}, timeout=60
            )
            seconds = processor_seconds(pids) - before
            lines = text.count("\n") if route == "lines" else 0
            assert seconds < limit + SECONDS_PER_LINE * lines, (name, seconds, answer.text[:200])
            assert answer.status_code < 504 and answer.status_code != 502, (name, answer.text[:200])
            assert "Traceback" not in answer.text, name
    assert box.workers() == pids
