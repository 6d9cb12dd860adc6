"""A list that fills a worker for seconds leaves other callers of its model the way."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import requests

from tests.support.boxes import RunningBox, running_box
from tests.support.rerankers import write_reranker
from tests.support.task_models import new_model, write_text_model

WORDS = "ada lives in paris "
#: The time of a neighbour beside the list, as a multiple of its own.
MOST = 4.0
#: Long texts are tokenized in pieces that keep the interpreter to themselves.
MOST_OF_LONG_TEXTS = 6.0
#: Requests of a neighbour, alone and beside.
ASKED = 60


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBox]:
    folder = tmp_path_factory.mktemp("neighbours")
    source = folder / "source"
    new_model("ranker", folder, write_reranker(source / "ranker"), "--task", "text-classification")
    write_text_model(source / "mood", "text-classification", ("sad", "glad", "mad"))
    new_model("mood", folder, source / "mood", "--task", "text-classification")
    write_text_model(source / "nli", "text-classification", ("contradiction", "entailment"))
    new_model("nli", folder, source / "nli", "--task", "zero-shot-classification")
    write_text_model(source / "mask", "fill-mask")
    new_model("mask", folder, source / "mask", "--task", "fill-mask")
    with running_box(folder, folder / "model", SAGEMAKER_MODEL_SERVER_WORKERS="1") as started:
        yield started


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("path", "large", "small", "most"),
    [
        (
            "/v1/rerank",
            {"model": "ranker", "query": "ada lives", "documents": ["a"] * 90_000},
            {"model": "ranker", "query": "where", "documents": ["ada", "paris"]},
            MOST,
        ),
        (
            "/invocations",
            {
                "modelname": "nli",
                "payload": [{"text": WORDS * 70, "labels": [f"l{i}" for i in range(100)]}] * 300,
            },
            {"modelname": "nli", "payload": {"text": "ada", "labels": ["paris", "live"]}},
            MOST,
        ),
        (
            "/invocations",
            {"modelname": "mood", "payload": ["ada lives in paris"] * 60_000},
            {"modelname": "mood", "payload": "ada lives"},
            MOST,
        ),
        (
            "/invocations",
            {"modelname": "mask", "payload": ["ada [MASK] in paris"] * 60_000},
            {"modelname": "mask", "payload": "ada [MASK] in"},
            MOST,
        ),
        (
            "/invocations",
            {"modelname": "mood", "payload": [WORDS * 1600] * 700, "parameters": {"truncate": True}},
            {"modelname": "mood", "payload": "ada lives"},
            MOST_OF_LONG_TEXTS,
        ),
    ],
    ids=["pairs of a query", "texts and labels", "texts", "masks", "long texts"],
)
def test_a_neighbour_of_a_large_list_waits_a_few_times_its_own_time(
    box: RunningBox, path: str, large: Any, small: Any, most: float
) -> None:
    session, url = requests.Session(), f"http://localhost:{box.port}{path}"

    def ask() -> float:
        started = time.perf_counter()
        assert session.post(url, json=small).status_code == 200
        return time.perf_counter() - started

    for _ in range(ASKED // 2):
        ask()
    alone = statistics.median(ask() for _ in range(ASKED))
    statuses: list[int] = []
    heavy = threading.Thread(target=lambda: statuses.append(requests.post(url, json=large).status_code))
    heavy.start()
    time.sleep(0.7)  # until the worker has read it
    beside: list[float] = []
    while heavy.is_alive() and len(beside) < ASKED:
        beside.append(ask())
    heavy.join()
    assert statuses == [200]
    assert len(beside) >= 10, "the list was too small to have a neighbour"
    assert statistics.median(beside) <= most * alone
