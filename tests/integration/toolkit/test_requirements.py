"""A script's requirements.txt is installed only if that is set, from the wheels beside it, and once."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sm.errors import StartError
from sm.plugins import code_imports
from sm.plugins.code_imports import (
    ensure_installed,
    find_missing,
    install_or_check,
    requirements_digest,
)
from tests.support.wheels import write_wheel


@pytest.fixture
def requirements(tmp_path: Path) -> Path:
    """A requirements.txt that names a package, with the package's wheel beside it."""
    write_wheel(tmp_path / "code" / "wheels", "trireme_tiny")
    file = tmp_path / "code" / "requirements.txt"
    file.write_text("# ours\ntrireme-tiny>=1\n")
    return file


def test_two_installations_at_once_and_the_next_start_share_one_folder(
    requirements: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def install(_: int = 0) -> Path:
        return ensure_installed(requirements, tmp_path / "cache", tmp_path)

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(install, range(2))
    monkeypatch.setattr(code_imports, "_run_pip", None)
    assert first == second == install()
    assert list((tmp_path / "cache" / "requirements").iterdir()) == [first]


def test_another_wheel_or_another_text_changes_the_digest(requirements: Path) -> None:
    digests = [requirements_digest(requirements)]
    write_wheel(requirements.parent / "wheels", "trireme_tiny", "1.1")
    digests.append(requirements_digest(requirements))
    requirements.write_text("trireme-tiny==1.0\n")
    assert len({*digests, requirements_digest(requirements)}) == 3


def test_without_a_writable_cache_the_run_folder_is_used(requirements: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file in its place")
    folder = ensure_installed(requirements, tmp_path / "cache", tmp_path / "run")
    assert (folder / "trireme_tiny.py").is_file()
    assert tmp_path / "run" in folder.parents


def test_a_package_that_does_not_exist_stops_the_start(requirements: Path, tmp_path: Path) -> None:
    requirements.write_text("trireme-nowhere\n")
    with pytest.raises(StartError):
        ensure_installed(requirements, tmp_path / "cache", tmp_path)


def test_without_the_setting_a_missing_package_is_only_a_warning(
    requirements: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    install_or_check(requirements.parent, tmp_path / "cache", tmp_path, install=False)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
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
    with pytest.raises(StartError):
        code_imports.find_pip()
    (tmp_path / "pip.pyz").touch()
    assert code_imports.find_pip() == (sys.executable, str(tmp_path / "pip.pyz"))
