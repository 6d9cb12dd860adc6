"""Answers follow the rules of ``generation_config.json`` as transformers' ``generate`` does.

``make_generation_answers.py`` wrote the answers with transformers and torch, for models that are tables.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from sm.client.tasks.token_rules import Rows, TokenChoice, TokenRules

PUBLISHED: dict[str, Any] = json.loads(Path(__file__).with_name("generation_answers.json").read_text())


def generate(table: NDArray[np.float32], rules: dict[str, Any], source: list[int]) -> list[int]:
    """Answer as the task does: with beams, or token by token until one ends it."""
    rules = {"max_length": 20, **rules}
    end = np.atleast_1d(rules.pop("eos_token_id", PUBLISHED["end"])).tolist()
    read = TokenRules.model_validate(rules)
    choice = TokenChoice(read, end, source, limit=(read.new_tokens() or 0) + 1)

    def step(rows: Rows) -> NDArray[np.float32]:
        return table[[row[-1] for row in rows]]

    tokens = [PUBLISHED["start"]]
    if read.num_beams > 1:
        tokens += choice.beams(step, PUBLISHED["start"])
    while read.num_beams == 1 and len(tokens) < choice.limit and not (len(tokens) > 1 and tokens[-1] in end):
        tokens.append(choice.greedy(step, tokens))
    answer = tokens[1:]
    return answer[: next((place for place, token in enumerate(answer) if token in end), None)]


@pytest.mark.parametrize("name", PUBLISHED["rules"])
def test_an_answer_is_transformers_own(name: str) -> None:
    words, sources = PUBLISHED["words"], PUBLISHED["sources"]
    expected = iter(PUBLISHED["answers"][name])
    for seed in range(len(PUBLISHED["answers"][name]) // len(sources)):
        table = np.random.default_rng(seed).standard_normal((words, words)).astype(np.float32) * 2
        for source in sources:
            assert generate(table, PUBLISHED["rules"][name], source) == next(expected)


def test_each_rule_changes_an_answer() -> None:
    """Beams alone find what is likeliest step by step in these tables; with other rules they do not."""
    plain = PUBLISHED["answers"]["nothing"]
    same = {name for name, answers in PUBLISHED["answers"].items() if answers == plain}
    assert same == {"nothing", "num_beams", "never"}
