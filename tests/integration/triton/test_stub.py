"""The process of a Python model runs its interpreter's own library, on every supported version of Python here."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest
import requests

from sm.errors import StartError
from sm.repository import machine
from sm.repository.machine import STUB
from tests.support.distribution import interpreters, supported_versions
from tests.support.other_triton import OTHER_TRITON
from tests.support.sm_command import run_sm
from tests.support.tritons import HEAD, SETTINGS, Model, TritonProcess, prepare_triton
from trireme_tools.environments.stub import Stub

pytestmark = pytest.mark.skipif(bool(OTHER_TRITON), reason="only the wheel's Triton has these stubs")

#: Answers with the model process's Python, and the libraries of Python that it has mapped.
REPORTS = Model(
    """
import json, sys, _ctypes
lines = open("/proc/self/maps").read().splitlines()
mapped = sorted({line.split(maxsplit=5)[5] for line in lines if "/libpython" in line})
text = json.dumps([sys.version.split()[0], mapped])
return {"y": np.frombuffer(text.encode(), np.uint8)}  # the stubs lose strings on NumPy 2
""",
    {"x": ("FP32", [1])},
    {"y": ("UINT8", [-1])},
    head=HEAD,
)
REQUEST = {"inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": [1]}]}


@pytest.fixture(params=supported_versions())
def interpreter(request: pytest.FixtureRequest) -> tuple[str, Path]:
    """Version and program of an interpreter of this machine."""
    found = dict(interpreters()).get(request.param)
    if found is None:
        pytest.skip(f"there is no Python {request.param} on this machine")
    return request.param, found


@pytest.fixture
def become(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Path, str], None]:
    """Let the box's code believe that it runs on another interpreter, in an environment of that."""

    def become(version: str, program: Path, prefix: str) -> None:
        monkeypatch.setattr(machine, "VERSION", version)
        monkeypatch.setattr(machine, "LIBPYTHON", f"libpython{version}.so.1.0")
        monkeypatch.setattr(sysconfig, "get_config_var", lambda name: None)
        monkeypatch.setattr(sys, "base_prefix", prefix)
        monkeypatch.setattr(sys, "executable", str(program))

    return become


def ask(python: Path, code: str) -> str:
    command = [str(python), "-c", f"import sys, sysconfig; print({code})"]
    return subprocess.check_output(command, text=True).strip()


def own_library(python: Path, version: str) -> Path:
    """Return the shared library of an interpreter, as it names it itself."""
    folder = ask(python, "sysconfig.get_config_var('LIBDIR')")
    return (Path(folder) / f"libpython{version}.so.1.0").resolve(strict=True)


def report(triton: TritonProcess) -> tuple[str, list[Path]]:
    url = f"http://127.0.0.1:{triton.box.http_port}/v2/models/reports/infer"
    response = requests.post(url, json=REQUEST, timeout=30)
    assert response.status_code == 200, response.text
    version, mapped = json.loads(bytes(response.json()["outputs"][0]["data"]))
    return version, [Path(path) for path in mapped]


def test_a_model_runs_on_the_boxs_own_library(
    interpreter: tuple[str, Path], tmp_path: Path, become: Callable[[str, Path, str], None]
) -> None:
    version, python = interpreter
    uv, environment = Path(sys.executable).with_name("uv"), tmp_path / "env"
    numpy = Stub.find(machine.find_server(SETTINGS), version).numpy
    subprocess.run([uv, "venv", "--quiet", "--python", python, environment], check=True)
    program = environment / "bin" / "python"
    subprocess.run([uv, "pip", "install", "--quiet", "--python", program, numpy], check=True)
    prefix = ask(python, "sys.base_prefix")
    triton = prepare_triton(tmp_path, [])
    REPORTS.write(triton.box.repository / "reports")
    become(version, program, prefix)
    triton.start()
    try:
        expected = ask(python, "sys.version.split()[0]"), [own_library(python, version)]
        assert report(triton) == expected
    finally:
        triton.stop()


def test_a_model_runs_on_the_library_of_its_packed_environment(
    interpreter: tuple[str, Path], tmp_path: Path
) -> None:
    """Its stub is that of the environment's Python, copied into the model's folder, as the page says."""
    version, python = interpreter
    (tmp_path / "requirements.txt").write_text("")
    triton = prepare_triton(tmp_path, [])
    model = triton.box.repository / "reports"
    REPORTS.write(model)
    path = f"{python.parent}:{os.environ['PATH']}"
    packed = run_sm(
        *("pack-env", "env", "--requirements", tmp_path / "requirements.txt", "-o", model / "env"),
        *("--python", version),
        environment={"TRIREME_CACHE": str(tmp_path / "cache"), "PATH": path},
    )
    assert packed.returncode == 0, packed.stderr
    with (model / "config.pbtxt").open("a") as config:
        value = '{string_value: "$$TRITON_MODEL_DIRECTORY/env"}'
        config.write(f'parameters {{key: "EXECUTION_ENV_PATH", value: {value}}}\n')
    if version != machine.VERSION:
        shutil.copy(Stub.find(machine.find_server(SETTINGS), version).file, model / STUB)
    triton.start()
    try:
        library = model / "env" / "lib" / f"libpython{version}.so.1.0"
        assert report(triton) == (ask(python, "sys.version.split()[0]"), [library.resolve(strict=True)])
    finally:
        triton.stop()


def test_a_folder_that_runs_no_programs_is_named_if_a_stub_must_be_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = machine.find_server(SETTINGS)
    monkeypatch.setattr(machine, "VERSION", "3.13")
    monkeypatch.setattr(machine, "libpython", lambda: tmp_path / "libpython")
    # As a container's /tmp with the engine's default options; mounting one takes root.
    monkeypatch.setattr(os, "access", lambda path, mode: not str(path).startswith(str(tmp_path)))
    with pytest.raises(StartError, match=str(tmp_path)):
        machine.assemble(server, tmp_path)
