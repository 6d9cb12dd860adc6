"""The forms of other systems: which form a body is of, what it asks of the client, and how it is answered.

``tests/integration/reference/test_clients_of_other_systems.py`` asks with those systems' own clients.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from sm.client.base import Client
from sm.client.decode_budget import DECODED
from sm.errors import UnknownModel, WrongPayload
from sm.http.messages import JSON
from sm.invocation import Invocation
from sm.models.table import Models, models_of
from sm.router import answers
from sm.router.answers import dumps
from sm.router.classify import RequestClassifier
from sm.router.dispatch import run_record
from sm.router.request_types import DispatchRequest, Message
from tests.support.rerankers import DOCUMENTS, QUERY, write_reranker
from tests.support.task_models import load_task, write_text_model
from trireme_extensions.search.forms import FORMS
from trireme_extensions.search.search import clients_for
from trireme_extensions.search.tei import TeiRerank


@pytest.fixture(scope="module")
def ranker(tmp_path_factory: pytest.TempPathFactory) -> Client:
    folder = write_reranker(tmp_path_factory.mktemp("model") / "ranker")
    return load_task(folder, **json.loads((folder / "task.json").read_text()))


@pytest.fixture(scope="module")
def sentences(tmp_path_factory: pytest.TempPathFactory) -> Client:
    folder = tmp_path_factory.mktemp("model") / "sentences"
    write_text_model(folder, "sentence-embeddings")
    return load_task(
        folder, task="sentence-embeddings", max_length=8, prompts={"query": "where "}, normalise=False
    )


def classified(client: Client, body: Any, accept: str = "") -> DispatchRequest:
    content = body if isinstance(body, bytes) else dumps(body)
    headers = {"content-type": JSON, **({"accept": accept} if accept else {})}
    message = Message(content, headers, {}, "id", client.name)
    request = RequestClassifier(models_of({client.name: client})).parse(message)
    assert isinstance(request, DispatchRequest)
    return request


def read(models: Models, path: str, members: Any, default: str = "", query: Any = None) -> DispatchRequest:
    """Read a body of a path."""
    message = Message(dumps(members), {"content-type": JSON}, query or {}, "id", path=path)
    request = RequestClassifier(models, default).parse(message)
    assert isinstance(request, DispatchRequest)
    return request


def results(request: DispatchRequest) -> Iterator[Any]:
    """Return what is kept of each record's result."""
    assert request.call is not None
    for number in range(len(request.records)):
        yield request.call.keep(run_record(request, Invocation(math.inf), number, request.place(number)))


def ask(client: Client, path: str, **members: Any) -> Any:
    """Answer a body of a path, by the one way of records."""
    request = read(models_of({client.name: client}), path, members)
    assert request.call is not None
    return json.loads(request.call.write(results(request), request, DECODED.room()))


BODY: dict[str, Any] = {"query": QUERY, "documents": [*DOCUMENTS]}


def test_each_system_gets_its_own_answer_with_one_ranking(ranker: Client) -> None:
    named = {"model": "ranker", **BODY}
    first = ask(ranker, "/v1/rerank", **named)["results"]
    places = [row["index"] for row in first]
    scores = [row["relevance_score"] for row in first]
    cohere = ask(ranker, "/v2/rerank", **named, max_tokens_per_doc=4096, priority=1)
    assert cohere.keys() == {"id", "results", "meta"}
    vllm = ask(ranker, "/rerank", **BODY)
    infinity = ask(ranker, "/infinity/rerank", **BODY, return_documents=True)
    voyage = ask(ranker, "/v1/rerank", **named, top_k=2, truncation=True, return_documents=True)
    assert (infinity["object"], voyage["object"], vllm["model"]) == ("rerank", "list", "ranker")
    assert [row["document"] for row in vllm["results"]] == [{"text": DOCUMENTS[place]} for place in places]
    assert [row["document"] for row in infinity["results"]] == [DOCUMENTS[place] for place in places]
    assert [row["document"] for row in voyage["data"]] == [DOCUMENTS[place] for place in places[:2]]
    tei = ask(
        ranker, "/rerank", query=QUERY, texts=[*DOCUMENTS], return_text=True, truncation_direction="Right"
    )
    assert [row["text"] for row in tei] == [DOCUMENTS[place] for place in places]
    for rows in (cohere["results"], vllm["results"], infinity["results"]):
        assert [row["index"] for row in rows] == places
        assert [row["relevance_score"] for row in rows] == pytest.approx(scores)
    assert [row["score"] for row in tei] == pytest.approx(scores)


def test_raw_scores_are_those_before_the_sigmoid(ranker: Client) -> None:
    for path, member, score in (
        ("/rerank", "texts", "score"),
        ("/infinity/rerank", "documents", "relevance_score"),
    ):
        members = {"query": QUERY, member: ["ada", "paris"]}
        answer = ask(ranker, path, **members)
        raw = ask(ranker, path, **members, raw_scores=True)
        rows, raw_rows = (each if path == "/rerank" else each["results"] for each in (answer, raw))
        logits = np.array([row[score] for row in raw_rows])
        assert [row[score] for row in rows] == pytest.approx(list(1 / (1 + np.exp(-logits))))


@pytest.mark.parametrize(
    ("path", "members", "field"),
    [
        ("/v2/rerank", {"model": "ranker", **BODY, "relevant_spans": {}}, "relevant_spans"),
        ("/v2/rerank", {"model": "ranker", **BODY, "max_tokens_per_doc": 8}, "max_tokens_per_doc"),
        ("/v2/rerank", BODY, "model"),
        ("/rerank", {"query": QUERY, "texts": []}, "texts"),
        ("/rerank", {"query": QUERY, "texts": ["ada", 3]}, "texts[1]"),
        ("/rerank", {"query": QUERY, "texts": ["ada"], "truncation_direction": "up"}, "truncation_direction"),
        ("/rerank", {"query": QUERY, "texts": ["ada"], "documents": ["ada"]}, "documents"),
        ("/infinity/rerank", {**BODY, "texts": ["a"]}, "texts"),
        ("/rerank", {"query": QUERY}, "documents"),
        ("/v1/embeddings", {"model": "ranker", "input": 3}, "input"),
        ("/embed", {"inputs": 3}, "inputs"),
    ],
)
def test_a_member_that_is_not_honoured_is_named(
    ranker: Client, path: str, members: dict[str, Any], field: str
) -> None:
    with pytest.raises(WrongPayload) as caught:
        ask(ranker, path, **members)
    assert caught.value.details["field"] == field


LONG = "ada lives in paris . where does she live ?"


def test_embeddings_take_what_text_embeddings_inference_takes(sentences: Client) -> None:
    def vector(path: str = "/embed", **members: Any) -> Any:
        (row,) = ask(sentences, path, **{"inputs": "ada lives", **members})
        return np.array(row)

    plain, unit = vector(normalize=False), vector()
    assert np.linalg.norm(plain) != pytest.approx(1)
    np.testing.assert_allclose(unit, plain / np.linalg.norm(plain), rtol=1e-5)
    np.testing.assert_allclose(vector(inputs="where ada lives"), vector(prompt_name="query"), rtol=1e-5)
    head = plain[:2] / np.linalg.norm(plain[:2])
    np.testing.assert_allclose(vector(dimensions=2), head, rtol=1e-5)
    ends = [vector(inputs=LONG, truncate=True, truncation_direction=end) for end in ("left", "Right")]
    assert not np.allclose(*ends)
    # [CLS], six of the ten tokens, [SEP].
    np.testing.assert_allclose(ends[0], vector(inputs=" ".join(LONG.split()[-6:])), rtol=1e-5)
    np.testing.assert_allclose(ends[1], vector(inputs=" ".join(LONG.split()[:6])), rtol=1e-5)
    np.testing.assert_allclose(ends[1], vector(inputs=LONG), rtol=1e-5)  # the model's files say so
    for wrong, field in (
        ({"inputs": LONG, "truncate": False}, "inputs[0]"),
        ({"prompt_name": "none"}, "prompt_name"),
        ({"inputs": []}, "inputs"),
        ({"dimensions": 99}, "dimensions"),
        ({"normalize": "yes"}, "normalize"),
    ):
        with pytest.raises(WrongPayload) as caught:
            vector(**wrong)
        assert caught.value.details["field"] == field


def test_its_members_are_taken_beside_inputs_on_invocations(sentences: Client) -> None:
    members = {"normalize": True, "truncate": True, "truncation_direction": "left", "dimensions": 3}
    request = classified(sentences, {"inputs": [LONG, "ada"], **members})
    assert request.call is not None
    found = json.loads(answers.write_call(request, request.call, results(request)).read())
    expected = ask(sentences, "/embed", inputs=[LONG, "ada"], **members)
    assert [np.array(row) / np.linalg.norm(row) for row in found] == [pytest.approx(row) for row in expected]
    for wrong in ({"encoding_format": "float"}, {"dimensions": "3"}):
        with pytest.raises(WrongPayload):
            classified(sentences, {"inputs": "ada", **wrong})


def test_a_request_without_a_model_is_the_only_ones_that_can(ranker: Client, sentences: Client) -> None:
    models = models_of({"ranker": ranker, "sentences": sentences})
    for path, body, name in (
        ("/rerank", {"query": "a", "texts": ["b"]}, "ranker"),
        ("/embed", {"inputs": "a"}, "sentences"),
    ):
        other = "sentences" if name == "ranker" else "ranker"
        for named in ({}, {"query": {"modelname": name}}, {"default": "ranker"}):
            assert read(models, path, body, **named).model == name
        with pytest.raises(UnknownModel):
            read(models, path, body, query={"modelname": other})
    assert {form.kind.member for form in FORMS} == {"input", "inputs", "texts", "documents"}
    assert clients_for(TeiRerank, models) == [ranker]
