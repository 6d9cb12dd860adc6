"""What the files of generated text, of sound and of speech say becomes the options of their tasks."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import Wav2Vec2CTCTokenizer, Wav2Vec2FeatureExtractor

from sm.errors import CommandError
from tests.support.task_models import write_sound_model, write_translator
from trireme_extensions.tasks.checkpoint.generation_config import generation
from trireme_extensions.tasks.checkpoint.sounds import sounds
from trireme_extensions.tasks.hugging_face import read_folder

ENDS = {"decoder_start_token_id": 0, "eos_token_id": 1}


def read(folder: Path, **fields: Any) -> dict[str, Any]:
    (folder / "generation_config.json").write_text(json.dumps({**ENDS, **fields}))
    return generation(folder, {})


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, {}),
        ({"forced_bos_token_id": 5}, {"forced_bos_token_id": 5}),
        ({"bad_words_ids": [[3], [4, 5]]}, {"bad_words_ids": [[3], [4, 5]]}),
        ({"num_beams": 4, "early_stopping": True}, {"num_beams": 4, "early_stopping": True}),
        ({"temperature": 0.5, "top_k": 50, "do_sample": False, "use_cache": True}, {}),
        ({"num_beams": None, "max_length": 64}, {"max_length": 64}),
        ({"sequence_bias": [[[4, 5], 2.5]]}, {"sequence_bias": [[[4, 5], 2.5]]}),
    ],
)
def test_a_rule_comes_into_the_options(tmp_path: Path, fields: dict[str, Any], expected: Any) -> None:
    rules = {"rules": expected} if expected else {}
    assert read(tmp_path, **fields) == {"start": 0, "end": [1], **rules}


def test_without_the_file_the_configuration_has_the_rules(tmp_path: Path) -> None:
    options = generation(tmp_path, {**ENDS, "num_beams": 2, "hidden_size": 8})
    assert options == {"start": 0, "end": [1], "rules": {"num_beams": 2}}


def test_what_transformers_saves_of_speech_or_of_a_whole_processor_is_taken(tmp_path: Path) -> None:
    extractor = {"sampling_rate": 8000, "do_normalize": False}
    (tmp_path / "processor_config.json").write_text(json.dumps({"feature_extractor": extractor}))
    assert sounds(tmp_path, is_speech=False) == {"rate": 8000, "normalise": False}
    (tmp_path / "processor_config.json").unlink()
    (tmp_path / "vocab.json").write_text(json.dumps({"<pad>": 0, "|": 1, "a": 2, "<unk>": 3}))
    Wav2Vec2FeatureExtractor(**extractor).save_pretrained(tmp_path)  # type: ignore[no-untyped-call]
    Wav2Vec2CTCTokenizer(str(tmp_path / "vocab.json")).save_pretrained(tmp_path)  # type: ignore[no-untyped-call]
    expected = {"rate": 8000, "normalise": False, "blank": "<pad>", "delimiter": "|"}
    assert sounds(tmp_path, is_speech=True) == expected


TEXT, SPEECH, SOUNDS = "text2text-generation", "automatic-speech-recognition", "audio-classification"
HEARS = {"rate": 16_000, "normalise": True}


@pytest.mark.parametrize(
    ("write", "task", "options"),
    [
        (write_translator, TEXT, {"start": 0, "end": [5]}),
        (lambda path: write_sound_model(path, SPEECH), SPEECH, {**HEARS, "blank": "<pad>", "delimiter": "|"}),
        (lambda path: write_sound_model(path, SOUNDS), SOUNDS, HEARS),
    ],
    ids=["text", "speech", "sounds"],
)
def test_a_folder_says_its_task_and_the_options(
    tmp_path: Path, write: Callable[[Path], Path], task: str, options: dict[str, object]
) -> None:
    found = read_folder(write(tmp_path / "checkpoint"), "")
    assert json.loads(found.files["task.json"]) == {"task": task, **options}


def test_an_encoder_needs_its_decoder_beside_it(tmp_path: Path) -> None:
    found = read_folder(write_translator(tmp_path), "")
    assert found.graphs("mood")["mood_decoder"] == tmp_path / "decoder_model.onnx"
    (tmp_path / "decoder_model.onnx").unlink()
    with pytest.raises(CommandError, match=r"decoder_model\.onnx"):
        found.graphs("mood")
