"""Each field of a feature extractor and of a tokenizer of speech is obeyed, refused, or changes no answer."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import pytest
from transformers import Wav2Vec2CTCTokenizer, Wav2Vec2FeatureExtractor

from sm.errors import CommandError
from sm.server.checkpoint.sounds import SOUND, SPEECH, sounds


def test_every_field_of_the_feature_extractor_and_of_the_tokenizer_of_speech_is_in_the_table() -> None:
    extractor = Wav2Vec2FeatureExtractor()  # type: ignore[no-untyped-call]
    assert extractor.to_dict().keys() | vars(extractor).keys() <= SOUND.keys()
    fields = inspect.signature(Wav2Vec2CTCTokenizer.__init__).parameters.keys()
    assert fields - {"self", "vocab_file", "kwargs"} <= SPEECH.keys()


def test_what_transformers_saves_by_itself_is_taken(tmp_path: Path) -> None:
    (tmp_path / "vocab.json").write_text(json.dumps({"<pad>": 0, "|": 1, "a": 2, "<unk>": 3}))
    Wav2Vec2FeatureExtractor(sampling_rate=8000, do_normalize=False).save_pretrained(tmp_path)  # type: ignore[no-untyped-call]
    Wav2Vec2CTCTokenizer(str(tmp_path / "vocab.json")).save_pretrained(tmp_path)  # type: ignore[no-untyped-call]
    expected = {"rate": 8000, "normalise": False, "blank": "<pad>", "delimiter": "|"}
    assert sounds(tmp_path, is_speech=True) == expected


def test_the_file_of_a_whole_processor_counts_too(tmp_path: Path) -> None:
    extractor = {"sampling_rate": 8000, "do_normalize": False}
    (tmp_path / "processor_config.json").write_text(json.dumps({"feature_extractor": extractor}))
    assert sounds(tmp_path, is_speech=False) == {"rate": 8000, "normalise": False}


@pytest.mark.parametrize(
    ("file", "fields"),
    [
        ("preprocessor_config.json", {"feature_extractor_type": "WhisperFeatureExtractor"}),
        ("preprocessor_config.json", {"feature_extractor_type": "ASTFeatureExtractor"}),
        ("preprocessor_config.json", {"feature_size": 80}),
        ("preprocessor_config.json", {"padding_value": 1.0}),
        ("preprocessor_config.json", {"padding_side": "left"}),
        ("tokenizer_config.json", {"do_lower_case": True}),
        ("tokenizer_config.json", {"replace_word_delimiter_char": "_"}),
        ("tokenizer_config.json", {"target_lang": "fra"}),
        ("tokenizer_config.json", {"tokenizer_class": "Wav2Vec2PhonemeCTCTokenizer"}),
    ],
)
def test_what_is_not_done_is_refused_by_its_field(tmp_path: Path, file: str, fields: dict[str, Any]) -> None:
    (tmp_path / file).write_text(json.dumps(fields))
    with pytest.raises(CommandError, match=next(iter(fields))):
        sounds(tmp_path, is_speech=True)
