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
from trireme_extensions.tasks.text import MAX_SHARED_TOKENS

WORDS = "ada lives in paris "
#: The time of a neighbour beside the list, as a multiple of its own.
MOST = 4.0
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
    write_text_model(source / "vectors", "sentence-embeddings")
    new_model("vectors", folder, source / "vectors", "--task", "sentence-embeddings")
    write_text_model(source / "answers", "question-answering")
    new_model("answers", folder, source / "answers", "--task", "question-answering")
    write_text_model(source / "names", "token-classification", ("O", "B-PER", "I-PER"))
    new_model("names", folder, source / "names", "--task", "token-classification")
    with running_box(folder, folder / "model", SAGEMAKER_MODEL_SERVER_WORKERS="1") as started:
        yield started


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("path", "large", "small"),
    [
        (
            "/v1/rerank",
            {"model": "ranker", "query": "ada lives", "documents": ["a"] * 90_000},
            {"model": "ranker", "query": "where", "documents": ["ada", "paris"]},
        ),
        (
            "/invocations",
            {
                "modelname": "nli",
                "payload": [{"text": WORDS * 70, "labels": [f"l{i}" for i in range(100)]}] * 300,
            },
            {"modelname": "nli", "payload": {"text": "ada", "labels": ["paris", "live"]}},
        ),
        (
            "/invocations",
            {"modelname": "mood", "payload": ["ada lives in paris"] * 60_000},
            {"modelname": "mood", "payload": "ada lives"},
        ),
        (
            "/invocations",
            {"modelname": "mask", "payload": ["ada [MASK] in paris"] * 60_000},
            {"modelname": "mask", "payload": "ada [MASK] in"},
        ),
        (
            "/invocations",
            {"modelname": "mood", "payload": [WORDS * 1600] * 700, "parameters": {"truncate": True}},
            {"modelname": "mood", "payload": "ada lives"},
        ),
        (
            # The query's 512 tokens, counted with each document, are as many as a request may have.
            "/v1/rerank",
            {"model": "ranker", "query": WORDS * 1700, "documents": ["a"] * (MAX_SHARED_TOKENS // 512)},
            {"model": "ranker", "query": "where", "documents": ["ada", "paris"]},
        ),
        (
            "/v1/embeddings",
            {"model": "vectors", "input": [WORDS * 1600] * 700},
            {"model": "vectors", "input": "ada lives"},
        ),
        (
            "/invocations",
            {
                "modelname": "answers",
                "payload": [{"question": "where", "context": WORDS * 1600}] * 60,
                "parameters": {"doc_stride": 128},
            },
            {"modelname": "answers", "payload": {"question": "where", "context": WORDS}},
        ),
        (
            "/invocations",
            {"modelname": "names", "payload": [WORDS * 1600] * 60, "parameters": {"stride": 64}},
            {"modelname": "names", "payload": WORDS},
        ),
        (
            "/invocations",
            {
                "modelname": "mask",
                "payload": ["ada [MASK] in", *["ada [MASK] in paris " * 1600] * 200],
                "parameters": {"truncate": True},
            },
            {"modelname": "mask", "payload": "ada [MASK] in"},
        ),
    ],
    ids=[
        "pairs of a query",
        "texts and labels",
        "texts",
        "masks",
        "long texts",
        "pairs at the limit",
        "vectors",
        "windows of contexts",
        "windows of texts",
        "many masks in a text",
    ],
)
def test_a_neighbour_of_a_large_list_waits_a_few_times_its_own_time(
    box: RunningBox, path: str, large: Any, small: Any
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
    assert statistics.median(beside) <= MOST * alone
