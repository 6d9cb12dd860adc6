"""Answers follow the rules of ``generation_config.json`` as transformers' ``generate`` does.

``make_generation_answers.py`` wrote the answers with transformers and torch, for models that are tables.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.unit.client.tasks.token_tables import CASES, END, SOURCES, START, TABLES
from trireme_extensions.tasks.token_rules import Rows, TokenChoice, TokenRules


def generate(table: NDArray[np.float32], rules: dict[str, Any], source: list[int]) -> list[int]:
    """Answer as the task does: with beams, or token by token until one ends it."""
    rules = {"max_length": 20, **rules}
    end = np.atleast_1d(rules.pop("eos_token_id", END)).tolist()
    read = TokenRules.model_validate(rules)
    choice = TokenChoice(read, end, source, limit=(read.new_tokens() or 0) + 1)

    def step(rows: Rows) -> NDArray[np.float32]:
        return table[[row[-1] for row in rows]]

    tokens = [START]
    if read.num_beams > 1:
        tokens += choice.beams(step, START)
    while read.num_beams == 1 and len(tokens) < choice.limit and not (len(tokens) > 1 and tokens[-1] in end):
        tokens.append(choice.greedy(step, tokens))
    answer = tokens[1:]
    return answer[: next((place for place, token in enumerate(answer) if token in end), None)]


@pytest.mark.parametrize("name", CASES)
def test_an_answer_is_transformers_own(name: str) -> None:
    found = [generate(table, CASES[name]["rules"], source) for table in TABLES for source in SOURCES]
    assert found == CASES[name]["answers"]


def test_each_rule_changes_an_answer() -> None:
    """Beams alone find what is likeliest step by step in these tables; with other rules they do not."""
    plain = CASES["nothing"]["answers"]
    same = {name for name, case in CASES.items() if case["answers"] == plain}
    assert same == {"nothing", "num_beams", "never"}
