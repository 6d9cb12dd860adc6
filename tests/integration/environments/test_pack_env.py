"""``sm pack-env`` makes an environment once, which works wherever it is moved; unusable ones are refused."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from sm.errors import CommandError
from sm.repository import machine
from sm.repository.machine import Stub
from sm.settings import Settings
from tests.support.environments import run_pack_env, write_requirements
from tests.support.packed_environments import PackedEnvironment
from trireme_tools.environments import pack_env

STUB = Stub.find(machine.find_server(Settings.read({})), "")


@pytest.fixture
def moved_environment(packed_environment: PackedEnvironment, tmp_path: Path) -> Path:
    """A copy of the environment in another folder, which a test may break."""
    folder = tmp_path / "else where"
    shutil.copytree(packed_environment.folder, folder, symlinks=True, copy_function=os.link)
    return folder


def pack(
    requirements: Path, *arguments: object, cache: Path, **options: str
) -> subprocess.CompletedProcess[str]:
    return run_pack_env("env", "--requirements", requirements, *arguments, cache=cache, **options)


def test_an_environment_works_wherever_it_is_moved(moved_environment: Path) -> None:
    pack_env.check(moved_environment, STUB)
    command = f'source "{moved_environment}/bin/activate" && greet && command -v python3'
    completed = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert completed.stdout.splitlines() == ["ahoy", f"{moved_environment}/bin/python3"]


def test_an_environment_with_the_same_requirements_is_not_made_again(
    packed_environment: PackedEnvironment, tmp_path: Path
) -> None:
    requirements, cache = packed_environment.requirements, packed_environment.cache
    second_run = pack(requirements, "-o", packed_environment.folder, cache=cache)
    assert (second_run.returncode, "making" in second_run.stderr) == (0, False)
    assert "env is what it should be" in second_run.stderr
    run_elsewhere = pack(requirements, "-o", tmp_path / "env", cache=cache)
    assert (run_elsewhere.returncode, "making" in run_elsewhere.stderr) == (0, False)
    assert (tmp_path / "env" / "bin" / "activate").is_file()


def test_changed_requirements_replace_the_environment(
    packed_environment: PackedEnvironment, tmp_path: Path
) -> None:
    """The requirements file has the same text, but the wheel beside it differs."""
    environment = tmp_path / "env"
    shutil.copytree(packed_environment.folder, environment, symlinks=True, copy_function=os.link)
    requirements_file = write_requirements(tmp_path, word="hello")
    completed = run_pack_env(
        "env", "--requirements", requirements_file, "-o", environment, cache=packed_environment.cache
    )
    assert (completed.returncode, "making" in completed.stderr) == (0, True), completed.stderr
    command = f'source "{environment}/bin/activate" && greet'
    assert subprocess.run(["bash", "-c", command], capture_output=True, text=True).stdout == "hello\n"


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="there is no older NumPy for it")
def test_a_numpy_that_the_stub_cannot_use_is_refused(tmp_path: Path) -> None:
    requirements_file = write_requirements(tmp_path, "numpy>=2")
    completed = run_pack_env(
        "env", "--requirements", requirements_file, "-o", tmp_path / "env", cache=tmp_path / "cache"
    )
    assert (completed.returncode, "with numpy<2, which the stub wants" in completed.stderr) == (1, True), (
        completed.stderr
    )
    assert not (tmp_path / "env").exists()


def test_a_full_disk_is_one_sentence_and_nothing_is_left(tmp_path: Path) -> None:
    """A limit on file sizes stands in for a full disk."""
    requirements_file, cache = write_requirements(tmp_path), tmp_path / "cache"
    completed = run_pack_env(
        *("env", "--requirements", requirements_file, "-o", tmp_path / "env"),
        cache=cache,
        command_prefix="prlimit --fsize=200000",
    )
    assert (completed.returncode, "the environment cannot be made in" in completed.stderr) == (1, True), (
        completed.stderr
    )
    assert "Traceback" not in completed.stderr
    assert not [path for path in cache.rglob("*") if path.is_file() and path.name != "lock"]


def test_a_package_that_does_not_exist_is_named(tmp_path: Path) -> None:
    requirements_file = write_requirements(tmp_path, "./no-such-package-1.0-py3-none-any.whl")
    completed = pack(requirements_file, "-o", tmp_path / "env", cache=tmp_path / "cache")
    assert (completed.returncode, "no-such-package" in completed.stderr) == (1, True)
    assert "Traceback" not in completed.stderr


def test_a_python_without_a_stub_is_one_sentence(packed_environment: PackedEnvironment) -> None:
    completed = pack(packed_environment.requirements, "--python", "3.99", cache=packed_environment.cache)
    assert completed.returncode == 1
    assert "not for 3.99, and each program runs one minor version." in completed.stderr


def test_packages_on_pythonpath_do_not_count_as_installed(
    packed_environment: PackedEnvironment, tmp_path: Path
) -> None:
    requirements_file = write_requirements(tmp_path, word="bonjour")
    site_packages = str(Path(np.__file__).parents[1])
    cache = packed_environment.cache
    completed = pack(requirements_file, "-o", tmp_path / "env", cache=cache, PYTHONPATH=site_packages)
    assert completed.returncode == 0, completed.stderr
    pack_env.check(tmp_path / "env", STUB)


def test_a_conda_file_without_conda_is_one_sentence(
    packed_environment: PackedEnvironment, tmp_path: Path
) -> None:
    (tmp_path / "env.yml").write_text("dependencies: [python]")
    completed = run_pack_env(
        "env", "--conda", tmp_path / "env.yml", cache=packed_environment.cache, PATH="/nowhere"
    )
    assert completed.returncode == 1
    assert "There is no conda and no conda-pack on PATH" in completed.stderr


def test_a_folder_that_is_not_an_environment_is_left_alone(
    packed_environment: PackedEnvironment, tmp_path: Path
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("all of it")
    requirements, cache = packed_environment.requirements, packed_environment.cache
    completed = pack(requirements, "-o", tmp_path / "mine", cache=cache)
    assert (completed.returncode, "it is left unchanged" in completed.stderr) == (1, True)
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "all of it"


#: What is wrong with an environment, what makes a good one so, and the sentence.
FAULTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "no activate": (lambda folder: (folder / "bin" / "activate").unlink(), "no bin/activate"),
    "another Python": (
        lambda folder: (folder / "lib" / STUB.libpython).rename(folder / "lib" / "libpython3.7.so.1.0"),
        f"has libpython3.7.so.1.0, but Triton runs models with Python {machine.VERSION}",
    ),
    "a C++ runtime older than the stub": (
        lambda folder: (folder / "lib" / "libstdc++.so.6").write_bytes(b"GLIBCXX_3.4.5\0"),
        r"triton_python_backend_stub needs the C\+\+ runtime of GLIBCXX_3\.4\.30",
    ),
    "a library newer than the C++ runtime": (
        lambda folder: (folder / "lib" / "libnew.so").write_bytes(b"GLIBCXX_3.4.999\0"),
        r"libnew\.so needs the C\+\+ runtime of GLIBCXX_3\.4\.999",
    ),
    "no NumPy": (
        lambda folder: shutil.rmtree(next(folder.rglob("*-packages/numpy"))),
        "cannot import numpy, as the python backend does",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_an_environment_that_cannot_be_used_is_refused(moved_environment: Path, fault: str) -> None:
    spoil, sentence = FAULTS[fault]
    spoil(moved_environment)
    with pytest.raises(CommandError, match=sentence):
        pack_env.check(moved_environment, STUB)
