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
from sm.client.payloads import write_npy
from sm.errors import BadInput, TriremeError, UnknownModel, WrongPayload
from sm.http.messages import CSV, JSON, JSON_LINES, NPY
from sm.invocation import Invocation
from sm.models.found_clients import models_of
from sm.models.table import Models
from sm.router import answers
from sm.router.answers import dumps
from sm.router.classify import Classifier
from sm.router.dispatch import run_record
from sm.router.forms.search import clients_for
from sm.router.forms.search_rows import FORMS
from sm.router.forms.tei import TeiRerank
from sm.router.request_types import DispatchRequest, Message
from tests.support.onnx_graphs import write_graph
from tests.support.rerankers import DOCUMENTS, QUERY, write_reranker
from tests.support.task_models import load_task, write_text_model


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
    request = Classifier(models_of({client.name: client})).parse(message)
    assert isinstance(request, DispatchRequest)
    return request


def read(models: Models, path: str, members: Any, default: str = "", query: Any = None) -> DispatchRequest:
    """Read a body of a path."""
    message = Message(dumps(members), {"content-type": JSON}, query or {}, "id", path=path)
    request = Classifier(models, default).parse(message)
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


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Client]:
    """One with an input of two columns, and one with an input and an output for each of two."""
    folder = tmp_path_factory.mktemp("model")
    found: dict[str, Client] = {}
    for name, text in (
        ("matrix", "(float[b,2] X) => (float[b,1] y) <float[2,1] w = {1, 10}> { y = MatMul(X, w) }"),
        ("people", "(int64[b,1] age, float[b,1] income) => (float[b,1] a, int64[b,1] b) "
         "{ a = Identity(income) b = Identity(age) }"),
    ):  # fmt: skip
        write_graph(folder / name / "model.onnx", text)
        found[name] = load_task(folder / name, task="tabular")
    return found


def table_answer(client: Client, body: Any, accept: str = "") -> Any:
    request = classified(client, body, accept)
    result = run_record(request, Invocation(math.inf))
    if request.call is not None:
        return json.loads(answers.write_call(request, request.call, iter([result])).read())
    return answers.write(request, result).read()


ROWS = [[1, 2], [3, 4]]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (ROWS, [21, 43]),
        ([1, 2], [21]),
        ({"instances": ROWS}, {"predictions": [21, 43]}),
        ({"instances": ROWS, "signature_name": "serving_default"}, {"predictions": [21, 43]}),
        ({"instances": [{"X": row} for row in ROWS]}, {"predictions": [21, 43]}),
        ({"inputs": ROWS}, {"predictions": [21, 43]}),
        ({"inputs": {"X": ROWS}}, {"predictions": [21, 43]}),
        ({"inputs": {"0": [1, 3], "1": [2, 4]}}, {"predictions": [21, 43]}),
        ({"inputs": {"0": [[1], [3]], "1": [[2], [4]]}}, {"predictions": [21, 43]}),
        ({"dataframe_split": {"columns": ["1", "0"], "data": ROWS}}, {"predictions": [12, 34]}),
        ({"dataframe_split": {"columns": [1, 0], "data": ROWS, "index": [0, 1]}}, {"predictions": [12, 34]}),
        ({"dataframe_records": [{"0": 1, "1": 2}]}, {"predictions": [21]}),
        ({"inputs": {"data": {"0": [1, 3], "1": [2, 4]}}}, [{"y": 21}, {"y": 43}]),
        (b"[[1, NaN], [3, 4]]", [None, 43]),
        (
            b'{"payload": {"rows": [[NaN, 1], [3, 4]]}}',
            b'{"modelname":"matrix","result":[{"y":null},{"y":43.0}]}',
        ),
    ],
)
def test_rows_are_taken_in_the_forms_of_other_servers(
    tables: dict[str, Client], body: Any, expected: Any
) -> None:
    assert table_answer(tables["matrix"], body) == expected


def test_a_prediction_of_several_outputs_is_an_object(tables: dict[str, Client]) -> None:
    rows = {"instances": [{"age": 31, "income": 5.5}, {"age": [64], "income": [None]}]}
    expected = [{"a": 5.5, "b": 31}, {"a": None, "b": 64}]
    assert table_answer(tables["people"], rows) == {"predictions": expected}
    assert table_answer(tables["people"], {"age": 31, "income": 5.5}) == expected[:1]


@pytest.mark.parametrize(
    ("accept", "expected"),
    [(CSV, b"21.0\n43.0"), (JSON_LINES, b'{"y":21.0}\n{"y":43.0}'), ("*/*", [21, 43])],
)
def test_other_types_have_a_line_for_each_row(tables: dict[str, Client], accept: str, expected: Any) -> None:
    assert table_answer(tables["matrix"], ROWS, accept) == expected
    array = table_answer(tables["people"], [[31, 5]], NPY)
    assert array.startswith(b"\x93NUMPY")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"instances": 3}, "instances"),
        ({"dataframe_split": {"columns": ["0"], "data": ROWS}}, "dataframe_split.columns"),
        ({"dataframe_split": {"columns": ["0", "1"], "data": [3]}}, "dataframe_split.data"),
        ({"dataframe_split": []}, "dataframe_split.data"),
        ({"inputs": {"0": [1], "1": [1, 2]}}, "inputs"),
        ({"instances": ROWS, "dataframe_records": []}, "instances"),
        ({"instances": ROWS, "extra": 1}, "instances"),
    ],
)
def test_a_malformed_table_is_refused_with_its_member(
    tables: dict[str, Client], body: Any, field: str
) -> None:
    with pytest.raises(WrongPayload) as caught:
        classified(tables["matrix"], body)
    assert caught.value.details["field"] == field


def test_a_missing_value_of_an_integer_names_its_column(tables: dict[str, Client]) -> None:
    for body in ([[None, 1.5]], b"[[NaN, 1.5]]", {"instances": [{"age": None, "income": 1}]}):
        request = classified(tables["people"], body)
        with pytest.raises(WrongPayload, match="'age'"):
            run_record(request, Invocation(math.inf), 0, request.place(0))


def test_no_other_client_reads_nan_or_a_bare_list(ranker: Client) -> None:
    for body in (b'{"payload": NaN}', b'{"payload": "ada", "parameters": {"top": NaN}}', b"[[1]]"):
        with pytest.raises(BadInput):
            classified(ranker, body)


def test_an_array_of_numpy_is_rows(tables: dict[str, Client]) -> None:
    read = tables["matrix"].payload.fields_of_raw
    for array, rows in ((np.array(ROWS, np.int8), ROWS), (np.array([1.5, np.inf]), [[1.5, math.inf]])):
        assert read(write_npy(array)) == {"rows": rows}
    for array in (
        np.zeros((1, 1, 1)),
        np.array(3.0),
        np.array(["2020"], "M8[D]"),
        np.zeros(2, [("a", "f4")]),
    ):
        with pytest.raises(TriremeError):
            read(write_npy(array))
