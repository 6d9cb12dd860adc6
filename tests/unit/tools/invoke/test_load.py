"""The summary of a load test: quantiles, a histogram, and counts after Ctrl-C."""

from __future__ import annotations

import pytest

from trireme_tools.invoke.load_test import histogram, measure
from trireme_tools.invoke.messages import Reply


def test_an_outlier_does_not_flatten_the_histogram() -> None:
    rows = list(histogram(sorted([0.010 + index / 10_000 for index in range(99)] + [60.0])))
    assert len(rows) == 12
    assert rows[0].split()[0] == "10.0"
    assert float(rows[-1].split()[0]) < 25


def test_ctrl_c_keeps_the_measured_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    requests = []

    def send_request() -> Reply:
        requests.append(1)
        return Reply(200, "application/json", b"{}")

    def raise_interrupt(self: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("concurrent.futures.Future.result", raise_interrupt)
    load = measure(send_request, 10_000_000, 2)
    assert load.request_count == len(requests) < 10_000_000
