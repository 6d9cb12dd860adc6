"""NVIDIA's AIPerf, as it comes from PyPI, measures a box, and ``sm invoke --load`` says the same numbers."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.box_fixture import Boxes
from tests.support.boxes import RunningBox
from tests.support.client_environments import python_with
from tests.support.rerankers import write_reranker
from tests.support.sm_command import run_sm
from tests.support.task_models import new_model, write_text_model

pytestmark = pytest.mark.exhaustive
AIPERF = "aiperf==0.13.0"
REQUESTS = 20
#: Texts of a request that takes the box long beside what a client does.
LONG = 192
#: Seconds of the comparison.
SECONDS = 40
V2 = {"inputs": [{"name": "input_ids", "datatype": "INT64", "shape": [1, 4], "data": [1, 5, 6, 2]}]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Embeddings and a reranker, with the tokenizers of both."""
    made = tmp_path_factory.mktemp("aiperf")
    new_model("ranker", made, write_reranker(made / "ranker"), "--task", "text-classification")
    write_text_model(made / "sentences", "sentence-embeddings", ())
    new_model("sentences", made, made / "sentences", "--task", "sentence-embeddings")
    return made


@pytest.fixture
def box(boxes: Boxes, folder: Path) -> RunningBox:
    return boxes(folder / "model", SAGEMAKER_MODEL_SERVER_WORKERS="1")


def write_inputs(file: Path, body: Any) -> Path:
    """Write requests that are sent as they are."""
    file.write_text(json.dumps({"data": [{"session_id": "one", "payloads": [body]}]}))
    return file


def command(model: str, url: str, kind: str, folder: Path, artifacts: Path, *options: object) -> list[str]:
    """Return the command line of the page, for tests' models."""
    words: tuple[object, ...] = (
        *(
            python_with(AIPERF),
            "-m",
            "aiperf",
            "profile",
            "--model",
            model,
            "--url",
            url,
            "--endpoint-type",
            kind,
        ),
        *("--tokenizer", folder / model, "--concurrency", 1, "--warmup-request-count", 3),
        *("--ui", "none", "--no-gpu-telemetry", "--no-server-metrics", "--artifact-dir", artifacts),
    )
    return [str(word) for word in (*words, *options)]


def results(artifacts: Path) -> dict[str, Any]:
    read: dict[str, Any] = json.loads((artifacts / "profile_export_aiperf.json").read_text())
    return read


@pytest.mark.parametrize(
    ("model", "kind", "path", "options"),
    [
        ("sentences", "embeddings", "", ("--isl", 8)),
        ("ranker", "cohere-rankings", "", ("--rankings-passages-mean", 4)),
        ("ranker", "hf-tei-rankings", "", ("--rankings-passages-mean", 4)),
        ("sentences", "raw", "/v2/models/sentences/infer", ("--extra-inputs", "response_field:outputs")),
    ],
)
def test_its_requests_are_answered(
    box: RunningBox,
    folder: Path,
    tmp_path: Path,
    model: str,
    kind: str,
    path: str,
    options: tuple[object, ...],
) -> None:
    if kind == "raw":
        inputs = write_inputs(tmp_path / "v2.json", V2)
        options = (*options, "--input-file", inputs, "--custom-dataset-type", "inputs_json")
    words = command(
        model, box.url + path, kind, folder, tmp_path / "out", "--request-count", REQUESTS, *options
    )
    done = subprocess.run(words, capture_output=True, text=True, timeout=240, cwd=tmp_path)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    found = results(tmp_path / "out")
    assert found["request_count"]["avg"] == REQUESTS and found["request_error_rate"]["avg"] == 0
    assert found["request_latency"]["p50"] > 0


def test_sm_invoke_says_the_same_numbers(box: RunningBox, folder: Path, tmp_path: Path) -> None:
    """Both measure the same box in the same seconds, so that what else the machine does is the same for both."""
    body = {"model": "sentences", "input": ["ada lives in paris . she lives"] * LONG}
    (tmp_path / "body.json").write_text(json.dumps(body))
    inputs = write_inputs(tmp_path / "inputs.json", body)
    url, artifacts = f"{box.url}/v1/embeddings", tmp_path / "out"
    sent = ("--input-file", inputs, "--custom-dataset-type", "inputs_json", "--benchmark-duration", SECONDS)
    words = command("sentences", url, "raw", folder, artifacts, *sent)
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=tmp_path
    ) as aiperf:
        assert aiperf.stdout is not None
        lines = iter(aiperf.stdout)
        said = []
        for line in lines:
            said.append(line)
            if "Phase profiling (profiling) started" in line:
                break
        ours = run_sm("invoke", url, "--json", tmp_path / "body.json", "--load", SECONDS)
        said += lines
    assert ours.returncode == 0 and aiperf.returncode == 0, ours.stderr + "".join(said)[-4000:]
    theirs = results(artifacts)
    (rate,) = re.findall(r": ([\d.]+) a second", ours.stdout)
    times = dict(
        zip(ours.stdout.splitlines()[1].split()[:4], ours.stdout.splitlines()[2].split(), strict=True)
    )
    pairs = {
        "p50": (float(times["p50"]), theirs["request_latency"]["p50"]),
        "p90": (float(times["p90"]), theirs["request_latency"]["p90"]),
        "requests a second": (float(rate), theirs["request_throughput"]["avg"]),
    }
    for name in ("p50", "requests a second"):
        mine, other = pairs[name]
        assert mine == pytest.approx(other, rel=0.1), pairs
