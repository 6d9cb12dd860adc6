"""What is made of many answers."""

from __future__ import annotations

import pytest

from sm.tools.invoke.load_test import histogram, measure, quantile
from sm.tools.invoke.reply import Reply
from sm.tools.invoke.showing import format_json


def test_a_quantile_is_a_value_that_was_seen() -> None:
    ordered = [float(number) for number in range(1, 101)]
    assert [quantile(ordered, share) for share in (0.5, 0.9, 0.99, 1.0)] == [50, 90, 99, 100]
    assert quantile([7.0], 0.5) == 7


def test_a_straggler_does_not_flatten_the_histogram() -> None:
    rows = list(histogram(sorted([0.010 + number / 10_000 for number in range(99)] + [60.0])))
    assert len(rows) == 12
    assert rows[0].split()[0] == "10.0"
    assert float(rows[-1].split()[0]) < 25


def test_ctrl_c_keeps_what_was_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def ask() -> Reply:
        asked.append(1)
        return Reply(200, "application/json", b"{}")

    def interrupted(self: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("concurrent.futures.Future.result", interrupted)
    load = measure(ask, 10_000_000, 2)
    assert load.request_count == len(asked) < 10_000_000


def test_what_fits_a_line_stays_one() -> None:
    rows = [list(range(20)), list(range(20))]
    assert list(format_json({"rows": rows})) == [
        "{",
        '  "rows": [',
        f"    {rows[0]},",
        f"    {rows[1]}",
        "  ]",
        "}",
    ]
