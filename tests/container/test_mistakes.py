"""A container that cannot start says why in one sentence, and ends with exit code 1."""

from __future__ import annotations

from pathlib import Path

from tests.container.running import container, sentence, team_repository


def refused(image: str, repository: Path | None, *flags: str) -> str:
    with container(image, repository, *flags, wait=False) as box:
        assert box.wait_end() == 1, box.logs()
        return str(sentence(box.logs())["message"])


def test_an_empty_model_folder(image: str, tmp_path: Path) -> None:
    assert "There is no model in /opt/ml/model" in refused(image, tmp_path)


def test_no_model_folder(image: str) -> None:
    assert "There is no model in /opt/ml/model" in refused(image, None)


def test_a_model_that_cannot_load(image: str, tmp_path: Path) -> None:
    repository = team_repository(tmp_path / "model")
    (repository / "echo" / "1" / "model.py").write_text("import no_such_module\n")
    message = refused(image, repository)
    assert "'echo' cannot be loaded" in message
    assert "no_such_module" in message


def test_a_client_that_cannot_load(image: str, tmp_path: Path) -> None:
    message = refused(image, team_repository(tmp_path / "model", "import no_such_module\n"))
    assert message.startswith("/opt/ml/model/code/team.py: line 1: ModuleNotFoundError")
