"""The way of a request through the code stays as short as the counts in ``bench/quick.json``."""

from __future__ import annotations

import json

import pytest

from bench import quick
from bench.quick import Counts

#: A change may add this much before the counts must be kept anew, by ``make bench-quick ARGS=--keep``.
ROOM = 1.05
#: Another Python has other bytecodes; the rest of the counts is much the same.
KEPT_VERSION = "3.11"


@pytest.fixture(scope="module")
def found() -> Counts:
    return quick.count()


@pytest.mark.parametrize("request_name", ["bert_base json", "resnet json", "resnet raw"])
def test_the_way_of_a_request_has_not_grown(found: Counts, request_name: str) -> None:
    kept = json.loads(quick.KEPT_FILE.read_text())[KEPT_VERSION][request_name]
    bytecodes = ["bytecodes"] if quick.VERSION == KEPT_VERSION else []
    for measure in ("own calls", "files", "classes", *bytecodes):
        assert found[request_name][measure] <= ROOM * kept[measure], measure
