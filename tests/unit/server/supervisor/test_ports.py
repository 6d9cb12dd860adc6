"""The numbers of Triton's ports. Which of them are free is in tests/integration/supervisor."""

from __future__ import annotations

import pytest

from sm.settings import Settings


@pytest.mark.parametrize(
    ("variables", "numbers"),
    [
        ({}, (0, 0, 0)),
        *(({"TRIREME_TRITON_PORTS": to}, (8000, 8001, 8002)) for to in ("loopback", "all")),
        ({"TRIREME_TRITON_PORTS": "all", "SAGEMAKER_TRITON_GRPC_PORT": "9001"}, (8000, 9001, 8002)),
        ({"SAGEMAKER_TRITON_ALLOW_GRPC": "true"}, (0, 8001, 0)),
        ({"SAGEMAKER_TRITON_ALLOW_METRICS": "true"}, (0, 0, 8002)),
        ({"SAGEMAKER_TRITON_ALLOW_GRPC": "true", "SAGEMAKER_SAFE_PORT_RANGE": "9000-9100"}, (0, 0, 0)),
    ],
)
def test_ports_that_callers_may_use_have_tritons_usual_numbers(
    variables: dict[str, str], numbers: tuple[int, int, int]
) -> None:
    assert Settings.read(variables).requested_ports == numbers
