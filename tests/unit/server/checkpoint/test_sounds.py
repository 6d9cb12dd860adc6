"""What the files of sound and speech say becomes the options of their tasks."""

from __future__ import annotations

import json
from pathlib import Path

from transformers import Wav2Vec2CTCTokenizer, Wav2Vec2FeatureExtractor

from sm.server.checkpoint.sounds import sounds


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
