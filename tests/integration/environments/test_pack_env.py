"""``sm pack-env`` makes an environment once, which works wherever it is moved and in Triton; unusable ones are refused."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import requests

from sm.errors import CommandError
from sm.repository import machine
from tests.support.other_triton import STUB_NEEDS_NUMPY_1
from tests.support.sm_command import run_sm
from tests.support.tritons import HEAD, SETTINGS, Model, TritonProcess, prepare_triton
from tests.support.wheels import write_wheel
from trireme_tools.environments import pack_env
from trireme_tools.environments.stub import Stub

STUB = Stub.find(machine.find_server(SETTINGS), "")
GREETING_MODEL = Model(
    """
import json, sys
import trireme_greeting
said = {"word": trireme_greeting.WORD, "numpy": np.__version__, "prefix": sys.prefix, "at": np.__file__}
return {"y": np.array([json.dumps(said), tensor(request, "x")[0].decode()], dtype=object)}
""",
    {"x": ("STRING", [1])},
    {"y": ("STRING", [2])},
    head=HEAD,
)
REQUEST = {"inputs": [{"name": "x", "shape": [1], "datatype": "BYTES", "data": ["back"]}]}


def write_requirements(folder: Path, *lines: str, word: str = "ahoy") -> Path:
    """Write a wheel, and a ``requirements.txt`` that names it; return the latter."""
    wheel = write_wheel(folder, "trireme_greeting", text=f"WORD = {word!r}\n")
    (folder / "requirements.txt").write_text("\n".join((f"./{wheel.name}", *lines)) + "\n")
    return folder / "requirements.txt"


def run_pack_env(
    requirements: Path, out: Path, cache: Path, *options: str, prefix: str = "", **variables: str
) -> subprocess.CompletedProcess[str]:
    arguments = ("pack-env", "env", "--requirements", requirements, "-o", out, *options)
    completed = run_sm(*arguments, environment={"TRIREME_CACHE": str(cache), **variables}, prefix=prefix)
    assert "Traceback" not in completed.stderr
    return completed


def greet(environment: Path) -> list[str]:
    """Activate an environment as a person does; return what its package says and where its Python is."""
    code = "import sys, trireme_greeting as greeting; print(greeting.WORD, sys.executable, sep='\\n')"
    command = f'source "{environment}/bin/activate" && python3 -c "{code}"'
    printed = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True).stdout
    return printed.splitlines()


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with requirements, the environment ``env`` that is packed from them, and the cache."""
    home = tmp_path_factory.mktemp("environments")
    completed = run_pack_env(write_requirements(home), home / "env", home / "cache")
    assert completed.returncode == 0, completed.stderr
    assert 'string_value: "$$TRITON_MODEL_DIRECTORY/env"' in completed.stdout
    return home


@pytest.fixture
def moved_environment(packed: Path, tmp_path: Path) -> Path:
    """A copy of the environment in another folder, which a test may break."""
    folder = tmp_path / "else where"
    shutil.copytree(packed / "env", folder, symlinks=True, copy_function=os.link)
    return folder


def test_an_environment_works_wherever_it_is_moved(moved_environment: Path) -> None:
    pack_env.check(moved_environment, STUB)
    assert greet(moved_environment) == ["ahoy", f"{moved_environment}/bin/python3"]


def test_an_environment_is_made_again_only_for_other_requirements(packed: Path, tmp_path: Path) -> None:
    """The other requirements file has the same text, but the wheel beside it differs."""

    def make(requirements: Path, out: Path, **variables: str) -> tuple[int, bool]:
        """Return the status, and whether an environment was made."""
        done = run_pack_env(requirements, out, packed / "cache", **variables)
        return done.returncode, "making" in done.stderr

    environment = tmp_path / "env"
    for out in (packed / "env", environment):
        assert make(packed / "requirements.txt", out) == (0, False)
    assert (environment / "bin" / "activate").is_file()
    # Packages on PYTHONPATH do not count as installed.
    path = str(Path(np.__file__).parents[1])
    assert make(write_requirements(tmp_path, word="hello"), environment, PYTHONPATH=path) == (0, True)
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
    requirements = write_requirements(tmp_path, requirement)
    completed = run_pack_env(requirements, tmp_path / "env", tmp_path / "cache")
    assert (completed.returncode, named in completed.stderr) == (1, True), completed.stderr
    assert not (tmp_path / "env").exists()


def test_on_a_full_disk_nothing_is_left(tmp_path: Path) -> None:
    """A limit on file sizes stands in for a full disk."""
    cache = tmp_path / "cache"
    requirements = write_requirements(tmp_path)
    completed = run_pack_env(requirements, tmp_path / "env", cache, prefix="prlimit --fsize=200000")
    assert completed.returncode == 1, completed.stderr
    assert not [path for path in cache.rglob("*") if path.is_file() and path.name != "lock"]


@pytest.mark.parametrize(
    ("options", "path", "named"),
    [
        (("--requirements", "requirements.txt", "--python", "3.99"), os.environ["PATH"], "3.99"),
        (("--conda", "requirements.txt"), "/nowhere", "conda-pack"),
    ],
)
def test_a_python_without_a_stub_and_a_missing_conda_are_named(
    packed: Path, options: tuple[str, ...], path: str, named: str
) -> None:
    variables = {"PATH": path, "TRIREME_CACHE": str(packed / "cache")}
    completed = run_sm("pack-env", "env", *options, cwd=packed, environment=variables)
    assert (completed.returncode, named in completed.stderr) == (1, True)


def test_a_folder_that_is_not_an_environment_is_left_alone(packed: Path, tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("all of it")
    assert run_pack_env(packed / "requirements.txt", tmp_path, packed / "cache").returncode == 1
    assert (tmp_path / "thesis.txt").read_text() == "all of it"


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


@pytest.fixture(scope="module")
def triton(packed: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonProcess]:
    """The model ``other`` has the environment, ``shares`` uses it, and ``packed`` has it as an archive."""
    triton = prepare_triton(tmp_path_factory.mktemp("greeting"), [])
    repository = triton.box.repository
    for name, environment in {"other": "env", "shares": "../other/env", "packed": "env.tar.gz"}.items():
        GREETING_MODEL.write(repository / name)
        value = f'{{string_value: "$$TRITON_MODEL_DIRECTORY/{environment}"}}'
        with (repository / name / "config.pbtxt").open("a") as config:
            config.write(f'parameters {{key: "EXECUTION_ENV_PATH", value: {value}}}\n')
    shutil.copytree(packed / "env", repository / "other" / "env", symlinks=True, copy_function=os.link)
    archive = repository / "packed" / "env.tar.gz"
    completed = run_pack_env(packed / "requirements.txt", archive, packed / "cache")
    assert completed.returncode == 0, completed.stderr
    triton.start()
    yield triton
    triton.stop()


@pytest.mark.parametrize("name", ["other", "shares", "packed"])
def test_triton_runs_a_model_with_packages_that_the_box_lacks(triton: TritonProcess, name: str) -> None:
    url = f"http://127.0.0.1:{triton.box.http_port}/v2/models/{name}/infer"
    response = requests.post(url, json=REQUEST, timeout=30)
    assert response.status_code == 200, response.text
    report, constant = response.json()["outputs"][0]["data"]
    said = json.loads(report)
    assert (said["word"], constant) == ("ahoy", "back")
    assert not STUB_NEEDS_NUMPY_1 or said["numpy"].startswith("1.")
    prefix = Path(said["prefix"])
    assert prefix in Path(said["at"]).parents
    assert not {Path(sys.prefix), Path(sys.base_prefix)} & {prefix, *prefix.parents}
