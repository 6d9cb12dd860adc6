"""The page says of ``config.json`` what the code reads of it, and what transformers reads of it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import transformers
from transformers import PretrainedConfig

from sm.client.tasks.task_table import TASKS
from sm.server import hugging_face
from sm.server.checkpoint.generation_config import GENERATION
from sm.server.checkpoint.pictures import FILE
from tests.support.checkpoint_fields import CONFIG


class Noted(dict[str, Any]):
    """An object that knows which of its fields were asked for."""

    def __init__(self, content: Mapping[str, Any], asked: set[str]) -> None:
        super().__init__(content)
        self.asked = asked

    def get(self, key: str, default: Any = None) -> Any:
        self.asked.add(key)
        return super().get(key, default)

    def __getitem__(self, key: str) -> Any:
        self.asked.add(key)
        return super().__getitem__(key)


#: The second leaves out what the first says, so that the code looks for it elsewhere.
CONFIGURATIONS: tuple[tuple[dict[str, Any], tuple[str, ...]], ...] = (
    (
        {
            "architectures": ["BertForMaskedLM"],
            "max_position_embeddings": 9,
            "id2label": {"0": "a"},
            "decoder_start_token_id": 0,
            "eos_token_id": 1,
        },
        ("", *TASKS),
    ),
    ({"bos_token_id": 0, "eos_token_id": 1}, ("text2text-generation", "fill-mask")),
)


def test_the_obeyed_fields_are_those_that_the_code_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}
    (tmp_path / FILE).write_text(json.dumps({"size": 9, "image_mean": 0, "image_std": 1}))
    (tmp_path / "tokenizer.json").write_text(json.dumps({"added_tokens": [], "model": words}))
    (tmp_path / "generation_config.json").write_text(json.dumps({"num_beams": 1}))
    asked: set[str] = set()
    for content, tasks in CONFIGURATIONS:
        monkeypatch.setattr(hugging_face, "read_json", lambda _, config=content: Noted(config, asked))
        for task in tasks:
            hugging_face.read_folder(tmp_path, task)
    assert asked == {name for name, field in CONFIG.items() if field.effect == "obeyed"}


def test_every_field_that_transformers_or_its_pipelines_read_is_in_the_table() -> None:
    assert PretrainedConfig().to_dict().keys() - {"model_type"} <= CONFIG.keys()
    read = re.compile(r"\bmodel\.config\.([a-z]\w*)\b(?!\()")
    folder = Path(transformers.__file__).parent / "pipelines"
    found = {name for path in folder.glob("*.py") for name in read.findall(path.read_text("utf-8"))}
    assert {"id2label", "problem_type"} < found
    assert found <= CONFIG.keys() | GENERATION.keys()
