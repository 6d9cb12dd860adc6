"""A script's requirements.txt is installed only if that is set, from the wheels beside it, and once."""

from __future__ import annotations

import logging
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sm.errors import StartError
from sm.plugins.toolkit import code_imports
from sm.plugins.toolkit.code_imports import (
    ensure_installed,
    find_missing,
    install_or_check,
    requirements_digest,
)
from tests.support.wheels import write_wheel


@pytest.fixture
def code_folder(tmp_path: Path) -> Path:
    """A code folder whose requirements.txt names a package, with the package's wheel."""
    folder = tmp_path / "code"
    write_wheel(folder / "wheels", "trireme_tiny")
    (folder / "requirements.txt").write_text("# ours\ntrireme-tiny>=1\n")
    return folder


def test_installed_packages_are_used_again_at_the_next_start(
    code_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = ensure_installed(code_folder / "requirements.txt", tmp_path, tmp_path)
    monkeypatch.setattr(code_imports, "_run_pip", None)
    assert ensure_installed(code_folder / "requirements.txt", tmp_path, tmp_path) == folder
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_another_wheel_or_another_text_changes_the_digest(code_folder: Path) -> None:
    digests = [requirements_digest(code_folder / "requirements.txt")]
    write_wheel(code_folder / "wheels", "trireme_tiny", "1.1")
    digests.append(requirements_digest(code_folder / "requirements.txt"))
    (code_folder / "requirements.txt").write_text("trireme-tiny==1.0\n")
    digests.append(requirements_digest(code_folder / "requirements.txt"))
    assert len(set(digests)) == 3


def test_two_concurrent_installations_share_one_folder(code_folder: Path, tmp_path: Path) -> None:
    def install(_: int) -> Path:
        return ensure_installed(code_folder / "requirements.txt", tmp_path / "cache", tmp_path)

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(install, range(2))
    assert first == second
    assert list((tmp_path / "cache" / "requirements").iterdir()) == [first]


def test_without_a_writable_cache_the_run_folder_is_used(code_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file in its place")
    folder = ensure_installed(code_folder / "requirements.txt", tmp_path / "cache", tmp_path / "run")
    assert (folder / "trireme_tiny.py").is_file()
    assert tmp_path / "run" in folder.parents


def test_without_the_setting_a_missing_package_is_only_a_warning(
    code_folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        install_or_check(code_folder, tmp_path / "cache", tmp_path, install=False)
    assert all(word in caplog.text for word in ("trireme-tiny", "TRIREME_INSTALL_REQUIREMENTS=true"))
    assert not (tmp_path / "cache").exists()


def test_only_packages_that_are_not_installed_count_as_missing() -> None:
    text = (
        "numpy>=1\n# a comment\n--find-links wheels\n-e .\n\nno.such_package[extra]==1; python_version>'3'\n"
    )
    assert list(find_missing(text)) == ["no.such_package"]


def test_without_pip_in_the_environment_pip_pyz_is_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    monkeypatch.setattr(code_imports, "PIP_FILE", tmp_path / "pip.pyz")
    with pytest.raises(StartError, match=r"pip\.pyz"):
        code_imports.find_pip()
    (tmp_path / "pip.pyz").touch()
    assert code_imports.find_pip() == (sys.executable, str(tmp_path / "pip.pyz"))
