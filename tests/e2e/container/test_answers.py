"""The container's answers, on hosts with other shared memory, ports, networks, users and memory."""

from __future__ import annotations

import json
from pathlib import Path

import requests

from tests.support.boxes import running_box
from tests.support.containers import (
    CLIENT_SOURCE,
    Container,
    podman,
    running_container,
    write_team_repository,
)

#: A client that sends 12 MB to the model, gets 12 MB back and returns two of the numbers.
LARGE = CLIENT_SOURCE.replace("np.full(3,", "np.full(3_000_000,").replace(
    '["y"].tolist()', '["y"][[0, -1]].tolist()'
)
#: Prints the users of all processes of a container.
ALL_USERS = (
    "import glob, re\n"
    "statuses = [open(path).read() for path in glob.glob('/proc/[0-9]*/status')]\n"
    "print({int(re.search(r'Uid:\\t(\\d+)', status)[1]) for status in statuses})"
)
MASKED = b'{"modelname":"bert_base","payload":{"text":"The world has [MASK] people."}}'


def test_answers_equal_those_of_make_serve_byte_for_byte(
    image: str, demo: Path, tmp_path: Path, cat: bytes, street: bytes
) -> None:
    requests = [
        (cat, "image/png", "resnet"),
        (street, "image/jpeg", "resnet"),
        (street, "image/jpeg", "yolov5"),
        (cat, "image/png", "yolov5"),
        (MASKED, "application/json", ""),
        (b"no picture", "image/png", "resnet"),
    ]
    exact = ("-e", "TRIREME_PRECISION=fp32")
    with (
        running_box(tmp_path, demo, clients=()) as box,
        running_container(image, demo, *exact) as container,
    ):
        for body, content_type, model in requests:
            headers = {"X-Amzn-SageMaker-Inference-Id": "same"}
            from_box = box.send(
                body, content_type, headers=headers, params={"modelname": model} if model else {}
            )
            from_container = container.send(body, content_type, model)
            assert (from_container.status_code, from_container.headers["Content-Type"]) == (
                from_box.status_code,
                from_box.headers["Content-Type"],
            )
            if from_container.ok:
                assert from_container.content == from_box.content
            else:
                assert from_container.json()["error"] == from_box.json()["error"]


def test_large_tensors_are_answered_with_dockers_default_shared_memory(image: str, tmp_path: Path) -> None:
    with running_container(image, write_team_repository(tmp_path / "model", LARGE)) as box:
        assert [box.send(b"four", "text/plain").json()["result"] for _ in range(4)] == [[4.0, 4.0]] * 4
        # The tensors need more than the third of it that is for them, so they went as bytes.
        assert box.transports() == {"shared_memory": 0.0, "grpc": 4.0}


def test_a_gigabyte_of_shared_memory_carries_all_tensors(image: str, demo: Path, street: bytes) -> None:
    with running_container(image, demo, "--shm-size", "1g") as box:
        assert all(box.send(street, "image/jpeg", "yolov5").ok for _ in range(4))
        assert box.transports() == {"shared_memory": 4.0, "grpc": 0.0}


def test_the_box_runs_as_root_only_if_told_to(
    shared_container: Container, image: str, tmp_path: Path
) -> None:
    # By number: Kubernetes cannot tell whether a name is root's.
    assert podman("image", "inspect", "--format", "{{.Config.User}}", image) == "1000:1000"
    assert shared_container.python(ALL_USERS) == "{1000}"
    with running_container(image, write_team_repository(tmp_path / "model"), "--user", "0") as box:
        assert box.python(ALL_USERS) == "{0}"
        assert box.send(b"four", "text/plain").ok
        assert box.stop() == 0


def test_a_teams_model_and_client_are_served_from_a_read_only_mount(image: str, tmp_path: Path) -> None:
    with running_container(image, write_team_repository(tmp_path / "model")) as box:
        answer = box.send(b"four", "text/plain")
        assert answer.json() == {"modelname": "team", "result": [4.0, 4.0, 4.0]}
        # Triton takes the clients' folder for a model. The box does not.
        served = requests.get(f"{box.url}/models", timeout=5).json()["models"]
        assert [row["modelName"] for row in served] == ["team"]


def test_the_demo_does_not_start_in_half_a_gigabyte_of_memory_and_says_why(image: str, demo: Path) -> None:
    # Of the idle box's 0.9 GB the kernel can drop the mapped weights: it starts in 0.7, slowly.
    with running_container(
        image, demo, "--memory", "500m", "--memory-swap", "500m", wait_until_ready=False
    ) as box:
        assert box.wait_end()[0] != 0
        lines = [json.loads(line) for line in box.logs().splitlines() if line.startswith("{")]
    # Triton itself may crash for lack of memory, and is restarted.
    errors = [line["message"] for line in lines if line["process"] == "serve" and line["level"] == "error"]
    assert errors
    assert all("memory ran out" in error for error in errors), errors
