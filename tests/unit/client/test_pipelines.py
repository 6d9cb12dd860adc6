"""``{"inputs", "parameters"}`` is answered as transformers' pipelines do in SageMaker's Hugging Face container.

The answers are those of transformers' own pipelines, with the same graphs: ``make_pipeline_answers.py`` wrote them.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from sm.client.base import Client
from sm.errors import BadInput, WrongPayload
from tests.support.task_models import (
    load_task,
    write_sound_model,
)
from tests.unit.client.pipelines import (
    QUESTION,
    REQUESTS,
    ask,
    encoded,
    load,
)

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
    if task == "question-answering" and answer["answer"].lower() not in QUESTION["context"].lower():
        return {"score": answer["score"]}
    return answer


LOADED: dict[str, Client] = {}


def load_once(task: str, folder: Path) -> Client:
    """Return a task's client, which is the same for all tests that change nothing of it."""
    if task not in LOADED:
        if task == "automatic-speech-recognition":
            write_sound_model(folder / "model", task)
            LOADED[task] = load_task(folder / "model", task=task)
        else:
            LOADED[task] = load(folder / "model", task)
    return LOADED[task]


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


ANSWERS = json.loads(Path(__file__).with_name("pipeline_answers.json").read_text())


@pytest.mark.parametrize("task", REQUESTS)
def test_a_task_answers_as_its_pipeline(tmp_path: Path, task: str) -> None:
    client = load(tmp_path / "model", task)
    for (inputs, parameters), expected in zip(REQUESTS[task], ANSWERS[task], strict=True):
        if "error" in expected:
            with pytest.raises((WrongPayload, BadInput)):
                ask(client, encoded(inputs), **parameters)
            continue
        found = ask(client, encoded(inputs), **parameters)
        pair = comparable(task, found), comparable(task, expected["answer"])
        assert equal(*pair), (inputs, parameters, *pair)


#: What the box cannot do, of the parameters of the pipelines of 4.57 and 5.
REFUSED: dict[str, tuple[str, ...]] = {
    "text-classification": ("truncation", "padding", "max_length", "tokenizer_kwargs"),
    "token-classification": ("stride", "is_split_into_words", "delimiter", "offset_mapping"),
    "fill-mask": ("tokenizer_kwargs",),
    "question-answering": ("padding", "doc_stride", "max_seq_len", "max_question_len"),
    "zero-shot-classification": ("kwargs", "multi_class", "truncation"),
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
        *("return_tensors", "return_text", "return_type", "clean_up_tokenization_spaces", "truncation"),
        *("stop_sequence", "temperature", "top_k", "top_p", "typical_p", "penalty_alpha", "num_beam_groups"),
        *("diversity_penalty", "bad_words_ids", "force_words_ids", "forced_bos_token_id", "max_time", "seed"),
        *("stopping_criteria", "generation_config", "src_lang", "tgt_lang", "decoder_start_token_id"),
    ),
}

VALUES: tuple[Any, ...] = (1, True, "longest", {})


@pytest.mark.parametrize(("task", "name"), [(task, name) for task in REFUSED for name in REFUSED[task]])
def test_a_parameter_that_is_not_obeyed_is_refused_by_its_name(tmp_path: Path, task: str, name: str) -> None:
    inputs, parameters = REQUESTS.get(task, [("#sound", {})])[0]
    for value in VALUES:
        with pytest.raises(WrongPayload) as caught:
            ask(load_once(task, tmp_path), encoded(inputs), **{**parameters, name: value})
        assert caught.value.details["field"] == f"parameters.{name}"


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
    tmp_path: Path, task: str, name: str, values: tuple[Any, ...]
) -> None:
    inputs, parameters = REQUESTS[task][0]
    for value in values:
        with pytest.raises(WrongPayload) as caught:
            ask(load_once(task, tmp_path), encoded(inputs), **{**parameters, name: value})
        assert str(caught.value.details["field"]).startswith(f"parameters.{name}"), value
