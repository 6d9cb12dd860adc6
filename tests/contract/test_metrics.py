"""``/metrics`` on the public port, where the platform's detailed observability looks for it."""

from __future__ import annotations

import re

import pytest

from .container import Container

SAMPLE_LINE = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*(\{.*\})? [-+0-9.eEInfNa]+( [0-9]+)?")


@pytest.fixture
def metrics_text(container: Container) -> str:
    response = container.request("GET", "/metrics")
    container.expect(response.status_code == 200, f"/metrics is {response.status_code}")
    assert response.headers["Content-Type"].startswith(("text/plain", "application/openmetrics-text"))
    return response.text


def test_every_line_is_prometheus_text(metrics_text: str, container: Container) -> None:
    samples = [line for line in metrics_text.splitlines() if line and not line.startswith("#")]
    assert samples
    for line in samples:
        assert SAMPLE_LINE.fullmatch(line), line


def test_triton_s_series_are_included(metrics_text: str, container: Container) -> None:
    container.expect("\nnv_" in metrics_text, "no series of Triton")
