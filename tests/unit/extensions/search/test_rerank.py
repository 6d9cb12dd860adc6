"""``/v1/rerank`` scores as CrossEncoder.predict of sentence-transformers does, and as transformers' pipeline.

Their answers to the same pairs with the same graph are in ``rerank_answers.json``; ``make_rerank_answers.py`` of
``tests/unit/client`` wrote them.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from sm.client.base import Client
from sm.client.decode_budget import DECODED
from sm.errors import CommandError, ModelFailed, UnknownModel, WrongPayload
from sm.invocation import Invocation
from sm.models.table import Models, models_of
from sm.router.answers import dumps
from sm.router.classify import RequestClassifier
from sm.router.dispatch import run_record
from sm.router.request_types import DispatchRequest, Message
from tests.support.rerankers import DOCUMENTS, QUERY, write_reranker
from tests.support.task_models import load_task, write_text_model
from trireme_extensions.search.cohere import RerankRequest
from trireme_extensions.tasks.hugging_face import read_folder

ANSWERS = json.loads((Path(__file__).parents[2] / "client" / "rerank_answers.json").read_text())
BODY = {"model": "ranker", "query": QUERY, "documents": ["ada"]}
#: Older releases of sentence-transformers say in config.json what the scores go through.
OLDER = (
    {"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}},
    {"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"},
)


def load(folder: Path) -> Client:
    return load_task(folder, **json.loads((folder / "task.json").read_text()))


def classified(client: Client, body: Any) -> DispatchRequest:
    message = Message(dumps(body), {"content-type": "application/json"}, {}, "id", client.name)
    request = RequestClassifier(models_of({client.name: client})).parse(message)
    assert isinstance(request, DispatchRequest)
    return request


def run(request: DispatchRequest, number: int) -> Any:
    return run_record(request, Invocation(math.inf), number, request.place(number))


def ask(client: Client, **members: Any) -> dict[str, Any]:
    """Rank documents, by the one way of records."""
    request = read(models_of({client.name: client}), {"model": client.name, "query": QUERY, **members})
    assert request.call is not None
    rows = (request.call.keep(run(request, number)) for number in range(len(request.records)))
    answer: dict[str, Any] = json.loads(request.call.write(rows, request, DECODED.room()))
    return answer


def read(models: Models, body: Any, path: str = "/v1/rerank") -> DispatchRequest:
    message = Message(dumps(body), {"content-type": "application/json"}, {}, "id", path=path)
    request = RequestClassifier(models).parse(message)
    assert isinstance(request, DispatchRequest)
    return request


def scores(client: Client) -> list[float]:
    results = ask(client, documents=DOCUMENTS)["results"]
    return [row["relevance_score"] for row in sorted(results, key=lambda row: row["index"])]


@pytest.mark.parametrize("name", ["default", "Identity", "Sigmoid"])
def test_scores_are_those_of_a_saved_cross_encoder(tmp_path: Path, name: str) -> None:
    client = load(write_reranker(tmp_path / "ranker", ANSWERS[name]["files"]))
    assert scores(client) == pytest.approx(ANSWERS[name]["scores"], abs=1e-6)


FILES = {name: ANSWERS["default"]["files"][name] for name in ("config.json", "tokenizer_config.json")}


@pytest.mark.parametrize("config", OLDER)
def test_scores_are_those_of_a_cross_encoder_of_an_older_release(
    tmp_path: Path, config: dict[str, Any]
) -> None:
    files = {**FILES, "config.json": FILES["config.json"] | config}
    client = load(write_reranker(tmp_path / "ranker", files))
    assert scores(client) == pytest.approx(ANSWERS["Identity"]["scores"], abs=1e-6)


def test_scores_of_a_classifier_are_those_of_transformers_pipeline(tmp_path: Path) -> None:
    client = load(write_reranker(tmp_path / "ranker", FILES))
    assert scores(client) == pytest.approx(ANSWERS["pipeline"], abs=1e-6)
    # The same as a pair, which has no query: one that is too long is refused there, and not cut off.
    pairs = [{"text": QUERY, "text_pair": document} for document in DOCUMENTS]
    request = classified(client, {"payload": pairs})
    rows: list[Any] = [run(request, number) for number in (0, 1, 2, 3, 5)]
    with pytest.raises(WrongPayload):
        run(request, 4)
    expected = [*ANSWERS["pipeline"][:4], ANSWERS["pipeline"][5]]
    assert [row[0]["score"] for row in rows] == pytest.approx(expected, abs=1e-6)


def test_an_activation_that_is_not_applied_is_refused(tmp_path: Path) -> None:
    folder = write_reranker(tmp_path / "ranker", ANSWERS["Identity"]["files"])
    for file, content in (
        ("config.json", {"sentence_transformers": {"activation_fn": "torch.nn.Tanh"}}),
        ("config_sentence_transformers.json", {"model_type": "CrossEncoder", "default_prompt_name": "web"}),
    ):
        described = json.loads((folder / file).read_text())
        (folder / "config_sentence_transformers.json").unlink(missing_ok=True)
        (folder / file).write_text(json.dumps({**described, **content}))
        with pytest.raises(CommandError):
            read_folder(folder, "text-classification")
        (folder / "config_sentence_transformers.json").write_text("{}")


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Client:
    return load(write_reranker(tmp_path_factory.mktemp("model") / "ranker"))


@pytest.mark.parametrize(
    ("top_n", "indices"), [(1, [1]), (3, [1, 3, 0]), (99, [1, 3, 0, 5, 2, 4]), (None, [1, 3, 0, 5, 2, 4])]
)
def test_documents_are_ordered_by_their_scores_and_top_n_limits_them(
    client: Client, top_n: int | None, indices: list[int]
) -> None:
    rows = ask(client, documents=DOCUMENTS, top_n=top_n)["results"]
    assert [row["index"] for row in rows] == indices
    assert all(row.keys() == {"index", "relevance_score"} for row in rows)


def test_documents_may_be_objects_and_come_back_if_asked_for(client: Client) -> None:
    documents = ["paris", {"text": "ada", "title": "unread"}]
    rows = ask(client, documents=documents, return_documents=True)["results"]
    assert {row["index"]: row["document"] for row in rows} == {0: {"text": "paris"}, 1: {"text": "ada"}}


@pytest.mark.parametrize(
    ("members", "field"),
    [
        ({"documents": []}, "documents"),
        ({"documents": "ada"}, "documents"),
        ({"documents": ["ada", ""]}, "documents[1]"),
        ({"documents": ["ada", 3]}, "documents[1]"),
        ({"documents": ["ada", None]}, "documents[1]"),
        ({"documents": [{"title": "ada"}]}, "documents[0]"),
        ({"documents": [{"text": ["ada"]}]}, "documents[0]"),
        ({"query": ""}, "query"),
        ({"query": ["ada"]}, "query"),
        ({"query": None}, "query"),
        ({"top_n": 0}, "top_n"),
        ({"top_n": -1}, "top_n"),
        ({"top_n": 1.5}, "top_n"),
        ({"top_n": "2"}, "top_n"),
        ({"top_n": True}, "top_n"),
        ({"return_documents": "yes"}, "return_documents"),
        ({"model": 3}, "model"),
        ({"rank_fields": ["title"]}, "rank_fields"),
        *(({missing: ...}, missing) for missing in ("model", "query", "documents")),
    ],
)
def test_a_wrong_or_missing_member_is_named(members: dict[str, Any], field: str) -> None:
    body = {name: each for name, each in {**BODY, **members}.items() if each is not ...}
    with pytest.raises(WrongPayload) as caught:
        RerankRequest.of(body)
    assert caught.value.details["field"] == field


def test_a_query_or_document_with_too_many_characters_is_named(client: Client) -> None:
    for members, field in (
        ({"query": "a" * 40_000}, "query"),
        ({"documents": ["ada", "a" * 40_000]}, "documents[1]"),
    ):
        request = read(models_of({client.name: client}), {**BODY, **members})
        with pytest.raises(WrongPayload) as caught:
            run(request, len(request.records) - 1)
        assert caught.value.details["field"] == field


def test_a_score_that_is_no_number_is_an_error_of_the_model() -> None:
    asked = RerankRequest.of(BODY)
    row = asked.encode([{"label": "relevant", "score": float("nan")}])
    with pytest.raises(ModelFailed):
        asked.answer(iter([row]), DECODED.room())


def test_only_a_classifier_of_one_label_ranks(tmp_path: Path, client: Client) -> None:
    write_text_model(tmp_path / "mood", "text-classification", ("sad", "glad"))
    mood = load_task(tmp_path / "mood", task="text-classification")
    write_text_model(tmp_path / "sentences", "sentence-embeddings")
    sentences = load_task(tmp_path / "sentences", task="sentence-embeddings")
    models = models_of({each.name: each for each in (client, mood, sentences)})
    assert read(models, BODY).client is client
    for name in ("mood", "sentences", "nothing", ""):
        with pytest.raises(UnknownModel):
            read(models, {**BODY, "model": name})
    with pytest.raises(UnknownModel):
        read(models, {"model": "ranker", "input": "ada"}, "/v1/embeddings")
