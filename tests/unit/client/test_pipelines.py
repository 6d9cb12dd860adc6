"""``{"inputs", "parameters"}`` is answered as transformers' pipelines do in SageMaker's Hugging Face container.

The answers are those of transformers' own pipelines, with the same graphs: ``make_pipeline_answers.py`` wrote them.
"""

from __future__ import annotations

import base64
import importlib
import inspect
import json
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from tokenizers import Tokenizer

from sm.client.base import Client
from sm.client.fill_mask import MaskClient
from sm.errors import BadInput, UnsupportedType, WrongPayload
from sm.router.request_types import DispatchRequest, TritonRequest
from tests.support.task_models import (
    load_task,
    load_translator,
    write_sound_model,
    write_text_model,
    write_translator,
)
from tests.unit.client.pipelines import ANSWERS_FILE, GENERATED, ask, ask_body, encoded, load, parse
from trireme_extensions.tasks.forms.hugging_face import ALL, FORMS_OF_TASKS, OTHER, form_of

ANSWERS = json.loads(ANSWERS_FILE.read_text())
#: In the long text beside it many answers have equal scores.
CONTEXT = ANSWERS["question-answering"][0]["inputs"]["context"].lower()
#: Scores of objects have four digits here.
TOLERANCE = 1e-4


def comparable(task: str, answer: Any) -> Any:
    """Return an answer without what is decided by chance between equal scores, or by the order of objects."""
    if isinstance(answer, list):
        rows = [comparable(task, each) for each in answer]
        is_row = task in ("object-detection", "audio-classification") and any(
            isinstance(each, dict) for each in answer
        )
        return sorted(rows, key=lambda row: (-round(row["score"], 4), row["label"])) if is_row else rows
    if task == "question-answering" and answer["answer"].lower() not in CONTEXT:
        return {"score": answer["score"]}
    return answer


def equal(found: Any, expected: Any) -> bool:
    """True if an answer is the expected one; a mask in base64 is that of the rows of numbers."""
    if isinstance(expected, dict):
        return found.keys() == expected.keys() and all(
            equal(found[name], expected[name]) for name in expected
        )
    if isinstance(found, str) and isinstance(expected, list):
        content = np.frombuffer(base64.b64decode(found), np.uint8)
        return bool((cv2.imdecode(content, cv2.IMREAD_UNCHANGED) == np.array(expected)).all())
    if isinstance(expected, list):
        return len(found) == len(expected) and all(map(equal, found, expected))
    if isinstance(expected, float):
        return bool(found == pytest.approx(expected, abs=TOLERANCE))
    return bool(found == expected)


@pytest.mark.parametrize("task", ANSWERS)
def test_a_task_answers_as_its_pipeline(tmp_path: Path, task: str) -> None:
    client = load(tmp_path / "model", task)
    for row in ANSWERS[task]:
        asked = encoded(row["inputs"])
        if "error" in row:
            with pytest.raises((WrongPayload, BadInput)):
                ask(client, asked, **row["parameters"])
            continue
        found = ask(client, asked, **row["parameters"])
        pair = comparable(task, found), comparable(task, row["answer"])
        assert equal(*pair), (row["inputs"], row["parameters"], *pair)


ADA = "ada lives in paris"
TEXTS: list[tuple[Any, dict[str, Any], list[str]]] = [
    (ADA, {}, ["ada wohnt in paris"]),
    (["ada lives"], {}, ["ada wohnt"]),
    (["ada", ADA], {}, ["ada", "ada wohnt in paris"]),
]
#: The parameters that choose among the rules of generation, which ``tasks/test_token_rules.py`` holds.
RULES: list[tuple[Any, dict[str, Any], list[str]]] = [
    (ADA, {"max_new_tokens": 1}, ["ada"]),
    (ADA, {"max_new_tokens": 2}, ["ada wohnt"]),
    (ADA, {"max_length": 2}, ["ada wohnt in paris"]),
    (ADA, {"num_beams": 3}, ["ada wohnt in paris"]),
    ("ada ada ada ada", {"no_repeat_ngram_size": 2, "num_beams": 1}, ["ada ada"]),
    ("ada ada ada", {"repetition_penalty": 9.0}, ["ada ada ada"]),
    ("ada", {"min_new_tokens": 3, "num_beams": 1}, ["ada"]),
    (
        "ada lives",
        {"min_length": 2, "num_beams": 2, "length_penalty": 2.0, "early_stopping": True},
        ["ada wohnt"],
    ),
    (ADA, {"do_sample": False, "num_return_sequences": 1}, ["ada wohnt in paris"]),
]


@pytest.mark.parametrize("task", GENERATED)
def test_a_generated_text_has_the_form_of_its_pipeline(tmp_path: Path, task: str) -> None:
    client = load(tmp_path / "model", task)
    name = {"summarization": "summary", "translation": "translation"}.get(task, "generated")
    for inputs, parameters, texts in (*TEXTS, *(RULES if name == "generated" else ())):
        assert ask(client, inputs, **parameters) == [{f"{name}_text": text} for text in texts], parameters


FIRST = {task: rows[0] for task, rows in ANSWERS.items()}
FIRST["automatic-speech-recognition"] = {"inputs": "#sound", "parameters": {}}
FIRST["text2text-generation"] = {"inputs": ADA, "parameters": {}}


@pytest.fixture(scope="module")
def clients(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Client]:
    folder = tmp_path_factory.mktemp("models")
    speech = "automatic-speech-recognition"
    found: dict[str, Client] = {speech: load_task(write_sound_model(folder / speech, speech), task=speech)}
    return {**found, **{task: load(folder / task, task) for task in FIRST if task != speech}}


def refused_field(clients: dict[str, Client], task: str, name: str, value: Any) -> str:
    """Return the field that the error for a value of a parameter names."""
    inputs, parameters = encoded(FIRST[task]["inputs"]), {**FIRST[task]["parameters"], name: value}
    with pytest.raises(WrongPayload) as caught:
        ask(clients[task], inputs, **parameters)
    return str(caught.value.details["field"])


#: What the box cannot do, of the parameters of the pipelines of 4.57 and 5.
REFUSED: dict[str, tuple[str, ...]] = {
    "text-classification": ("stride", "is_split_into_words", "return_offsets_mapping"),
    "token-classification": ("is_split_into_words", "delimiter", "offset_mapping"),
    "fill-mask": ("truncation", "padding"),
    "zero-shot-classification": ("kwargs", "multi_class", "truncation", "max_input_tokens"),
    "image-classification": ("timeout",),
    "object-detection": ("kwargs", "timeout"),
    "image-segmentation": (
        *("kwargs", "subtask", "threshold", "mask_threshold", "overlap_mask_area_threshold", "timeout"),
    ),
    "audio-classification": ("kwargs",),
    "automatic-speech-recognition": (
        *("chunk_length_s", "stride_length_s", "ignore_warning", "decoder_kwargs", "return_timestamps"),
        *("return_language", "max_new_tokens", "generate_kwargs"),
    ),
    "text2text-generation": (
        *("return_tensors", "return_text", "return_type", "clean_up_tokenization_spaces"),
        *("stop_sequence", "temperature", "top_k", "top_p", "typical_p", "penalty_alpha", "num_beam_groups"),
        *("diversity_penalty", "bad_words_ids", "force_words_ids", "forced_bos_token_id", "max_time", "seed"),
        *("stopping_criteria", "generation_config", "src_lang", "tgt_lang", "decoder_start_token_id"),
    ),
}


@pytest.mark.parametrize(("task", "name"), [(task, name) for task in REFUSED for name in REFUSED[task]])
def test_a_parameter_that_is_not_obeyed_is_refused_by_its_name(
    clients: dict[str, Client], task: str, name: str
) -> None:
    values: tuple[Any, ...] = (1, True, "longest", {})
    assert {refused_field(clients, task, name, value) for value in values} == {f"parameters.{name}"}


#: The parameters that are obeyed, or that change no answer, of every pipeline and of each.
OF_ALL = {"num_workers", "batch_size"}
TAKEN: dict[str, set[str]] = {
    "text-classification": {"function_to_apply", "top_k", "tokenizer_kwargs"},
    "token-classification": {"ignore_labels", "aggregation_strategy", "stride"},
    "fill-mask": {"top_k", "targets", "tokenizer_kwargs"},
    "image-classification": {"top_k", "function_to_apply"},
    "audio-classification": {"top_k", "function_to_apply"},
    "feature-extraction": {"truncation", "tokenize_kwargs", "return_tensors"},
}


@pytest.mark.parametrize(
    "task",
    [
        *("text-classification", "token-classification", "fill-mask", "image-classification"),
        *("audio-classification", "automatic-speech-recognition", "feature-extraction"),
    ],
)
def test_each_parameter_of_transformers_pipeline_is_taken_or_refused(task: str) -> None:
    module = importlib.import_module(f"transformers.pipelines.{task.replace('-', '_')}")
    name = "".join(word.title() for word in task.split("-")) + "Pipeline"
    signature = inspect.signature(getattr(module, name)._sanitize_parameters)
    own = {*signature.parameters} - {"self", "kwargs"}
    known = TAKEN.get(task, set()) | {*REFUSED.get(task, ())}
    assert own <= known, own - known


#: 12 tokens: [CLS], ten words, [SEP].
WORDS = ["ada", "lives", "in", "paris", "where", "ada", "lives", "in", "paris", "ada"]


def cut(words: int) -> str:
    return " ".join((WORDS * 9)[:words])


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Client:
    """A classifier of at most eight tokens."""
    folder = tmp_path_factory.mktemp("models") / "short"
    write_text_model(folder, "text-classification", ("sad", "glad"))
    return load_task(folder, task="text-classification", max_length=8)


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"truncation": True}, 6),
        ({"truncation": "longest_first"}, 6),
        ({"truncation": "only_first", "padding": "max_length", "max_length": 5}, 3),
        ({"truncation": True, "max_length": 5}, 3),
        ({"truncation": True, "max_length": 500}, 6),
        ({"max_length": 4}, 2),
        ({"tokenizer_kwargs": {"truncation": True, "max_length": 4}}, 2),
        ({"tokenizer_kwargs": {"max_length": 4}, "max_length": 5}, 3),
        ({"truncation": True, "batch_size": 8, "num_workers": 0}, 6),
    ],
)
def test_a_text_is_cut_off_as_the_pipelines_tokenizer_is_asked_to(
    short: Client, parameters: dict[str, Any], words: int
) -> None:
    assert ask(short, cut(10), **parameters) == ask(short, cut(words))
    both = ask(short, [cut(10), "ada"], **parameters)
    assert both == [*ask(short, cut(words)), *ask(short, "ada")]


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"truncation": False},
        {"truncation": "do_not_truncate", "max_length": 4},
        {"padding": True},
        {"padding": True, "max_length": 4},
    ],
)
def test_a_long_text_that_nobody_asks_to_cut_off_is_refused(
    short: Client, parameters: dict[str, Any]
) -> None:
    with pytest.raises(WrongPayload):
        ask(short, cut(10), **parameters)
    assert ask(short, cut(6), **parameters) == ask(short, cut(6))


def test_a_text_to_be_generated_from_is_cut_off_if_that_is_asked_for(tmp_path: Path) -> None:
    write_translator(tmp_path / "short")
    client = load_translator(tmp_path / "short", max_length=4)
    with pytest.raises(WrongPayload):
        ask(client, ADA)
    for way in (True, "longest_first", "only_first"):
        assert ask(client, ADA, truncation=way) == ask(client, "ada lives in")
    ways: tuple[Any, ...] = (False, "do_not_truncate", 1, "some")
    for refused in ways:
        with pytest.raises(WrongPayload):
            ask(client, ADA, truncation=refused)


UNREADABLE: dict[str, tuple[Any, ...]] = {
    "truncation": (1, "some", [], {}, "only_second"),
    "max_length": (0, -1, 1.5, "8", True, 2),
    "padding": (1, "left", [], {}),
    "batch_size": (-1, 1.5, "two", True),
    "tokenizer_kwargs": (1, [], {"stride": 2}),
}


@pytest.mark.parametrize(
    ("name", "value"),
    [(name, value) for name, values in UNREADABLE.items() for value in values],
)
def test_what_a_tokenizer_cannot_take_is_refused(short: Client, name: str, value: Any) -> None:
    with pytest.raises(WrongPayload):
        ask(short, cut(10), **{name: value})


def test_a_pair_loses_the_end_of_its_longer_text_as_tokenizers_do(short: Client) -> None:
    client: Any = short
    for most in (5, 6, 7):
        # Of the last two texts each has many more tokens than the model reads.
        for first, second in ((10, 1), (1, 10), (3, 10), (10, 10), (4, 3), (60, 90), (90, 60)):
            tokenizer = Tokenizer.from_str(client.tokenizer.to_str())
            tokenizer.enable_truncation(most)
            right = tokenizer.encode(cut(first), cut(second))
            pair = {"text": cut(first), "text_pair": cut(second), "parameters": {"max_input_tokens": most}}
            (own,) = client.encode([client.payload.model_validate(pair)])
            assert (own.ids, own.type_ids) == (right.ids, right.type_ids), (most, first, second)


def test_a_text_with_a_mask_is_cut_off_at_its_end(clients: dict[str, Client]) -> None:
    client = clients["fill-mask"]
    text = "[MASK] " + cut(10)
    whole, most = ask(client, "[MASK] " + cut(2)), {"truncation": True, "max_length": 5}
    assert ask(client, text, tokenizer_kwargs=most) == whole
    with pytest.raises(WrongPayload):
        ask(client, f"{cut(10)} [MASK]", tokenizer_kwargs=most)


@pytest.mark.parametrize(
    ("task", "name", "values"),
    [
        *(
            ("text2text-generation", name, (-1, 10**30, 1.5, "many", True, [3], {}))
            for name in ("max_new_tokens", "max_length", "min_length", "min_new_tokens", "num_beams")
        ),
        ("text2text-generation", "max_new_tokens", (0, 513)),
        ("text2text-generation", "repetition_penalty", (0, -1, 1e300, "much", True, [])),
        ("text2text-generation", "length_penalty", (1e300, "much", True, [])),
        ("text2text-generation", "do_sample", (True, "no", 2)),
        ("text2text-generation", "num_return_sequences", (0, 2, True)),
        ("text2text-generation", "early_stopping", ("always", 2, [])),
        ("text-classification", "top_k", (0, -1, 10**30, 1.5, "two", True, [1])),
        ("text-classification", "function_to_apply", (1, True, [], "default")),
        ("token-classification", "ignore_labels", ("O", 1, {}, [1])),
        ("token-classification", "aggregation_strategy", (1, True, [])),
        ("fill-mask", "top_k", (0, 101, True, "2.5")),
        ("fill-mask", "targets", (1, [1], {}, True)),
        ("question-answering", "top_k", (0, 101, True)),
        ("question-answering", "max_answer_len", (0, -1, 10**6, True, "long")),
        ("question-answering", "handle_impossible_answer", (2, "maybe", [])),
        ("object-detection", "threshold", (-0.1, 1.1, "low", True, [])),
        ("zero-shot-classification", "multi_label", (2, "maybe", [])),
        ("zero-shot-classification", "hypothesis_template", (1, [], "no place")),
    ],
)
def test_a_value_out_of_range_is_refused_by_its_name(
    clients: dict[str, Client], task: str, name: str, values: tuple[Any, ...]
) -> None:
    for value in values:
        assert refused_field(clients, task, name, value).startswith(f"parameters.{name}"), value


@pytest.fixture
def mood(clients: dict[str, Client]) -> Client:
    return clients["text-classification"]


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
    assert FORMS_OF_TASKS[task].read("x", {"top_k": None})[1].get("top_k") == top


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
    assert FORMS_OF_TASKS["tabular"].read(inputs, {}) == ([{"rows": rows}], {})


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


def test_what_curl_calls_json_is_tensors_or_named_in_a_415(mood: Client) -> None:
    form = "application/x-www-form-urlencoded"
    assert isinstance(parse(mood, {"inputs": [TENSOR]}, form), TritonRequest)
    with pytest.raises(UnsupportedType, match="x-www-form-urlencoded"):
        ask_body(mood, {"inputs": "ada"}, form)


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
    ("own", "form"),
    [({}, FORMS_OF_TASKS["text-classification"]), ({"postprocess": lambda *_: "fine"}, OTHER)],
)
def test_a_client_of_a_tasks_class_answers_as_the_task_unless_it_has_results_of_its_own(
    mood: Client, own: dict[str, Any], form: object
) -> None:
    client = type("Own", (type(mood),), own)(mood.triton, mood.folder, mood.repository)
    assert form_of(client) is form


def test_a_client_of_masks_without_a_task_answers_as_the_task_does() -> None:
    client = MaskClient.__new__(MaskClient)
    assert form_of(client) is FORMS_OF_TASKS["fill-mask"]
