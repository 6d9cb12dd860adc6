"""OpenAI's own client gets embeddings from a box, and errors in the form that it expects; callers share batches.

So do callers of the rerank API, which has no client of its own here.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import openai
import pytest
import requests
from openai import OpenAI

from tests.support.box_fixture import Boxes
from tests.support.boxes import RunningBox
from tests.support.pages import code_blocks, run_commands
from tests.support.task_models import write_tokenizer
from tests.support.tritons import Model

CALLERS, SECONDS = 16, 2.0
#: The sum, the number, the longest and the shortest of the ids that are not padding. Slow enough that callers meet.
MODEL = Model(
    "time.sleep(0.01)\n"
    'ids = tensor(request, "ids").astype(np.float32)\n'
    "count, shortest = (ids > 0).sum(1), np.where(ids > 0, ids, np.inf).min(1)\n"
    'return {"vector": np.stack([ids.sum(1), count, ids.max(1), shortest], 1).astype(np.float32)}',
    {"ids": ("INT64", [-1])},
    {"vector": ("FP32", [4])},
    max_batch_size=8,
)
#: A vector for each token, as encoders have: its id, and the square.
ENCODER = Model(
    'ids = tensor(request, "input_ids").astype(np.float32)\n'
    'return {"last_hidden_state": np.stack([ids, ids**2], 2)}',
    {"input_ids": ("INT64", [-1])},
    {"last_hidden_state": ("FP32", [-1, 2])},
    max_batch_size=8,
)
#: The number of a pair's tokens; for "she" (11) it is not a number.
RANKER = Model(
    'ids, mask = tensor(request, "input_ids"), tensor(request, "attention_mask")\n'
    "count = mask.sum(1, keepdims=True).astype(np.float32)\n"
    'return {"logits": np.where((ids == 11).any(1, keepdims=True), np.nan, count).astype(np.float32)}',
    {"input_ids": ("INT64", [-1]), "attention_mask": ("INT64", [-1])},
    {"logits": ("FP32", [1])},
    max_batch_size=8,
)
TEXTS = ["a man plays", "the guitar", "it rains today again"]
VECTORS = [[9, 3, 5, 1], [9, 2, 6, 3], [17, 4, 5, 2]]


@pytest.fixture(scope="module")
def box(boxes: Boxes, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBox]:
    repository = tmp_path_factory.mktemp("embeddings")
    tasks = {
        "sentences": (MODEL, {}),
        "encoder": (ENCODER, {"task": "sentence-embeddings"}),
        "ranker": (RANKER, {"task": "text-classification", "relevance": "none", "max_length": 12}),
    }
    for name, (model, task) in tasks.items():
        model.write(repository / name)
        if task:
            write_tokenizer(repository / name)
            (repository / name / "task.json").write_text(json.dumps(task))
    with boxes.own(repository, ("embeddings",)) as box:
        yield box


@pytest.fixture(scope="module")
def client(box: RunningBox) -> OpenAI:
    return OpenAI(base_url=f"{box.url}/v1", api_key="none", max_retries=0)


def vectors(answer: openai.types.CreateEmbeddingResponse) -> list[list[float]]:
    assert [row.index for row in answer.data] == list(range(len(answer.data)))
    return [row.embedding for row in answer.data]


# Without a format the client asks for base64 and decodes it itself.
@pytest.mark.parametrize("options", [{}, {"encoding_format": "float"}])
def test_a_list_of_texts_becomes_vectors_with_the_tokens_that_were_read(
    client: OpenAI, options: dict[str, str]
) -> None:
    answer = client.embeddings.create(model="sentences", input=TEXTS, **options)  # type: ignore[arg-type]
    assert vectors(answer) == VECTORS
    assert (answer.model, answer.object) == ("sentences", "list")
    assert (answer.usage.prompt_tokens, answer.usage.total_tokens) == (9, 9)


def test_a_model_of_the_task_needs_no_client_file(client: OpenAI) -> None:
    answer = client.embeddings.create(model="encoder", input=["Ada lives", "Where does she live?"])
    # [CLS], the words and [SEP], as in the vocabulary.
    for found, ids in zip(vectors(answer), ([2, 5, 6, 3], [2, 9, 10, 11, 13, 14, 3]), strict=True):
        mean = np.mean([[number, number**2] for number in ids], axis=0)
        assert found == pytest.approx(mean / np.linalg.norm(mean))
    assert answer.usage.prompt_tokens == 4 + 7
    with pytest.raises(openai.BadRequestError) as caught:
        client.embeddings.create(model="encoder", input=[[2, 5], [2, 999]])
    assert caught.value.param == "input[1]"


def test_one_text_and_token_ids_are_inputs_too(client: OpenAI) -> None:
    assert vectors(client.embeddings.create(model="sentences", input=TEXTS[0])) == VECTORS[:1]
    assert vectors(client.embeddings.create(model="sentences", input=[1, 3, 5])) == VECTORS[:1]
    two = client.embeddings.create(model="sentences", input=[[1, 3, 5], [3, 6]])
    assert vectors(two) == VECTORS[:2]


def test_dimensions_shorten_a_vector_and_keep_its_length(client: OpenAI) -> None:
    (vector,) = vectors(client.embeddings.create(model="sentences", input=TEXTS[0], dimensions=2))
    assert len(vector) == 2
    assert np.linalg.norm(vector) == pytest.approx(np.linalg.norm(VECTORS[0]))
    assert vector[0] / vector[1] == pytest.approx(3)


def test_the_list_of_models_has_the_clients_that_give_embeddings(client: OpenAI) -> None:
    models = client.models.list().data
    assert {(model.id, model.object, model.owned_by) for model in models} == {
        ("sentences", "model", "trireme"),
        ("encoder", "model", "trireme"),
    }
    assert all(model.created > 0 for model in models)


@pytest.mark.parametrize("model", ["nothing", "shout"])
def test_a_model_that_gives_no_embeddings_is_not_found(client: OpenAI, model: str) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client.embeddings.create(model=model, input="a")
    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"input": []}, "input"),
        ({"input": [TEXTS[0], 3]}, "input[1]"),
        ({"input": [[1, -3]]}, "input[0][1]"),
        ({"input": 3}, "input"),
        ({"dimensions": 5}, "dimensions"),
        ({"dimensions": 0}, "dimensions"),
        ({"encoding_format": "int8"}, "encoding_format"),
        ({"prompt": "a"}, "prompt"),
        ({"input": [TEXTS[0], "this is unreadable"]}, "input[1]"),
    ],
)
def test_a_wrong_request_is_a_400_that_names_the_member(
    box: RunningBox, asked: dict[str, object], param: str
) -> None:
    before = box.metric("trireme_invocations_total", status="200")
    body = {"model": "sentences", "input": TEXTS[0], **asked}
    answer = requests.post(f"{box.url}/v1/embeddings", json=body, timeout=30)
    error = answer.json()["error"]
    assert (answer.status_code, error["type"], error["param"]) == (400, "invalid_request_error", param)
    assert box.metric("trireme_invocations_total", status="200") == before


@pytest.mark.parametrize(("path", "model"), [("embeddings", "sentences"), ("rerank", "ranker")])
def test_garbage_is_a_400_in_openais_form(box: RunningBox, path: str, model: str) -> None:
    for body in (b"", b"{", b"[]", b"\xff", json.dumps({"model": model}).encode()):
        answer = requests.post(f"{box.url}/v1/{path}", data=body, timeout=30)
        assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error"), body


def test_the_client_answers_invocations_as_any_other(box: RunningBox) -> None:
    answer = box.invoke("sentences", [{"text": TEXTS[0]}, {"token_ids": [3, 6]}])
    rows = [{"embedding": VECTORS[0], "tokens": 3}, {"embedding": VECTORS[1], "tokens": 2}]
    assert answer.json() == {"modelname": "sentences", "result": rows}
    both = box.invoke("sentences", {"text": TEXTS[0], "token_ids": [3]})
    assert both.status_code == 422


def rank(box: RunningBox, **members: object) -> requests.Response:
    body = {"model": "ranker", "query": "where ?", "documents": ["ada", "ada lives in paris"], **members}
    return requests.post(f"{box.url}/v1/rerank", json=body, timeout=30)


def test_documents_are_ranked_by_their_scores_in_batches(box: RunningBox) -> None:
    documents = ["ada", *["in paris"] * 98, {"text": "ada lives in paris . " * 9}]
    before = calls(box, "ranker")
    answer = rank(box, documents=documents, top_n=2, return_documents=True).json()
    # [CLS], two of the query, [SEP], the document and [SEP]; what is too long is cut off at 12.
    assert answer == {
        "model": "ranker",
        "results": [
            {"index": 99, "relevance_score": 12, "document": {"text": "ada lives in paris . " * 9}},
            {"index": 1, "relevance_score": 7, "document": {"text": "in paris"}},
        ],
    }
    assert calls(box, "ranker") - before < len(documents)


def test_invocations_ranks_too(box: RunningBox) -> None:
    body = {"modelname": "ranker", "payload": ["ada", "in paris"], "parameters": {"query": "where ?"}}
    answer = requests.post(f"{box.url}/invocations", json=body, timeout=30).json()
    assert [row[0]["score"] for row in answer["result"]] == [6, 7]


def test_the_commands_of_the_page_rank(box: RunningBox, tmp_path: Path) -> None:
    commands = [block for block in code_blocks("clients/rerank.md") if "curl" in block]
    (answer,) = run_commands("\n".join(commands), tmp_path, box.port)
    assert len(answer["result"]) == 2
    assert len(commands) == 2


@pytest.mark.parametrize(
    ("asked", "status", "code", "param"),
    [
        ({"documents": ["ada", ""]}, 400, "wrong_payload", "documents[1]"),
        ({"documents": ["a"] * 100_001}, 413, "too_large", None),
        ({"model": "nothing"}, 404, "model_not_found", "model"),
        ({"documents": ["ada", "she"]}, 500, "model_failed", None),
    ],
)
def test_what_cannot_be_ranked_is_an_error_in_openais_form(
    box: RunningBox, asked: dict[str, object], status: int, code: str, param: str | None
) -> None:
    before = box.metric("trireme_invocations_total", status="200")
    answer = rank(box, **asked)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (status, code, param)
    assert box.metric("trireme_invocations_total", status="200") == before


def ask(box: RunningBox, caller: int, seconds: float) -> int:
    """Ask again and again with ids that no other caller has; return the number of answers, all of them right."""
    end, turn = time.monotonic() + seconds, 0
    with requests.Session() as session:
        while time.monotonic() < end:
            ids = [1000 * caller + turn + 1, *range(1, caller + 1)]
            body = {"modelname": "sentences", "payload": {"token_ids": ids}}
            answer = session.post(f"{box.url}/invocations", json=body, timeout=60)
            assert answer.status_code == 200, answer.text
            vector = [sum(ids), len(ids), max(ids), min(ids)]
            assert answer.json()["result"] == {"embedding": vector, "tokens": len(ids)}
            turn += 1
    return turn


def calls(box: RunningBox, model: str = "sentences") -> float:
    return box.metric("trireme_invocation_duration_seconds_count", model=model, stage="preprocess")


def test_callers_share_calls_of_the_model_and_each_gets_its_own_answer(box: RunningBox) -> None:
    before = calls(box)
    with ThreadPoolExecutor(CALLERS) as pool:
        answers = sum(pool.map(lambda caller: ask(box, caller, SECONDS), range(CALLERS)))
    assert calls(box) - before < answers / 1.5


def test_no_caller_notices_that_triton_is_killed_under_their_batch(box: RunningBox) -> None:
    with ThreadPoolExecutor(CALLERS) as pool:
        answers = [pool.submit(ask, box, caller, 2 * SECONDS) for caller in range(CALLERS)]
        time.sleep(SECONDS / 2)
        box.kill_and_wait_for_restart("triton")
        assert all(answer.result() for answer in answers)
