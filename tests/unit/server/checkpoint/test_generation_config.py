"""What ``generation_config.json`` says becomes the options of a text that is generated."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sm.server.checkpoint.generation_config import generation

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
