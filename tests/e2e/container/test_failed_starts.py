"""A container that cannot start says why in one record that is on its page, and ends with exit code 1."""

from __future__ import annotations

from pathlib import Path

from tests.support.containers import PAGE, running_container, write_team_repository

#: The page's table of such sentences.
TABLE = PAGE.partition("## What a start that fails says")[2]
ROWS = [row.split(" | ")[1].removesuffix(" |") for row in TABLE.splitlines() if row.startswith("| ")][1:]


def failed_start(image: str, repository: Path | None) -> str:
    with running_container(image, repository, wait_until_ready=False) as box:
        assert box.wait_end() == 1, box.logs()
        (record,) = box.records()
    message = str(record["message"])
    assert message.startswith(tuple(ROWS)), "docs/run/image.md has no row for it"
    return message


def test_a_missing_model_folder_is_named_with_the_mount_it_needs(image: str) -> None:
    assert "-v REPOSITORY:/opt/ml/model:ro" in failed_start(image, None)


def test_a_model_that_the_containers_user_may_not_read_is_named(image: str, tmp_path: Path) -> None:
    repository = write_team_repository(tmp_path / "model")
    (repository / "echo" / "config.pbtxt").chmod(0o600)
    message = failed_start(image, repository)
    assert message.startswith("/opt/ml/model/echo/config.pbtxt ") and "--user" in message
