"""Images with the models inside need no mount and no network. test_platform.py has one without model data."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import requests

from tests.e2e.container.tokenizing import TEXT, TOKENS
from tests.support.containers import (
    Container,
    make_image,
    only_error,
    running_container,
    write_team_repository,
)


@pytest.mark.exhaustive
def test_model_data_replace_the_models_inside(
    team_image: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    pets = write_team_repository(tmp_path_factory.mktemp("pets") / "repository")
    (pets / "code" / "team.py").rename(pets / "code" / "pets.py")
    with running_container(team_image, pets) as box:
        names = [row["modelName"] for row in requests.get(f"{box.url}/models", timeout=10).json()["models"]]
        assert names == ["pets"]
        assert "loading echo from /opt/ml/model" in box.logs()


@pytest.mark.exhaustive
def test_model_data_without_a_model_stop_the_start_despite_the_models_inside(
    team_image: str, tmp_path: Path
) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "readme.txt").write_text("an archive of something else")
    for folder in (tmp_path, tmp_path / "model"):
        folder.chmod(0o755)
    with running_container(team_image, tmp_path / "model", wait_until_ready=False) as box:
        assert box.wait_end() == 1
        assert "/opt/ml/model" in str(only_error(box.logs())["message"])


def test_an_archive_readable_by_its_owner_alone_is_served_without_a_network(team_image: str) -> None:
    flags = ("--network", "none", "-e", "HF_HUB_OFFLINE=1")
    with running_container(team_image, None, *flags, arguments=()) as box:
        assert box.python("import os; print(os.getuid())") == "1000"
        assert invoke_inside(box, "team", {"text": "abc"}) == {"modelname": "team", "result": [3.0] * 3}
        # By transformers, with the files that are inside.
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
    done = make_image("IMAGE=localhost/trireme-test:none", f"MODELS={tmp_path / models}")
    assert done.returncode != 0 and "STEP" not in done.stdout
    assert "there is no model repository" in done.stdout + done.stderr or "Cannot open" in done.stderr


def test_the_demo_is_prepared_first_and_its_repository_goes_inside(demo: Path) -> None:
    commands = make_image("--dry-run", "MODELS=demo").stdout
    prepared, built = commands.index("sm prepare"), commands.index("--target with-models")
    assert prepared < built
    assert f"models='{demo}'" in commands
