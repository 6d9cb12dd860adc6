"""A record's cost in a large batch is compared with that in a small one of the same turn."""

from __future__ import annotations

import json

from bench.batches import Cost, lines, ratio, records
from bench.growth import records_promise


def test_the_ratio_compares_a_large_batch_with_the_small_one_of_the_same_turn() -> None:
    small_batches = [Cost(100, 1000, 1.0, 10), Cost(100, 1000, 4.0, 10), Cost(100, 1000, 1.0, 10)]
    large_batches = [Cost(1000, 9000, 11.0, 90), Cost(1000, 9000, 40.0, 90), Cost(1000, 9000, 10.0, 90)]
    assert ratio(small_batches, large_batches) == 1.0
    assert records_promise("in a list", small_batches, large_batches).met
    assert not records_promise("in a list", small_batches, [Cost(1000, 9000, 20.0, 90)] * 3).met


def test_a_request_body_has_as_many_records_as_it_reports() -> None:
    count, request = lines(10**6)
    assert len(request.body) <= 10**6
    assert [json.loads(line)["modelname"] for line in request.body.splitlines()] == ["resnet"] * count
    count, request = records(7)
    assert len(json.loads(request.body)["payload"]) == count == 7
