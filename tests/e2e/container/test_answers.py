"""The container's answers, on hosts with other shared memory, ports, networks, users and memory."""

from __future__ import annotations

import json
from pathlib import Path

import requests

from sm.settings import HERE
from tests.support.boxes import running_box, wait_until
from tests.support.containers import (
    CLIENT_SOURCE,
    Container,
    podman,
    running_container,
    write_team_repository,
)

GOLDEN = HERE / "clients" / "resnet" / "sample" / "golden-pictures.json"
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


def labels(answer: list[str]) -> list[str]:
    return [row.split(":", 1)[1] for row in answer]


def test_a_picture_gets_its_golden_labels(shared_container: Container, cat: bytes) -> None:
    answer = shared_container.send(cat, "image/png", "resnet").json()["result"]
    assert labels(answer) == labels(json.loads(GOLDEN.read_text())["cat.png"])


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


def test_the_box_serves_without_a_network(image: str, demo: Path) -> None:
    script = (
        "import time, urllib.request as u\n"
        "def ready():\n"
        "    try: return u.urlopen('http://127.0.0.1:8080/ping').status == 200\n"
        "    except OSError: return False\n"
        "while not ready(): time.sleep(0.1)\n"
        f"r = u.Request('http://127.0.0.1:8080/invocations', {MASKED!r}, {{'Content-Type': 'application/json'}})\n"
        "print(u.urlopen(r).read().decode())"
    )
    with running_container(image, demo, "--network", "none") as box:
        assert len(json.loads(box.python(script))["result"]) == 5


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


def test_the_demo_answers_in_a_gigabyte_of_memory_or_says_that_it_ran_out(
    image: str, demo: Path, cat: bytes, street: bytes
) -> None:
    # Either may happen. The container must not end, and a failure must have its reason.
    with running_container(image, demo, "--memory", "1g", "--memory-swap", "1g") as box:
        answers = [
            box.send(cat, "image/png", "resnet"),
            box.send(street, "image/jpeg", "yolov5"),
            box.send(MASKED),
        ]
        if not all(answer.ok for answer in answers):
            wait_until(lambda: "memory ran out" in box.logs(), description="the sentence")
        assert box.state("Running") == "true"


def test_two_containers_on_one_host_do_not_affect_each_other(
    shared_container: Container, image: str, tmp_path: Path, cat: bytes
) -> None:
    with running_container(image, write_team_repository(tmp_path / "model")) as other:
        assert other.send(b"four", "text/plain").ok
        assert shared_container.send(cat, "image/png", "resnet").ok
        assert other.stop() == 0
    assert shared_container.send(cat, "image/png", "resnet").ok
