"""OpenAI's own client gets embeddings from a box, and errors in the form that it expects; callers share batches.

So do callers of the rerank API, which has no client of its own here.
"""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
import requests
from openai import OpenAI

from tests.support.boxes import RunningBox
from tests.support.pages import code_blocks, run_commands

CALLERS, SECONDS = 16, 4.0
TEXTS = ["a man plays", "the guitar", "it rains today again"]
VECTORS = [[9, 3, 5, 1], [9, 2, 6, 3], [17, 4, 5, 2]]


@pytest.fixture
def box(team_box: RunningBox) -> RunningBox:
    return team_box


@pytest.fixture
def client(box: RunningBox) -> OpenAI:
    return OpenAI(base_url=f"{box.url}/v1", api_key="none", max_retries=0)


def vectors(client: OpenAI, texts: Any, model: str = "sentences", **options: Any) -> list[list[float]]:
    answer = client.embeddings.create(model=model, input=texts, **options)
    assert [row.index for row in answer.data] == list(range(len(answer.data)))
    return [row.embedding for row in answer.data]


# Without a format the client asks for base64 and decodes it itself.
@pytest.mark.parametrize("options", [{}, {"encoding_format": "float"}])
def test_a_list_of_texts_becomes_vectors_and_tokens_are_counted(
    client: OpenAI, options: dict[str, Any]
) -> None:
    answer = client.embeddings.create(model="sentences", input=TEXTS, **options)
    assert [row.embedding for row in answer.data] == VECTORS
    assert (answer.model, answer.object, answer.usage.prompt_tokens) == ("sentences", "list", 9)


def test_one_text_and_token_ids_are_inputs_too(client: OpenAI) -> None:
    assert vectors(client, TEXTS[0]) == vectors(client, [1, 3, 5]) == VECTORS[:1]
    assert vectors(client, [[1, 3, 5], [3, 6]]) == VECTORS[:2]


def test_dimensions_shorten_a_vector_and_keep_its_length(client: OpenAI) -> None:
    (vector,) = vectors(client, TEXTS[0], dimensions=2)
    assert len(vector) == 2
    assert np.linalg.norm(vector) == pytest.approx(np.linalg.norm(VECTORS[0]))
    assert vector[0] / vector[1] == pytest.approx(3)


def test_a_model_of_the_task_needs_no_client_file(client: OpenAI) -> None:
    # [CLS], the words and [SEP], as in the vocabulary.
    rows = ([2, 5, 6, 3], [2, 9, 10, 11, 13, 14, 3])
    found = vectors(client, ["Ada lives", "Where does she live?"], "encoder")
    for vector, ids in zip(found, rows, strict=True):
        mean = np.mean([[number, number**2] for number in ids], axis=0)
        assert vector == pytest.approx(mean / np.linalg.norm(mean))


def test_the_list_of_models_has_the_clients_that_give_embeddings(client: OpenAI) -> None:
    assert {model.id for model in client.models.list().data} == {"sentences", "encoder"}
    for model in ("nothing", "mood"):
        with pytest.raises(openai.NotFoundError) as caught:
            vectors(client, "a", model)
        assert (caught.value.code, caught.value.param) == ("model_not_found", "model")


EMBED: dict[str, Any] = {"model": "sentences", "input": TEXTS[0]}
RANK: dict[str, Any] = {"model": "ranker", "query": "where ?", "documents": ["ada", "ada lives in paris"]}


@pytest.mark.parametrize(
    ("path", "body", "status", "param", "code"),
    [
        ("embeddings", {**EMBED, "input": []}, 400, "input", "wrong_payload"),
        ("embeddings", {**EMBED, "input": [TEXTS[0], 3]}, 400, "input[1]", "wrong_payload"),
        ("embeddings", {**EMBED, "input": [[1, -3]]}, 400, "input[0][1]", "wrong_payload"),
        ("embeddings", {**EMBED, "input": 3}, 400, "input", "wrong_payload"),
        ("embeddings", {**EMBED, "dimensions": 5}, 400, "dimensions", "wrong_payload"),
        ("embeddings", {**EMBED, "dimensions": 0}, 400, "dimensions", "wrong_payload"),
        ("embeddings", {**EMBED, "encoding_format": "int8"}, 400, "encoding_format", "wrong_payload"),
        ("embeddings", {**EMBED, "prompt": "a"}, 400, "prompt", "wrong_payload"),
        ("embeddings", {**EMBED, "input": [TEXTS[0], "this is unreadable"]}, 400, "input[1]", "bad_input"),
        ("rerank", {**RANK, "documents": ["a"] * 100_001}, 413, None, "too_large"),
    ],
)
def test_what_cannot_be_answered_is_an_error_in_openais_form(
    box: RunningBox, path: str, body: dict[str, Any], status: int, param: str | None, code: str
) -> None:
    answer = requests.post(f"{box.url}/v1/{path}", json=body, timeout=30)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["code"]) == (status, param, code)


@pytest.mark.parametrize(("path", "model"), [("embeddings", "sentences"), ("rerank", "ranker")])
def test_garbage_is_a_400_in_openais_form(box: RunningBox, path: str, model: str) -> None:
    for body in (b"", b"{", b"[]", b"\xff", json.dumps({"model": model}).encode()):
        answer = requests.post(f"{box.url}/v1/{path}", data=body, timeout=30)
        assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error"), body


def test_invocations_embeds_and_ranks_too(box: RunningBox) -> None:
    answer = box.invoke("sentences", [{"text": TEXTS[0]}, {"token_ids": [3, 6]}])
    assert answer.json()["result"] == [
        {"embedding": VECTORS[0], "tokens": 3},
        {"embedding": VECTORS[1], "tokens": 2},
    ]
    assert box.invoke("sentences", {"text": TEXTS[0], "token_ids": [3]}).status_code == 422
    answer = box.invoke("ranker", ["ada", "in paris"], parameters={"query": "where ?"})
    assert [row[0]["score"] for row in answer.json()["result"]] == [6, 7]


def test_documents_are_ranked_by_their_scores_in_batches(box: RunningBox) -> None:
    documents = ["ada", *["in paris"] * 98, {"text": "ada lives in paris . " * 9}]
    before = calls(box, "ranker")
    body = {**RANK, "documents": documents, "top_n": 2, "return_documents": True}
    answer = requests.post(f"{box.url}/v1/rerank", json=body, timeout=30).json()
    # [CLS], two of the query, [SEP], the document and [SEP]; what is too long is cut off at 12.
    assert answer["results"] == [
        {"index": 99, "relevance_score": 12, "document": documents[99]},
        {"index": 1, "relevance_score": 7, "document": {"text": "in paris"}},
    ]
    assert calls(box, "ranker") - before < len(documents)


def test_the_commands_of_the_page_rank(box: RunningBox, tmp_path: Path) -> None:
    commands = [block for block in code_blocks("clients/rerank.md") if "curl" in block]
    (answer,) = run_commands("\n".join(commands), tmp_path, box.port)
    assert len(answer["result"]) == len(commands) == 2


def ask(box: RunningBox, caller: int, seconds: float) -> int:
    """Ask again and again with ids that no other caller has; return the number of answers, all of them right."""
    end, turn = time.monotonic() + seconds, 0
    with requests.Session() as session:
        while time.monotonic() < end:
            ids = [1000 * caller + turn + 1, *range(1, caller + 1)]
            body = {"modelname": "sentences", "payload": {"token_ids": ids}}
            answer = session.post(f"{box.url}/invocations", json=body, timeout=60)
            vector = [sum(ids), len(ids), max(ids), min(ids)]
            assert answer.json().get("result") == {"embedding": vector, "tokens": len(ids)}, answer.text
            turn += 1
    return turn


def calls(box: RunningBox, model: str) -> float:
    return box.metric("trireme_invocation_duration_seconds_count", model=model, stage="preprocess")


def test_callers_share_calls_and_none_notices_that_triton_is_killed(box: RunningBox) -> None:
    before = calls(box, "sentences")
    with ThreadPoolExecutor(CALLERS) as pool:
        answers = [pool.submit(ask, box, caller, SECONDS) for caller in range(CALLERS)]
        box.kill_and_wait_for_restart("triton")
        answered = [answer.result() for answer in answers]
    assert all(answered)
    assert calls(box, "sentences") - before < sum(answered) / 1.5
