"""Triton's response cache behind a box: a hit is right, also through shared memory, and no failure is kept.

Each model counts its executions and answers with the count, so that an answer says whether it was computed.
An ensemble asks for the cache: Triton keeps the failures of any other model.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
import requests

from sm.repository import ensembles, response_cache
from sm.repository.models import read
from sm.settings import HERE
from tests.support.boxes import RunningBox, running_box
from tests.support.other_triton import needs
from tests.support.pages import code_blocks, run_commands
from tests.support.tritons import CACHE, Model, cached_ensemble

pytestmark = needs("cache")

#: Large enough for a region of shared memory.
LARGE = 100_000
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


def multiplying(factor: int, size: int = LARGE) -> Model:
    return Model(
        'self.count = getattr(self, "count", 0) + 1\n'
        'seen = self.__dict__.setdefault("seen", set())\n'
        'first = float(tensor(request, "x").ravel()[0])\n'
        "if first >= 600 and first not in seen:\n"
        "    seen.add(first)\n"
        '    raise ValueError("it fails once for a number")\n'
        f'return {{"y": tensor(request, "x") * {factor}, "count": np.array([[self.count]], np.int64)}}',
        {"x": ("FP32", [size])},
        {"y": ("FP32", [size]), "count": ("INT64", [1])},
        max_batch_size=8,
    )


def write(repository: Path, name: str, model: Model, cached: bool = True) -> None:
    """Write a model, in an ensemble of its name that asks for the cache; and a client if its tensors are large."""
    part = f"{name}_part" if cached else name
    for each in (name, part):
        shutil.rmtree(repository / each, ignore_errors=True)
    model.write(repository / part)
    if cached:
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "config.pbtxt").write_text(cached_ensemble(repository / part))
    if model.inputs["x"][1] == [LARGE]:
        (repository / "code").mkdir(exist_ok=True)
        (repository / "code" / f"{name}.py").write_text(CLIENT.replace("MODEL", name))


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache") / "repository"


@pytest.fixture(scope="module")
def box(repository: Path) -> Iterator[RunningBox]:
    write(repository, "cached", multiplying(2))
    write(repository, "plain", multiplying(2), cached=False)
    write(repository, "small", multiplying(2, 2))
    write(repository, "own", multiplying(2, 2), cached=False)
    config = repository / "own" / "config.pbtxt"
    config.write_text(config.read_text() + CACHE)
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


def infer(box: RunningBox, path: str, **more: object) -> requests.Response:
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}
    return requests.post(f"{box.url}/{path}", json={"inputs": [tensor], **more}, timeout=60)


def outputs(answer: requests.Response) -> dict[str, object]:
    return {row["name"]: row["data"] for row in answer.json()["outputs"]}


def test_a_hit_through_shared_memory_is_the_answer_of_its_own_inputs(box: RunningBox) -> None:
    before = box.metric("nv_cache_num_hits_per_model", model="cached")
    first = {x: ask(box, "cached", x) for x in range(20)}
    assert all(answer[:2] == [2 * x, 2 * x] for x, answer in first.items())
    with ThreadPoolExecutor(16) as pool:
        again = list(pool.map(lambda number: ask(box, "cached", number % 20), range(200)))
    # The same counts: no model ran.
    assert again == [first[number % 20] for number in range(200)]
    assert box.metric("nv_cache_num_hits_per_model", model="cached") - before == 200
    # What makes the test one of shared memory: the box has regions, and tensors went through them.
    assert box.metric("trireme_shared_memory_bytes") > 4 * LARGE
    assert len({ask(box, "plain", 1)[2] for _ in range(3)}) == 3, "it did not ask for the cache"


def test_a_hit_has_the_outputs_that_are_asked_for(box: RunningBox) -> None:
    assert ask(box, "cached", 77, counted=False) == [154, 154]
    assert ask(box, "cached", 77)[:2] == [154, 154]
    # A caller of v2 chooses outputs in each form; an answer with fewer would reach the others.
    for path in ("v2/models/small/infer", "invocations?modelname=small"):
        refused = infer(box, path, outputs=[{"name": "y"}])
        assert (refused.status_code, refused.json()["field"]) == (400, "outputs")
        for names in ([], ["count", "y"]):
            chosen = infer(box, path, outputs=[{"name": name} for name in names])
            assert outputs(chosen)["y"] == [2, 4]


def test_neither_a_refused_version_nor_a_new_triton_changes_an_answer(
    box: RunningBox, repository: Path
) -> None:
    first = ask(box, "cached", 5)
    assert first[:2] == [10, 10]
    write(repository, "cached", multiplying(3))
    pushed = requests.post(f"{box.url}/models/cached/versions", timeout=120)
    assert (pushed.status_code, pushed.json()["code"]) == (400, "bad_input")
    assert ask(box, "cached", 5) == first
    box.kill_and_wait_for_restart("triton")
    assert ask(box, "cached", 5)[:2] == [10, 10]
    assert box.metric("nv_cache_num_misses_per_model", model="cached") == 1


def test_the_commands_of_the_page_ask_for_the_cache_and_show_its_series(
    box: RunningBox, tmp_path: Path
) -> None:
    write_ensemble, start, scrape = code_blocks("run/response-cache.md")
    assert "TRIREME_RESPONSE_CACHE_MB" in start
    multiplying(2, 2).write(tmp_path / "models" / "numbers")
    run_commands(write_ensemble, tmp_path, box.port)
    inspected = read(tmp_path / "models")
    assert response_cache.refused(inspected, has_cache=False).keys() == {"cached_numbers"}
    assert not response_cache.refused(inspected)
    assert not [*ensembles.problems(inspected)]
    ask(box, "cached", 3)
    run_commands(f"{scrape.strip()} > series", tmp_path, box.port)
    names = {re.split("[{ ]", line)[0] for line in (tmp_path / "series").read_text().splitlines()}
    page = (HERE / "docs" / "run" / "response-cache.md").read_text()
    assert names
    assert all(f"`{name}`" in page for name in names)


def test_a_model_that_fails_once_for_an_input_answers_the_next_caller(box: RunningBox) -> None:
    """Triton keeps the failure of a model that asks for the cache itself as an answer without outputs."""

    def send(number: int, path: str) -> requests.Response:
        tensor = {"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [number, 1]}
        return requests.post(f"{box.url}{path}", json={"inputs": [tensor]}, timeout=60)

    def call(number: int, model: str) -> requests.Response:
        body = {"modelname": model, "payload": {"x": number}}
        return requests.post(f"{box.url}/invocations", json=body, timeout=60)

    ways = [
        *(partial(send, path=path) for path in ("/v2/models/small/infer", "/invocations?modelname=small")),
        # Of its own accord a model gets no cache, so it keeps no failure either.
        partial(send, path="/v2/models/own/infer"),
        *(partial(call, model=model) for model in ("cached", "plain")),
    ]
    for place, way in enumerate(ways):
        failed, *later = [way(700 + place) for _ in range(3)]
        assert (failed.status_code, failed.json()["code"]) == (500, "model_failed"), failed.text
        assert [answer.status_code for answer in later] == [200, 200]
        for answer in later:
            found = answer.json()
            first = found["result"][0] if "result" in found else outputs(answer)["y"][0]  # type: ignore[index]
            assert first == 2 * (700 + place)
