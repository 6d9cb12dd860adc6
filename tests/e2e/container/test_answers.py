"""The container's answers, and what it says with too little memory."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import requests

from tests.support.containers import Container, running_container


def test_a_teams_model_and_client_are_served_from_a_read_only_mount(shared_container: Container) -> None:
    answer = shared_container.send(b"four", "text/plain", "team")
    assert answer.json() == {"modelname": "team", "result": [4.0, 4.0, 4.0]}
    # Triton takes the clients' folder for a model. The box does not.
    served = requests.get(f"{shared_container.url}/models", timeout=5).json()["models"]
    assert {row["modelName"] for row in served} == {"hostile", "large", "team", "tiny"}


def test_wheels_beside_the_code_are_installed_in_a_read_only_container(shared_container: Container) -> None:
    """The image's environment has no pip."""
    assert shared_container.send(b"any", "text/plain", "tiny").json()["result"] == [17.0, 17.0, 17.0]


def test_large_tensors_are_answered_with_dockers_default_shared_memory(shared_container: Container) -> None:
    before = shared_container.transports()
    for _ in range(4):
        answer = shared_container.send(b"four", "text/plain", "large")
        assert answer.json()["result"] == [4.0, 4.0]
    # The tensors need more than the third of it that is for them, so they went as bytes.
    after = shared_container.transports()
    assert {name: after[name] - before[name] for name in after} == {"shared_memory": 0.0, "grpc": 4.0}


@pytest.mark.exhaustive
def test_the_demo_does_not_start_in_half_a_gigabyte_of_memory_and_says_why(image: str, demo: Path) -> None:
    # Of the idle box's 0.9 GB the kernel can drop the mapped weights: it starts in 0.7, slowly.
    with running_container(
        image, demo, "--memory", "500m", "--memory-swap", "500m", wait_until_ready=False
    ) as box:
        assert box.wait_end() != 0
        lines = [json.loads(line) for line in box.logs().splitlines() if line.startswith("{")]
    # Triton itself may crash for lack of memory, and is restarted.
    errors = [line["message"] for line in lines if line["process"] == "serve" and line["level"] == "error"]
    assert errors
    assert all("memory ran out" in error for error in errors), errors
