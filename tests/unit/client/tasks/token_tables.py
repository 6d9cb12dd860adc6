"""Models that are tables, the rules of their answers, and the answers of ``generation_answers.json``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

FILE = Path(__file__).with_name("generation_answers.json")
#: For each name the rules, and the answer for each table and source.
CASES: dict[str, Any] = json.loads(FILE.read_text())
WORDS, START, END = 12, 0, 1
SOURCES = [[4, 7, 2, 1], [3, 3, 9, 5, 1], [11, 1]]
#: The scores of each next token by the last one.
TABLES = [
    np.random.default_rng(seed).standard_normal((WORDS, WORDS)).astype(np.float32) * 2 for seed in range(6)
]
