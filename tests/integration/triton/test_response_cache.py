"""Triton's response cache behind a box: a hit is right, also through shared memory, and no old version answers.

Each model counts its executions and answers with the count, so that an answer says whether it was computed.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import requests

from sm.repository import response_cache
from sm.repository.models import read
from sm.settings import HERE
from tests.support.boxes import RunningBox, running_box
from tests.support.other_triton import needs
from tests.support.pages import code_blocks, run_commands
from tests.support.tritons import DecoupledModel, Model

pytestmark = needs("cache")

#: Large enough for a region of shared memory.
LARGE = 100_000
COUNT = 'self.count = getattr(self, "count", 0) + 1\nx = tensor(request, "x")\n'
CACHE = "response_cache {enable: true}\n"


@dataclass(frozen=True)
class CachedModel(Model):
    """A model that asks for the cache."""

    more: str = ""

    def config(self) -> str:
        return super().config() + CACHE + self.more


@dataclass(frozen=True)
class CachedDecoupledModel(DecoupledModel):
    """The same, of a model whose requests may have several answers."""

    def config(self) -> str:
        return super().config() + CACHE


def multiplying(
    factor: int, kind: type[Model] = CachedModel, dims: tuple[int, ...] = (LARGE,), **options: Any
) -> Model:
    return kind(
        f'{COUNT}return {{"y": x * {factor}, "count": np.array([[self.count]], np.int64)}}',
        {"x": ("FP32", [*dims])},
        {"y": ("FP32", [*dims]), "count": ("INT64", [1])},
        max_batch_size=8,
        **options,
    )


#: Answers with the first number of y, and with the count if the parameter asks for it.
CLIENT = """
import numpy as np

from sm.client import Payload, TensorClient


class Numbers(Payload):
    x: float
    counted: bool = True


class Large(TensorClient):
    model, payload = "MODEL", Numbers

    def preprocess(self, payload):
        return {"x": np.full(100_000, payload.x, np.float32)}

    def wanted(self, payload):
        return ("y", "count") if payload.counted else ("y",)

    def postprocess(self, outputs, payload):
        y = outputs["y"]
        return [float(y[0]), float(y[-1]), *(outputs["count"].tolist() if payload.counted else ())]
"""
#: The answer is the shape of the input.
SHAPE = Model(
    'x = tensor(request, "x")\nreturn {"shape": np.array(x.shape, np.int64)}',
    {"x": ("FP32", [-1, -1])},
    {"shape": ("INT64", [2])},
)


def write(repository: Path, name: str, model: Model, client: bool = True) -> None:
    shutil.rmtree(repository / name, ignore_errors=True)
    model.write(repository / name)
    if client:
        (repository / "code").mkdir(exist_ok=True)
        (repository / "code" / f"{name}.py").write_text(CLIENT.replace("MODEL", name))


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache") / "repository"


@pytest.fixture(scope="module")
def box(repository: Path) -> Iterator[RunningBox]:
    repository.mkdir()
    write(repository, "cached", multiplying(2))
    write(repository, "plain", multiplying(2, Model))
    write(repository, "small", multiplying(2, dims=(2,)), client=False)
    write(repository, "shapes", CachedModel(SHAPE.answer, SHAPE.inputs, SHAPE.outputs), client=False)
    write(
        repository,
        "parts",
        CachedDecoupledModel('yield {"y": tensor(request, "x")}', {"x": ("FP32", [1])}, {"y": ("FP32", [1])}),
        client=False,
    )
    write(repository, "dialogue", multiplying(2, dims=(2,), more="sequence_batching {}\n"), client=False)
    config = repository / "dialogue" / "config.pbtxt"
    config.write_text(config.read_text().replace("dynamic_batching {}\n", ""))
    with running_box(
        repository.parent,
        repository,
        clients=(),
        TRIREME_RESPONSE_CACHE_MB="64",
        TRIREME_MODEL_POLL="0",
        TRIREME_DRAIN_SECONDS="1",
        SAGEMAKER_MODEL_SERVER_WORKERS="2",
    ) as box:
        yield box


def ask(box: RunningBox, model: str, x: float, **members: object) -> list[float]:
    answer = box.invoke(model, {"x": x, **members})
    assert answer.status_code == 200, answer.text
    result: list[float] = answer.json()["result"]
    return result


def infer(
    box: RunningBox, model: str, data: list[float], shape: list[int], **members: object
) -> requests.Response:
    tensor = {"name": "x", "datatype": "FP32", "shape": shape, "data": data}
    return requests.post(
        f"{box.url}/v2/models/{model}/infer", json={"inputs": [tensor], **members}, timeout=60
    )


def test_a_hit_through_shared_memory_is_the_answer_of_its_own_inputs(box: RunningBox) -> None:
    before = box.metric("nv_cache_num_hits_per_model", model="cached")
    first = {x: ask(box, "cached", x) for x in range(20)}
    assert all(answer[:2] == [2 * x, 2 * x] for x, answer in first.items())
    with ThreadPoolExecutor(16) as pool:
        again = list(pool.map(lambda number: ask(box, "cached", number % 20), range(200)))
    # The same counts: no model ran.
    assert again == [first[number % 20] for number in range(200)]
    assert box.metric("nv_cache_num_hits_per_model", model="cached") - before == 200
    assert box.metric("nv_cache_num_misses_per_model", model="cached") == 20
    # What makes the test one of shared memory: the box has regions, and tensors went through them.
    assert box.metric("trireme_shared_memory_bytes") > 4 * LARGE


def test_a_model_that_does_not_ask_for_the_cache_is_computed_each_time(box: RunningBox) -> None:
    counts = [ask(box, "plain", 1)[2] for _ in range(3)]
    assert len(set(counts)) == 3
    assert box.metric("nv_cache_num_hits_per_model", model="plain") == 0


def test_a_hit_has_the_outputs_that_are_asked_for(box: RunningBox) -> None:
    assert ask(box, "cached", 77, counted=False) == [154, 154]
    assert ask(box, "cached", 77)[:2] == [154, 154]
    # A caller of v2 chooses outputs in each form; an answer with fewer would reach the others.
    refused = infer(box, "small", [1, 2], [1, 2], outputs=[{"name": "y"}])
    assert (refused.status_code, refused.json()["field"]) == (400, "outputs")
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}

    def invoke(**members: object) -> requests.Response:
        where = f"{box.url}/invocations?modelname=small"
        return requests.post(where, json={"inputs": [tensor], **members}, timeout=60)

    for answer in (invoke(), invoke(outputs=[]), invoke(outputs=[{"name": "count"}, {"name": "y"}])):
        assert {output["name"]: output["data"] for output in answer.json()["outputs"]}["y"] == [2, 4]
    chosen = invoke(outputs=[{"name": "count"}])
    assert (chosen.status_code, chosen.json()["field"]) == (400, "outputs")


def test_the_same_numbers_in_two_batches_have_two_answers(box: RunningBox) -> None:
    assert infer(box, "small", [1, 2, 3, 4], [2, 2]).json()["outputs"][0]["shape"] == [2, 2]
    # The key has no shapes, so a model whose shapes may differ for the same bytes does not get the cache.
    shapes = [infer(box, "shapes", [1, 2, 3, 4, 5, 6], shape) for shape in ([2, 3], [3, 2], [1, 6])]
    assert [answer.json()["outputs"][0]["data"] for answer in shapes] == [[2, 3], [3, 2], [1, 6]]
    assert "shapes is served without the response cache" in box.log.read_text()


def test_sequences_and_decoupled_models_are_served_without_the_cache(box: RunningBox) -> None:
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}
    sequence = {"sequence_id": 1, "sequence_start": True, "sequence_end": True}
    url = f"{box.url}/v2/models/dialogue/infer"
    answers = [
        requests.post(url, json={"inputs": [tensor], "parameters": sequence}, timeout=60).json()
        for _ in range(2)
    ]
    counts = [{row["name"]: row["data"] for row in answer["outputs"]}["count"] for answer in answers]
    assert counts[0] != counts[1]
    assert requests.get(f"{box.url}/v2/models/parts/ready", timeout=10).status_code == 200
    for name in ("parts", "dialogue"):
        assert f"{name} is served without the response cache" in box.log.read_text()


def test_a_new_version_does_not_answer_from_the_old_ones_cache(box: RunningBox, repository: Path) -> None:
    assert ask(box, "cached", 5)[:2] == [10, 10]
    write(repository, "cached", multiplying(3))
    pushed = requests.post(f"{box.url}/models/cached/versions", timeout=120)
    assert pushed.json()["state"] == "serves"
    first = ask(box, "cached", 5)
    assert first[:2] == [15, 15]
    assert ask(box, "cached", 5) == first


def test_a_restarted_triton_has_an_empty_cache(box: RunningBox) -> None:
    before = ask(box, "cached", 9)
    box.kill_and_wait_for_restart("triton")
    after = ask(box, "cached", 9)
    assert after[:2] == before[:2]
    assert ask(box, "cached", 9) == after


def test_the_commands_of_the_page_ask_for_the_cache_and_show_its_series(
    box: RunningBox, tmp_path: Path
) -> None:
    start, scrape = code_blocks("run/response-cache.md")
    multiplying(2, Model).write(tmp_path / "models" / "numbers")
    run_commands(start.splitlines()[0], tmp_path, box.port)
    assert response_cache.refused(read(tmp_path / "models"), has_cache=False).keys() == {"numbers"}
    ask(box, "cached", 3)
    run_commands(f"{scrape.strip()} > series", tmp_path, box.port)
    names = {re.split("[{ ]", line)[0] for line in (tmp_path / "series").read_text().splitlines()}
    page = (HERE / "docs" / "run" / "response-cache.md").read_text()
    assert names
    assert all(f"`{name}`" in page for name in names)
