"""``{"inputs"}`` is told apart from tensors, and refused with the place of what is wrong; the answers: ``test_pipelines.py``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sm.client.base import Client
from sm.client.hugging_face import ALL, OTHER, PIPELINES, pipeline_of
from sm.client.tasks.task_table import TASKS
from sm.errors import WrongPayload
from sm.models.found_clients import models_of
from sm.router.classify import Classifier, DispatchRequest, Message, TritonRequest
from tests.support.task_models import load_task, write_text_model
from tests.unit.client.pipelines import ask, ask_body, parse


def load(folder: Path, task: str, labels: tuple[str, ...] = (), **options: Any) -> Client:
    write_text_model(folder, task, labels)
    return load_task(folder, task=task, **options)


def test_embeddings_are_a_vector_for_each_text(tmp_path: Path) -> None:
    client = load(tmp_path / "vectors", "sentence-embeddings")
    (one,) = ask(client, "ada")
    assert len(one) == 6
    assert ask(client, ["ada", "paris"])[0] == one


@pytest.mark.parametrize(
    ("task", "top"),
    [("audio-classification", ALL), ("image-classification", None), ("text-classification", ALL)],
)
def test_no_number_of_labels_is_all_of_them_but_for_pictures(task: str, top: int | None) -> None:
    """Transformers' pipeline of pictures takes ``top_k=None`` as its default."""
    assert PIPELINES[task].read("x", {"top_k": None})[1].get("top_k") == top


def test_every_task_has_its_form_or_the_clients_own_result() -> None:
    assert TASKS.keys() - PIPELINES.keys() == {"automatic-speech-recognition"}
    assert OTHER.write(["a"], {}, [{"text": "x"}], None) == [{"text": "x"}]
    assert OTHER.write("a", {}, [{"text": "x"}], None) == {"text": "x"}


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


@pytest.mark.parametrize(
    "kind", ["text/json", "application/vnd.acme+json", "application/ld+json;charset=utf-8"]
)
@pytest.mark.parametrize("body", [{"payload": {"text": "ada"}}, {"inputs": "ada"}])
def test_every_name_of_json_is_json(tmp_path: Path, kind: str, body: Any) -> None:
    client = load(tmp_path / "mood", "text-classification", ("sad", "glad"))
    classifier = Classifier(models_of({client.name: client}), client.name)
    request = classifier.parse(Message(json.dumps(body).encode(), {"content-type": kind}, {}, "id"))
    assert isinstance(request, DispatchRequest)
    assert len(request.records) == 1


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


def test_a_client_with_results_of_its_own_answers_with_them(tmp_path: Path) -> None:
    client = load(tmp_path / "mood", "text-classification", ("sad", "glad"))
    own = type("Own", (type(client),), {"postprocess": lambda *_: "fine"})
    assert pipeline_of(own(client.triton, client.folder, client.repository)) is OTHER
