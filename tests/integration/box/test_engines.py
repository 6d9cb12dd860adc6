"""The demo on the engine that each model chose at its load, and in fp32."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import requests

from sm.build.graph_runner import session
from sm.build.onnx_graph import Graph
from sm.build.samples import InProcess, answers
from sm.hardware import cores
from sm.plugins.loading import ClientSource
from sm.settings import HERE
from sm.triton.onnx_cpu.engines import GRAPH, Wanted, candidates, processor_flags, versions
from tests.support.box_fixture import Boxes
from tests.support.boxes import RunningBox, wait_until

MODELS = ("resnet", "yolov5", "bert_base")


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty cache."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def choosing(boxes: Boxes, demo: Path, cache: Path) -> RunningBox:
    """A box with the default setting."""
    return boxes(demo, TRIREME_PRECISION="auto", TRIREME_CACHE=str(cache))


def choice(box: RunningBox, model: str) -> dict[str, Any]:
    (found,) = requests.get(f"{box.url}/models/{model}", timeout=10).json()["engines"]
    return dict(found)


def expected_answers(demo: Path, model: str) -> list[Any]:
    """What the client answers to its samples with ONNX Runtime in fp32."""
    graph = Graph.read(demo / model / "1" / GRAPH)
    source = ClientSource(model, HERE / "clients" / model / "client.py")
    return list(answers(source, demo, InProcess(graph, session(graph.path))))


@pytest.mark.parametrize("model", MODELS)
def test_each_model_says_which_engine_it_chose(choosing: RunningBox, model: str) -> None:
    chosen = choice(choosing, model)
    possible = {str(each) for each in candidates(Wanted(), processor_flags(), versions())}
    name = f"{chosen['engine']} {chosen['precision']}"
    assert name in possible
    labels = {key: chosen[key] for key in ("model", "version", "engine", "precision")}
    assert choosing.metric("trireme_model_engine_info", **labels) == 1
    rows = wait_until(
        lambda: requests.get(f"{choosing.url}/dashboard/data", timeout=10).json()["box"]["models"]
    )
    assert {row["name"]: row["engine"] for row in rows}[model] == name


@pytest.mark.parametrize("model", MODELS)
def test_a_choice_that_was_tried_is_in_the_cache(choosing: RunningBox, cache: Path, model: str) -> None:
    cached = (cache / "engines" / "cpu").glob("*.json")
    kept = [json.loads(file.read_text()) for file in cached]
    chosen = {
        key: choice(choosing, model)[key] for key in ("engine", "precision", "why", "difference", "faults")
    }
    is_tried = len(candidates(Wanted(), processor_flags(), versions())) > 1
    assert (chosen in [{key: each[key] for key in chosen} for each in kept]) is is_tried


def test_eight_starts_beside_a_full_load_make_one_choice(demo: Path, tmp_path: Path) -> None:
    """Each start chooses in an empty cache, all at once, while every processor is busy."""
    load = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2 * cores())]
    try:
        code = (
            "import json, sys\nfrom pathlib import Path\nfrom sm.triton.onnx_cpu.engines import Chooser, Wanted\n"
            "choices = [Chooser(Path(folder), Wanted(), Path(sys.argv[1])).choose() for folder in sys.argv[2:]]\n"
            "print(json.dumps([[*choice.candidate, *choice.faults] for choice in choices]))"
        )
        folders = [str(demo / model / "1") for model in MODELS]
        starts = [
            subprocess.Popen(
                [sys.executable, "-c", code, str(tmp_path / str(number)), *folders],
                stdout=subprocess.PIPE,
                cwd=HERE,
            )
            for number in range(8)
        ]
        choices = {start.communicate()[0] for start in starts}
    finally:
        for process in load:
            process.kill()
            process.wait()
    assert len(choices) == 1
    assert json.loads(choices.pop())


def test_labels_are_the_same_and_their_scores_within_the_tolerance(
    choosing: RunningBox, demo: Path, cat: bytes
) -> None:
    answer = choosing.send(cat, "image/png", params={"modelname": "resnet"}).json()["result"]
    (known,) = [rows for rows in expected_answers(demo, "resnet") if "Egyptian" in rows[0]]
    for row, expected in zip(answer, known, strict=True):
        assert row.split(":")[1:] == expected.split(":")[1:]
        assert float(row.split(":")[0]) == pytest.approx(float(expected.split(":")[0]), rel=0.01)


def test_words_are_the_same_and_their_scores_within_the_tolerance(choosing: RunningBox, demo: Path) -> None:
    payload = json.loads((HERE / "clients" / "bert_base" / "sample" / "payload.json").read_text())
    answer = choosing.invoke("bert_base", payload).json()["result"]
    known = expected_answers(demo, "bert_base")[0]
    assert {row["token"] for row in answer} == {row["token"] for row in known}
    scores = {row["token"]: row["score"] for row in known}
    for row in answer:
        assert row["score"] == pytest.approx(scores[row["token"]], abs=0.01)


def test_a_model_keeps_no_memory_of_its_load(choosing: RunningBox, cat: bytes) -> None:
    """ResNet's weights have 102 MB. Unless they are mapped and given back, its process holds 100 MB more."""
    allowed_mb = 180 if choice(choosing, "resnet")["precision"] == "bf16" else 340
    choosing.send(cat, "image/png", params={"modelname": "resnet"})
    pids = choosing.pids("resnet_0_")
    assert pids
    for pid in pids:
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        (pss_kb,) = [int(line.split()[1]) for line in rollup if line.startswith("Pss:")]
        assert pss_kb / 1024 < allowed_mb


def test_more_masks_than_bf16_can_count_are_all_filled(choosing: RunningBox) -> None:
    payload = {"text": "[MASK]" * 300}
    rows = choosing.invoke("bert_base", payload, parameters={"top": 2}).json()["result"]
    assert len(rows) == 2
    assert all("[MASK]" not in row["token"] for row in rows)


@pytest.mark.parametrize("model", MODELS)
def test_fp32_gives_what_onnx_runtime_gives(box: RunningBox, demo: Path, model: str) -> None:
    payload = json.loads((HERE / "clients" / model / "sample" / "payload.json").read_text())
    assert (choice(box, model)["engine"], choice(box, model)["precision"]) == ("onnxruntime", "fp32")
    assert box.invoke(model, payload).json()["result"] == expected_answers(demo, model)[0]
