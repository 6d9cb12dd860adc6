"""What is missing is named before anything is fetched, with the command of this distribution and release."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sm.errors import StartError
from sm.repository import machine
from tests.support.wheels import write_wheel
from trireme_tools.prepare import interpreters, needs
from trireme_tools.prepare.install_packages import Installer
from trireme_tools.prepare.interpreters import Interpreter, Unusable

#: The answer of apt-cache for a package that exists, and for one whose name others only refer to.
POLICY = """\
#!/bin/sh
case " {known} " in
    *" $2 "*) printf '%s:\\n  Installed: (none)\\n  Candidate: 3.12.3-1\\n' "$2";;
    *) printf '%s:\\n  Installed: (none)\\n  Candidate: (none)\\n' "$2";;
esac
"""


@pytest.fixture
def apt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with all of PATH, in which a test writes its apt-cache."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "apt-get").symlink_to("/bin/true")
    monkeypatch.setenv("PATH", str(folder))
    return folder


@pytest.mark.parametrize(
    ("known", "named"),
    [
        pytest.param("libpython3-stdlib libpython3.12 nginx-light", "install libpython3.12", id="Debian"),
        pytest.param("libpython3-stdlib libpython3.12t64", "install libpython3.12t64;", id="Ubuntu 24.04"),
        pytest.param("libpython3-stdlib", "pyenv", id="the distribution has no such version"),
        pytest.param("", "sudo apt-get update && sudo apt-get install libpython3.12", id="no lists yet"),
    ],
)
def test_the_command_names_the_packages_of_this_release(apt: Path, known: str, named: str) -> None:
    (apt / "apt-cache").write_text(POLICY.format(known=known))
    (apt / "apt-cache").chmod(0o755)
    lacking = Interpreter(12, "3.12.3", True, "/usr/bin/python3", "/usr", library=False, venv=True, pip=True)
    packages = needs.missing_packages(lacking, own_triton=False, has_uv=False)
    assert named in needs.describe_missing(lacking, packages)
    assert needs.missing_packages(lacking, own_triton=True, has_uv=False) == []


def test_the_probe_finds_the_shared_library_where_the_box_finds_it() -> None:
    found = interpreters.probe(sys.executable)
    assert found is not None
    assert (found.version, found.path) == (".".join(map(str, sys.version_info[:3])), sys.executable)
    try:
        machine.libpython()
    except StartError:
        assert not found.library
    else:
        assert found.library


@pytest.mark.parametrize("folder", ["checkout", "cache"])
def test_a_folder_that_cannot_be_written_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    folders = {name: tmp_path / name for name in ("checkout", "cache")}
    for path in folders.values():
        path.mkdir()
    monkeypatch.setattr(os, "access", lambda path, _: path != folders[folder])
    with pytest.raises(Unusable, match=str(folders[folder])):
        needs.check_folders(folders["checkout"], folders["cache"], {})


def test_too_little_room_is_named_before_the_first_byte(tmp_path: Path) -> None:
    needs.check_folders(tmp_path, tmp_path / "cache", {tmp_path: 1})
    with pytest.raises(Unusable, match="GB free"):
        needs.check_folders(tmp_path, tmp_path / "cache", {tmp_path: 1, tmp_path / "cache" / "x": 10**15})


def test_an_installation_that_was_interrupted_is_mended(tmp_path: Path) -> None:
    """A package has its record last: without it, neither pip nor uv would take the package away."""
    environment = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    (environment / "bin" / "uv").symlink_to(str(shutil.which("uv", path=f"{sys.prefix}/bin")))
    write_wheel(tmp_path / "wheels", "parcel", "1")
    variables = {
        "PATH": os.environ["PATH"],
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(tmp_path / "wheels"),
        "UV_CACHE_DIR": str(tmp_path / "uv"),
    }
    installer = Installer(environment, variables)
    installer.install("parcel==1")
    (module,) = environment.glob("lib/*/site-packages/parcel.py")
    half = module.parent / "parcel-1.dist-info"
    for name in ("RECORD", "METADATA"):
        (half / name).unlink()
    module.unlink()
    installer.install("parcel==1")
    assert (module.exists(), (half / "RECORD").exists()) == (True, True)
