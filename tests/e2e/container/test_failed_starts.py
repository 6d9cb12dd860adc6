"""A container that cannot start says why in one sentence, and ends with exit code 1."""

from __future__ import annotations

from pathlib import Path

from tests.support.containers import PAGE, only_error, running_container, write_team_repository

#: The page's table of such sentences.
TABLE = PAGE.partition("## What a start that fails says")[2]
BEGINNINGS = [row.split(" | ")[1].removesuffix(" |") for row in TABLE.splitlines() if row.startswith("| ")][
    1:
]


def failed_start(image: str, repository: Path | None, *flags: str) -> str:
    with running_container(image, repository, *flags, wait_until_ready=False) as box:
        assert box.wait_end() == 1, box.logs()
        message = str(only_error(box.logs())["message"])
    assert "Traceback" not in message
    assert message.startswith(tuple(BEGINNINGS)), "docs/run/image.md has no row for it"
    return message


def test_a_missing_model_folder_is_named(image: str) -> None:
    log = failed_start(image, None)
    assert "-v REPOSITORY:/opt/ml/model:ro" in log
    assert "MODELS=demo" in log
    assert "make serve" not in log


def test_a_model_that_the_containers_user_may_not_read_is_named(image: str, tmp_path: Path) -> None:
    repository = write_team_repository(tmp_path / "model")
    (repository / "echo" / "config.pbtxt").chmod(0o600)
    message = failed_start(image, repository)
    assert message.startswith("/opt/ml/model/echo/config.pbtxt ")
    assert "docker run --user" in message


def test_a_model_that_cannot_load_is_named_with_the_reason(image: str, tmp_path: Path) -> None:
    repository = write_team_repository(tmp_path / "model")
    (repository / "echo" / "1" / "model.py").write_text("import no_such_module\n")
    message = failed_start(image, repository)
    assert "'echo'" in message
    assert "no_such_module" in message


def test_an_unknown_command_is_a_usage_error(image: str) -> None:
    with running_container(image, None, arguments=("server",), wait_until_ready=False) as box:
        assert box.wait_end() == 2
        assert "serve?" in box.logs()
