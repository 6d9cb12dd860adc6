"""``/metrics`` on the public port, where the platform's detailed observability looks for it."""

from __future__ import annotations

import re

import pytest

from .container import Container

SAMPLE = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*(\{.*\})? [-+0-9.eEInfNa]+( [0-9]+)?")


@pytest.fixture
def text(container: Container) -> str:
    answer = container.ask("GET", "/metrics")
    container.expects(answer.status_code == 200, f"/metrics is {answer.status_code}")
    assert answer.headers["Content-Type"].startswith(("text/plain", "application/openmetrics-text"))
    return answer.text


def test_every_line_is_prometheus_text(text: str, container: Container) -> None:
    samples = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert samples
    for line in samples:
        assert SAMPLE.fullmatch(line), line


def test_triton_s_series_are_among_them(text: str, container: Container) -> None:
    container.expects("\nnv_" in text, "no series of Triton's")
