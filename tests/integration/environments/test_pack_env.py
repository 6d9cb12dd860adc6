"""``sm pack-env`` makes an environment once, which works wherever it is moved; unusable ones are refused."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from sm.errors import CommandError
from sm.repository import machine
from sm.repository.machine import Stub
from tests.integration.environments.environments import (
    PackedEnvironment,
    greet,
    run_pack_env,
    write_requirements,
)
from tests.support.other_triton import STUB_NEEDS_NUMPY_1
from tests.support.tritons import SETTINGS
from trireme_tools.environments import pack_env

STUB = Stub.find(machine.find_server(SETTINGS), "")


@pytest.fixture
def moved_environment(packed_environment: PackedEnvironment, tmp_path: Path) -> Path:
    """A copy of the environment in another folder, which a test may break."""
    folder = tmp_path / "else where"
    shutil.copytree(packed_environment.folder, folder, symlinks=True, copy_function=os.link)
    return folder


def test_an_environment_works_wherever_it_is_moved(moved_environment: Path) -> None:
    pack_env.check(moved_environment, STUB)
    assert greet(moved_environment) == ["ahoy", f"{moved_environment}/bin/python3"]


def make(
    packed: PackedEnvironment, out: Path, requirements: Path | None = None, **variables: str
) -> tuple[int, bool]:
    """Return the status of ``sm pack-env``, and whether it made an environment."""
    options = ("--requirements", requirements or packed.requirements, "-o", out)
    done = run_pack_env(*options, cache=packed.cache, **variables)
    return done.returncode, "making" in done.stderr


def test_an_environment_is_made_again_only_for_other_requirements(
    packed_environment: PackedEnvironment, tmp_path: Path
) -> None:
    """The other requirements file has the same text, but the wheel beside it differs."""
    assert make(packed_environment, packed_environment.folder) == (0, False)
    environment = tmp_path / "env"
    assert make(packed_environment, environment) == (0, False)
    assert (environment / "bin" / "activate").is_file()
    # Packages on PYTHONPATH do not count as installed.
    path = str(Path(np.__file__).parents[1])
    requirements = write_requirements(tmp_path, word="hello")
    assert make(packed_environment, environment, requirements, PYTHONPATH=path) == (0, True)
    assert greet(environment)[0] == "hello"
    pack_env.check(environment, STUB)


@pytest.mark.parametrize(
    ("requirement", "named"),
    [
        pytest.param(
            "numpy>=2",
            "numpy<2",
            marks=pytest.mark.skipif(not STUB_NEEDS_NUMPY_1, reason="this Triton's stub takes any NumPy"),
        ),
        ("./no-such-package-1.0-py3-none-any.whl", "no-such-package"),
    ],
)
def test_a_requirement_that_cannot_be_met_is_named(tmp_path: Path, requirement: str, named: str) -> None:
    options = ("--requirements", write_requirements(tmp_path, requirement), "-o", tmp_path / "env")
    completed = run_pack_env(*options, cache=tmp_path / "cache")
    found = (completed.returncode, named in completed.stderr, "Traceback" in completed.stderr)
    assert found == (1, True, False), completed.stderr
    assert not (tmp_path / "env").exists()


def test_on_a_full_disk_nothing_is_left(tmp_path: Path) -> None:
    """A limit on file sizes stands in for a full disk."""
    cache = tmp_path / "cache"
    options = ("--requirements", write_requirements(tmp_path), "-o", tmp_path / "env")
    completed = run_pack_env(*options, cache=cache, command_prefix="prlimit --fsize=200000")
    assert (completed.returncode, "Traceback" in completed.stderr) == (1, False), completed.stderr
    assert not [path for path in cache.rglob("*") if path.is_file() and path.name != "lock"]


@pytest.mark.parametrize(
    ("kind", "options", "path", "named"),
    [
        ("requirements", ("--python", "3.99"), os.environ["PATH"], "3.99"),
        ("conda", (), "/nowhere", "conda-pack"),
    ],
)
def test_a_python_without_a_stub_and_a_missing_conda_are_named(
    packed_environment: PackedEnvironment, kind: str, options: tuple[str, ...], path: str, named: str
) -> None:
    arguments = (f"--{kind}", packed_environment.requirements, *options)
    completed = run_pack_env(*arguments, cache=packed_environment.cache, PATH=path)
    assert (completed.returncode, named in completed.stderr) == (1, True)


def test_a_folder_that_is_not_an_environment_is_left_alone(
    packed_environment: PackedEnvironment, tmp_path: Path
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("all of it")
    assert make(packed_environment, tmp_path / "mine")[0] == 1
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "all of it"


#: What is broken in an environment, by what is named.
BROKEN: dict[str, Callable[[Path], object]] = {
    "bin/activate": lambda folder: (folder / "bin" / "activate").unlink(),
    "libpython3.7.so.1.0": lambda folder: (folder / "lib" / STUB.libpython).rename(
        folder / "lib" / "libpython3.7.so.1.0"
    ),
    "GLIBCXX_3.4.30": lambda folder: (folder / "lib" / "libstdc++.so.6").write_bytes(b"GLIBCXX_3.4.5\0"),
    "libnew.so": lambda folder: (folder / "lib" / "libnew.so").write_bytes(b"GLIBCXX_3.4.999\0"),
    "numpy": lambda folder: shutil.rmtree(next(folder.rglob("*-packages/numpy"))),
}


@pytest.mark.parametrize("named", BROKEN)
def test_an_environment_that_triton_could_not_run_is_refused(moved_environment: Path, named: str) -> None:
    BROKEN[named](moved_environment)
    with pytest.raises(CommandError, match=re.escape(named)):
        pack_env.check(moved_environment, STUB)
