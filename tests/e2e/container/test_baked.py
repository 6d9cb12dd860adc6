"""Images with the models inside: they answer without a mount and without model data."""

from __future__ import annotations

import json
import os
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from sm.settings import HERE
from tests.e2e.container.tokenizing import TEXT, TOKENS, write_client
from tests.support.containers import Container, build_flags, podman, running_container, write_team_repository
from tests.support.played_aws import Account, as_container, played_aws

DEMO, TEAM = "localhost/trireme-test:demo", "localhost/trireme-test:team"


def bake(image: str, models: str) -> subprocess.CompletedProcess[str]:
    """Run ``make image MODELS=…``. The earlier stages are those of the image that all tests share."""
    command = ["make", "image", "ENGINE=podman", f"IMAGE={image}", f"MODELS={models}"]
    command.append(f"BUILD_FLAGS={build_flags()}")
    return subprocess.run(command, cwd=HERE, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def demo_image(image: str, demo: Path) -> Iterator[str]:
    done = bake(DEMO, "demo")
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    yield DEMO
    podman("rmi", "--force", DEMO)


@pytest.fixture(scope="module")
def team_image(image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An image with the models of an archive whose files only their owner may read."""
    folder = tmp_path_factory.mktemp("baked")
    repository = write_client(write_team_repository(folder / "repository"))
    for path in repository.rglob("*"):
        path.chmod(0o700 if path.is_dir() else 0o600)
    archive = folder / "model.tar.gz"
    with tarfile.open(archive, "w:gz") as packed:
        packed.add(repository, ".")
    done = bake(TEAM, str(archive))
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    yield TEAM
    podman("rmi", "--force", TEAM)


def test_an_image_with_the_demo_answers_without_a_mount(demo_image: str, cat: bytes) -> None:
    with running_container(demo_image, None, arguments=()) as box:
        assert box.send(cat, "image/png", "resnet").json()["result"][0].endswith("Egyptian cat")
        body = {"modelname": "bert_base", "payload": {"text": TEXT}}
        assert len(requests.post(f"{box.url}/invocations", json=body, timeout=60).json()["result"]) == 5
        source = "from /opt/trireme/repository (baked into the image: there is nothing in /opt/ml/model)"
        assert source in box.logs()


def test_an_endpoint_without_model_data_answers(demo_image: str, tmp_path: Path) -> None:
    """Moto has SageMaker's records; boto3 and the image are real."""
    with played_aws(tmp_path / "boxes", as_container) as aws:
        account = Account(aws.url)
        record = account.create("bare", "", demo_image)
        assert record["EndpointStatus"] == "InService", record
        answer = json.loads(account.invoke_text("bare", TEXT, CustomAttributes="modelname=bert_base"))
        assert (answer["modelname"], len(answer["result"])) == ("bert_base", 5)


def test_sm_test_passes_for_the_models_inside(demo_image: str) -> None:
    report = podman("run", "--rm", "--read-only", "--tmpfs", "/tmp", demo_image, "test", timeout=120)
    assert [line.split()[1] for line in report.splitlines()] == ["equal"] * 3


def test_model_data_replace_the_models_inside(
    demo_image: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    team_models = write_team_repository(tmp_path_factory.mktemp("team_models") / "repository")
    with running_container(demo_image, team_models) as box:
        names = [row["modelName"] for row in requests.get(f"{box.url}/models", timeout=10).json()["models"]]
        assert names == ["team"]
        assert "loading echo from /opt/ml/model" in box.logs()


def test_model_data_without_a_model_stop_the_start_despite_the_models_inside(
    demo_image: str, tmp_path: Path
) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "readme.txt").write_text("an archive of something else")
    for folder in (tmp_path, tmp_path / "model"):
        folder.chmod(0o755)
    with running_container(demo_image, tmp_path / "model", wait_until_ready=False) as box:
        assert box.wait_end()[0] == 1
        assert "There is no model in /opt/ml/model" in box.logs()


def test_an_archive_readable_by_its_owner_alone_is_readable_inside(team_image: str) -> None:
    with running_container(team_image, None) as box:
        assert box.python("import os; print(os.getuid())") == "1000"
        assert box.send(b"abc", "text/plain", "team").status_code == 200


def test_a_client_uses_transformers_in_the_image_without_a_network(team_image: str) -> None:
    with running_container(team_image, None, "--network", "none", "-e", "HF_HUB_OFFLINE=1") as box:
        assert invoke_inside(box, "tokens", {"text": TEXT}) == {"modelname": "tokens", "result": TOKENS}


def invoke_inside(box: Container, model: str, payload: object) -> object:
    """Send a request from inside the container, which has no network, once it is ready."""
    body = json.dumps({"modelname": model, "payload": payload})
    return json.loads(
        box.python(
            "import time, urllib.request as u\n"
            "def ready():\n"
            "    try: return u.urlopen('http://localhost:8080/ping', timeout=5).status == 200\n"
            "    except OSError: return False\n"
            "for _ in range(600):\n"
            "    if ready(): break\n"
            "    time.sleep(0.1)\n"
            f"request = u.Request('http://localhost:8080/invocations', {body.encode()!r}, "
            "{'Content-Type': 'application/json'})\n"
            "print(u.urlopen(request, timeout=60).read().decode())"
        )
    )


@pytest.mark.parametrize("models", ["missing", "empty", "missing.tar.gz"])
def test_missing_models_fail_with_a_sentence_before_the_build(tmp_path: Path, models: str) -> None:
    (tmp_path / "empty").mkdir()
    done = bake("localhost/trireme-test:none", os.fspath(tmp_path / models))
    assert done.returncode != 0 and "STEP" not in done.stdout
    assert "there is no model repository" in done.stdout + done.stderr or "Cannot open" in done.stderr
