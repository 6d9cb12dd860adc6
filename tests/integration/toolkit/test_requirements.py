"""A script's requirements.txt: only when asked, from wheels with no network, once."""

from __future__ import annotations

import logging
import sys
import threading
from pathlib import Path

import pytest

from sm.errors import StartError
from sm.plugins.toolkit import requirements
from sm.plugins.toolkit.requirements import (
    ensure_installed,
    find_missing,
    install_or_check,
    requirements_digest,
)
from tests.support.wheels import wheel


@pytest.fixture
def code(tmp_path: Path) -> Path:
    """A code folder that asks for a package and has its wheel."""
    folder = tmp_path / "code"
    wheel(folder / "wheels", "trireme_tiny")
    (folder / "requirements.txt").write_text("# ours\ntrireme-tiny>=1\n")
    return folder


def test_a_package_comes_from_the_wheel_beside_the_code(
    code: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", sys.path[:])
    install_or_check(code, tmp_path / "cache", tmp_path, install=True)
    assert sys.path[-1].startswith(str(tmp_path / "cache" / "requirements"))
    assert (Path(sys.path[-1]) / "trireme_tiny.py").read_text() == "WORD = 'installed'\n"


def test_what_was_installed_once_is_there_the_next_time(
    code: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = ensure_installed(code / "requirements.txt", tmp_path, tmp_path)
    monkeypatch.setattr(requirements, "_run_pip", None)
    assert ensure_installed(code / "requirements.txt", tmp_path, tmp_path) == folder
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_another_wheel_or_another_text_is_another_folder(code: Path) -> None:
    names = [requirements_digest(code / "requirements.txt")]
    wheel(code / "wheels", "trireme_tiny", "1.1")
    names.append(requirements_digest(code / "requirements.txt"))
    (code / "requirements.txt").write_text("trireme-tiny==1.0\n")
    names.append(requirements_digest(code / "requirements.txt"))
    assert len(set(names)) == 3


def test_two_that_install_at_once_end_with_one_folder(code: Path, tmp_path: Path) -> None:
    found: list[Path] = []
    threads = [
        threading.Thread(
            target=lambda: found.append(
                ensure_installed(code / "requirements.txt", tmp_path / "cache", tmp_path)
            )
        )
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found[0] == found[1]
    assert list((tmp_path / "cache" / "requirements").iterdir()) == [found[0]]


def test_a_cache_that_cannot_be_written_is_done_without(code: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file in its place")
    folder = ensure_installed(code / "requirements.txt", tmp_path / "cache", tmp_path / "run")
    assert (folder / "trireme_tiny.py").is_file()
    assert tmp_path / "run" in folder.parents


def test_what_cannot_be_had_is_one_sentence_and_leaves_nothing(code: Path, tmp_path: Path) -> None:
    (code / "requirements.txt").write_text("trireme-nowhere==3\n")
    with pytest.raises(
        StartError, match=r"requirements.txt: pip cannot install it: .*trireme-nowhere==3"
    ) as excinfo:
        ensure_installed(code / "requirements.txt", tmp_path / "cache", tmp_path)
    assert "\n" not in str(excinfo.value)
    assert not list((tmp_path / "cache" / "requirements").iterdir())


def test_unasked_nothing_is_installed_and_what_is_missing_is_a_warning(
    code: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        install_or_check(code, tmp_path / "cache", tmp_path, install=False)
    assert "requires trireme-tiny, which is not installed: TRIREME_INSTALL_REQUIREMENTS=true" in caplog.text
    assert not (tmp_path / "cache").exists()


def test_without_a_file_nothing_happens(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    install_or_check(tmp_path, tmp_path / "cache", tmp_path, install=True)
    assert not (tmp_path / "cache").exists()
    assert not caplog.records


def test_missing_packages_are_told_from_options_comments_and_those_that_are_there() -> None:
    text = (
        "numpy>=1\n# a comment\n--find-links wheels\n-e .\n\nno.such_package[extra]==1; python_version>'3'\n"
    )
    assert list(find_missing(text)) == ["no.such_package"]


def test_where_the_environment_has_no_pip_the_file_beside_it_is_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    monkeypatch.setattr(requirements, "PIP_FILE", tmp_path / "pip.pyz")
    with pytest.raises(
        StartError, match=r"^there is no pip to install code/requirements\.txt with: .*pip\.pyz"
    ):
        requirements.find_pip()
    (tmp_path / "pip.pyz").touch()
    assert requirements.find_pip() == (sys.executable, str(tmp_path / "pip.pyz"))
