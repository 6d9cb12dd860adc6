"""``{"inputs"}`` is told apart from tensors, and refused with the place of what is wrong; the answers: ``test_pipelines.py``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sm.client.base import Client
from sm.client.hugging_face import ALL, OTHER, PIPELINES, pipeline_of
from sm.errors import WrongPayload
from sm.router.request_types import DispatchRequest, TritonRequest
from tests.support.task_models import load_task, write_text_model
from tests.unit.client.pipelines import ask, ask_body, parse


@pytest.fixture(scope="module")
def mood(tmp_path_factory: pytest.TempPathFactory) -> Client:
    folder = tmp_path_factory.mktemp("model") / "mood"
    write_text_model(folder, "text-classification", ("sad", "glad"))
    return load_task(folder, task="text-classification")


def test_embeddings_are_a_vector_for_each_text(tmp_path: Path) -> None:
    write_text_model(tmp_path / "vectors", "sentence-embeddings")
    client = load_task(tmp_path / "vectors", task="sentence-embeddings")
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
    ("body", "kind"),
    [
        ({"inputs": "ada"}, DispatchRequest),
        ({"inputs": [TENSOR]}, TritonRequest),
        ({"parameters": {}, "inputs": [TENSOR]}, TritonRequest),
        ({"inputs": []}, TritonRequest),
        ({"inputs": [{"name": "x", "datatype": "FP32"}]}, TritonRequest),
        (b'{"inputs": [', TritonRequest),
    ],
)
def test_tensors_are_tritons_and_everything_else_is_the_clients(mood: Client, body: Any, kind: type) -> None:
    assert isinstance(parse(mood, body), kind)


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
def test_what_does_not_fit_is_refused_with_its_place(mood: Client, body: Any, field: str) -> None:
    with pytest.raises(WrongPayload) as caught:
        ask_body(mood, body)
    assert caught.value.details["field"] == field


@pytest.mark.parametrize(
    ("own", "pipeline"),
    [({}, PIPELINES["text-classification"]), ({"postprocess": lambda *_: "fine"}, OTHER)],
)
def test_a_client_of_a_tasks_class_answers_as_the_task_unless_it_has_results_of_its_own(
    mood: Client, own: dict[str, Any], pipeline: object
) -> None:
    client = type("Own", (type(mood),), own)(mood.triton, mood.folder, mood.repository)
    assert pipeline_of(client) is pipeline
