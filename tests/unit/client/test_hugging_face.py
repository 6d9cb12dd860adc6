"""``{"inputs"}`` of every task is answered as transformers' pipelines do, in SageMaker's Hugging Face container."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sm.client.base import Client
from sm.client.hugging_face import OTHER, PIPELINES, pipeline_of
from sm.client.tasks import TASKS
from sm.errors import WrongPayload
from sm.plugins.registry import Registry
from sm.router.answers import write_pipeline
from sm.router.classify import Classifier, DispatchRequest, Message, TritonRequest
from sm.router.dispatch import run_record
from tests.support.task_models import load_task, write_text_model


def parse(client: Client, body: Any) -> Any:
    classifier = Classifier(Registry({client.name: client}), client.name)
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return classifier.parse(Message(content, {"content-type": "application/json"}, {}, "id"))


def ask(client: Client, inputs: Any, **parameters: Any) -> Any:
    return ask_body(client, {"inputs": inputs, **({"parameters": parameters} if parameters else {})})


def ask_body(client: Client, body: Any) -> Any:
    request = parse(client, body)
    assert isinstance(request, DispatchRequest)
    results = [run_record(request, number, request.place(number)) for number in range(len(request.records))]
    return json.loads(write_pipeline(request, results).read())


def load(folder: Path, task: str, labels: tuple[str, ...] = (), **options: Any) -> Client:
    write_text_model(folder, task, labels)
    return load_task(folder, task=task, **options)


def test_text_classification(tmp_path: Path) -> None:
    client = load(tmp_path / "mood", "text-classification", ("sad", "glad", "mad"))
    (one,) = ask(client, "ada lives")
    assert one.keys() == {"label", "score"}
    assert ask(client, ["ada lives", "paris"])[0] == one
    assert ask(client, "ada lives", top_k=2)[0] == one
    assert len(ask(client, "ada lives", top_k=2)) == 2
    assert len(ask(client, "ada lives", top_k=None)) == 3
    assert [len(rows) for rows in ask(client, ["ada", "lives"], top_k=1)] == [1, 1]
    assert [len(rows) for rows in ask(client, "ada", return_all_scores=True)] == [3]
    assert ask(client, {"text": "ada lives"}) == one
    pair, alone = {"text": "ada", "text_pair": "lives"}, {"text": "ada"}
    assert ask(client, pair)["score"] != ask(client, alone)["score"]
    assert ask(client, [pair, alone]) == [ask(client, pair), ask(client, alone)]


def test_question_answering(tmp_path: Path) -> None:
    client = load(tmp_path / "answers", "question-answering")
    question = {"question": "where ?", "context": "ada lives in paris ."}
    one = ask(client, question)
    assert one.keys() == {"answer", "score", "start", "end"}
    assert ask(client, [question]) == one
    assert ask(client, [question, question]) == [one, one]
    assert ask(client, question, top_k=2)[0] == one


def test_token_classification(tmp_path: Path) -> None:
    client = load(tmp_path / "tokens", "token-classification", ("PER", "LOC"))
    rows = ask(client, "ada lives", aggregation_strategy="simple")
    assert rows[0].keys() == {"entity_group", "score", "word", "start", "end"}
    assert ask(client, ["ada lives"]) == [rows]
    with pytest.raises(WrongPayload):
        ask(client, "ada", aggregation_strategy="max")


def test_zero_shot_classification(tmp_path: Path) -> None:
    write_text_model(tmp_path / "zero", "text-classification", ("contradiction", "entailment"))
    client = load_task(tmp_path / "zero", task="zero-shot-classification")
    one = ask(client, "ada", candidate_labels=["paris", "lives"])
    assert one["sequence"] == "ada"
    assert sorted(one["labels"]) == ["lives", "paris"]
    assert len(one["scores"]) == 2
    assert ask(client, "ada", candidate_labels="paris, lives") == one
    assert ask(client, ["ada"], candidate_labels=["paris", "lives"]) == [one]
    with pytest.raises(WrongPayload) as caught:
        ask(client, "ada")
    assert caught.value.details["field"] == "parameters.candidate_labels"


def test_fill_mask(tmp_path: Path) -> None:
    client = load(tmp_path / "mask", "fill-mask")
    rows = ask(client, "ada [MASK] in paris .", top_k=3)
    assert len(rows) == 3
    for row in rows:
        assert row.keys() == {"score", "token", "token_str", "sequence"}
        assert client.tokenizer.id_to_token(row["token"]) == row["token_str"]  # type: ignore[attr-defined]
    assert ask(client, ["ada [MASK] in paris ."], top_k=3) == [rows]


def test_embeddings_are_a_vector_for_each_text(tmp_path: Path) -> None:
    client = load(tmp_path / "vectors", "sentence-embeddings")
    (one,) = ask(client, "ada")
    assert len(one) == 6
    assert ask(client, ["ada", "paris"])[0] == one


def test_every_task_has_its_form_or_the_clients_own_result() -> None:
    assert TASKS.keys() - PIPELINES.keys() == {"automatic-speech-recognition", "image-segmentation"}
    assert OTHER.write(["a"], {}, [{"text": "x"}], None) == [{"text": "x"}]
    assert OTHER.write("a", {}, [{"text": "x"}], None) == {"text": "x"}


def test_detected_objects_have_whole_corners() -> None:
    row = {"label": "a", "class_id": 0, "score": 0.5, "box": {"x1": 1.9, "y1": 2.0, "x2": 3.2, "y2": 4.0}}
    box = {"xmin": 1, "ymin": 2, "xmax": 3, "ymax": 4}
    answer = PIPELINES["object-detection"].write("picture", {}, [[row]], None)
    assert answer == [{"label": "a", "score": 0.5, "box": box}]


def test_generated_texts_are_a_list() -> None:
    pipeline = PIPELINES["text2text-generation"]
    assert pipeline.write("a", {}, [{"text": "b"}], None) == [{"generated_text": "b"}]
    assert pipeline.read("a", {"max_new_tokens": 3}) == (["a"], {"max_tokens": 3})


@pytest.mark.parametrize(
    ("inputs", "rows"),
    [
        ([[1, 2], [3, 4]], [[1, 2], [3, 4]]),
        ([1, 2], [[1, 2]]),
        ({"a": 1}, [{"a": 1}]),
        ([{"a": 1}, {"a": 2}], [{"a": 1}, {"a": 2}]),
        ({"data": {"a": [1, 3], "b": [2, 4]}}, [{"a": 1, "b": 2}, {"a": 3, "b": 4}]),
    ],
)
def test_rows_of_a_table_come_in_every_usual_form(inputs: Any, rows: Any) -> None:
    assert PIPELINES["tabular"].read(inputs, {}) == ([{"rows": rows}], {})


TENSOR = {"name": "x", "shape": [1], "datatype": "FP32", "data": [1]}


@pytest.mark.parametrize(
    "body",
    [
        {"inputs": [TENSOR]},
        {"parameters": {}, "inputs": [TENSOR]},
        {"inputs": []},
        {"inputs": [{"name": "x", "datatype": "FP32"}]},
        b'{"inputs": [',
    ],
)
def test_tensors_are_tritons(tmp_path: Path, body: Any) -> None:
    client = load(tmp_path / "mood", "text-classification", ("sad", "glad"))
    assert isinstance(parse(client, body), TritonRequest)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"inputs": "ada", "truncate": True}, "truncate"),
        ({"inputs": "ada", "parameters": [1]}, "parameters"),
        ({"inputs": None}, "inputs"),
        ({"inputs": "ada", "parameters": {"top_q": 1}}, "parameters.top_q"),
        ({"inputs": {"txt": "ada"}}, "inputs.text"),
        ({"inputs": ["ada", 5]}, "inputs[1]"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_place(tmp_path: Path, body: Any, field: str) -> None:
    client = load(tmp_path / "mood", "text-classification", ("sad", "glad"))
    with pytest.raises(WrongPayload) as caught:
        ask_body(client, body)
    assert caught.value.details["field"] == field


def test_a_client_of_a_tasks_class_answers_as_the_task(tmp_path: Path) -> None:
    client = load(tmp_path / "mood", "text-classification", ("sad", "glad"))
    own = type("Own", (type(client),), {})(client.triton, client.folder, client.repository)
    assert pipeline_of(own) is PIPELINES["text-classification"]
