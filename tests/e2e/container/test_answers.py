"""What the container answers, on each kind of host it may find itself on."""

from __future__ import annotations

import json
from pathlib import Path

import requests

from sm.settings import HERE
from tests.support.boxes import running_box, wait_until
from tests.support.containers import CLIENT, Container, container, podman, team_repository

GOLDEN = HERE / "clients" / "resnet" / "sample" / "golden-pictures.json"
#: Twelve megabytes for the model and as many from it, told in two numbers.
LARGE = CLIENT.replace("np.full(3,", "np.full(3_000_000,").replace(
    '["y"].tolist()', '["y"][[0, -1]].tolist()'
)
#: The users of all processes of a container.
ALL_USERS = (
    "import glob, re\n"
    "statuses = [open(path).read() for path in glob.glob('/proc/[0-9]*/status')]\n"
    "print({int(re.search(r'Uid:\\t(\\d+)', status)[1]) for status in statuses})"
)
MASKED = b'{"modelname":"bert_base","payload":{"text":"The world has [MASK] people."}}'


def labels(answer: list[str]) -> list[str]:
    return [row.split(":", 1)[1] for row in answer]


def test_a_picture_is_answered(shared: Container, cat: bytes) -> None:
    answer = shared.send(cat, "image/png", "resnet").json()["result"]
    assert labels(answer) == labels(json.loads(GOLDEN.read_text())["cat.png"])


def test_answers_are_those_of_make_serve_byte_for_byte(
    shared: Container, demo: Path, tmp_path: Path, cat: bytes, street: bytes
) -> None:
    requests = [
        (cat, "image/png", "resnet"),
        (street, "image/jpeg", "resnet"),
        (street, "image/jpeg", "yolov5"),
        (cat, "image/png", "yolov5"),
        (MASKED, "application/json", ""),
        (b"no picture", "image/png", "resnet"),
    ]
    with running_box(tmp_path, demo, clients=()) as box:
        for body, kind, model in requests:
            named = {"X-Amzn-SageMaker-Inference-Id": "same"}
            direct = box.send(body, kind, headers=named, params={"modelname": model} if model else {})
            inside = shared.send(body, kind, model)
            assert (inside.status_code, inside.headers["Content-Type"]) == (
                direct.status_code,
                direct.headers["Content-Type"],
            )
            if inside.ok:
                assert inside.content == direct.content
            else:
                assert inside.json()["error"] == direct.json()["error"]


def test_docker_s_own_64_mb_of_shared_memory_answer_large_tensors_too(image: str, tmp_path: Path) -> None:
    with container(image, team_repository(tmp_path / "model", LARGE)) as box:
        assert [box.send(b"four", "text/plain").json()["result"] for _ in range(4)] == [[4.0, 4.0]] * 4
        # They are more than the third of it that is for tensors: they went as bytes.
        assert box.transports() == {"shared_memory": 0.0, "grpc": 4.0}


def test_a_gigabyte_of_shared_memory_carries_them_all(image: str, demo: Path, street: bytes) -> None:
    with container(image, demo, "--shm-size", "1g") as box:
        assert all(box.send(street, "image/jpeg", "yolov5").ok for _ in range(4))
        assert box.transports() == {"shared_memory": 4.0, "grpc": 0.0}


def test_the_platform_s_port_is_listened_on(image: str, demo: Path, cat: bytes) -> None:
    with container(image, demo, "-e", "SAGEMAKER_BIND_TO_PORT=9090", inner=9090) as box:
        assert box.send(cat, "image/png", "resnet").ok


def test_triton_s_ports_are_drawn_from_the_safe_range(image: str, tmp_path: Path) -> None:
    repository = team_repository(tmp_path / "model")
    with container(image, repository, "-e", "SAGEMAKER_SAFE_PORT_RANGE=21000-21009") as box:
        tables = box.python("for t in 'tcp', 'tcp6': print(open(f'/proc/net/{t}').read())").splitlines()
        fields = [line.split() for line in tables]
        listening = {int(field[1].rpartition(":")[2], 16) for field in fields if field[3:4] == ["0A"]}
        assert listening - {8080} <= set(range(21000, 21010))
        assert len(listening) == 4


def test_without_any_network_it_serves(image: str, demo: Path) -> None:
    ask = (
        "import time, urllib.request as u\n"
        "def ready():\n"
        "    try: return u.urlopen('http://127.0.0.1:8080/ping').status == 200\n"
        "    except OSError: return False\n"
        "while not ready(): time.sleep(0.1)\n"
        f"r = u.Request('http://127.0.0.1:8080/invocations', {MASKED!r}, {{'Content-Type': 'application/json'}})\n"
        "print(u.urlopen(r).read().decode())"
    )
    with container(image, demo, "--network", "none") as box:
        assert len(json.loads(box.python(ask))["result"]) == 5


def test_it_does_not_run_as_root_unless_told_to(shared: Container, image: str, tmp_path: Path) -> None:
    # By number: Kubernetes cannot tell of a name that it is not root's.
    assert podman("image", "inspect", "--format", "{{.Config.User}}", image) == "1000:1000"
    assert shared.python(ALL_USERS) == "{1000}"
    with container(image, team_repository(tmp_path / "model"), "--user", "0") as box:
        assert box.python(ALL_USERS) == "{0}"
        assert box.send(b"four", "text/plain").ok
        assert box.stop() == 0


def test_a_team_s_own_model_and_client_come_by_a_read_only_mount(image: str, tmp_path: Path) -> None:
    with container(image, team_repository(tmp_path / "model")) as box:
        answer = box.send(b"four", "text/plain")
        assert answer.json() == {"modelname": "team", "result": [4.0, 4.0, 4.0]}
        # The clients' folder is no model, whatever Triton takes it for.
        served = requests.get(f"{box.url}/models", timeout=5).json()["models"]
        assert [row["modelName"] for row in served] == ["team"]


def test_in_a_gigabyte_of_memory_the_demo_does_not_start_and_says_why(image: str, demo: Path) -> None:
    # Idle it has 1.4 GB.
    with container(image, demo, "--memory", "1g", "--memory-swap", "1g", wait=False) as box:
        assert box.wait_end()[0] != 0
        lines = [json.loads(line) for line in box.logs().splitlines() if line.startswith("{")]
    # Triton itself may crash over it, and is tried again.
    errors = [line["message"] for line in lines if line["process"] == "serve" and line["level"] == "error"]
    assert errors
    assert all("memory ran out" in error for error in errors), errors


def test_in_two_gigabytes_of_memory_the_demo_answers_or_says_that_it_ran_out(
    image: str, demo: Path, cat: bytes, street: bytes
) -> None:
    # Either may happen; not a container that ends, nor a failure without its reason.
    with container(image, demo, "--memory", "2g", "--memory-swap", "2g") as box:
        answers = [
            box.send(cat, "image/png", "resnet"),
            box.send(street, "image/jpeg", "yolov5"),
            box.send(MASKED),
        ]
        if not all(answer.ok for answer in answers):
            wait_until(lambda: "memory ran out" in box.logs(), description="the sentence")
        assert box.state("Running") == "true"


def test_two_containers_on_one_host_leave_each_other_alone(
    shared: Container, image: str, tmp_path: Path, cat: bytes
) -> None:
    with container(image, team_repository(tmp_path / "model")) as other:
        assert other.send(b"four", "text/plain").ok
        assert shared.send(cat, "image/png", "resnet").ok
        assert other.stop() == 0
    assert shared.send(cat, "image/png", "resnet").ok
