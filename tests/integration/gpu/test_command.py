"""The command for a machine with a GPU: what it says without its folder, and what the image's script needs."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from sm.settings import HERE
from tests.gpu import bundle
from tests.gpu.unpacking import PROGRAMS, unpack


def test_without_its_folder_the_command_says_how_to_make_it(tmp_path: Path) -> None:
    command = (sys.executable, "-m", "tests.gpu", "--bundle", tmp_path / "none", "--out", tmp_path / "out")
    ended = subprocess.run(
        (*command, "--work", tmp_path / "work"),
        cwd=HERE,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert ended.returncode == 2
    assert "make gpu-bundle" in ended.stderr


def test_the_images_script_says_what_is_missing() -> None:
    ended = subprocess.run(
        (HERE / "tests" / "gpu" / "image.sh",),
        env={**os.environ, "ENGINE": "no-such-engine"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert ended.returncode == 1
    assert "no-such-engine" in ended.stderr


def test_a_wheel_is_smaller_and_whole_after_repacking(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    wheel = tmp_path / "nvidia_pytriton-1-py3-none-any.whl"
    stubs = "pytriton/tritonserver/python_backend_stubs"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as made:
        program = zipfile.ZipInfo("pytriton/tritonserver/bin/tritonserver")
        program.external_attr = 0o755 << 16
        made.writestr(program, b"server" * 1000)
        for version in ("3.11", "3.12"):
            made.writestr(f"{stubs}/{version}/triton_python_backend_stub", b"stub")
        made.writestr("nvidia_pytriton.libs/libpython3-4.13.so.1.0", b"python" * 1000)
        made.writestr("nvidia_pytriton.libs/libssl.so.3", b"ssl")
        made.writestr("pytriton/proxy/server.py", b"")
    folder = tmp_path / "bundle" / "wheels"
    folder.mkdir(parents=True)
    bundle.repack(wheel, folder / wheel.name, "3.12")
    variables = unpack(tmp_path / "bundle", tmp_path / "work")
    site = tmp_path / "work" / "site"
    files = {str(path.relative_to(site)) for path in site.rglob("*") if path.is_file()}
    assert files == {
        "pytriton/tritonserver/bin/tritonserver",
        f"{stubs}/3.12/triton_python_backend_stub",
        "nvidia_pytriton.libs/libssl.so.3",
    }
    assert os.access(site / "pytriton/tritonserver/bin/tritonserver", os.X_OK)
    assert variables["PYTHONPATH"].split(":") == [str(HERE), str(site)]


def test_the_packed_programs_run_with_their_own_libraries(tmp_path: Path) -> None:
    (tmp_path / "bundle").mkdir()
    bundle.collect_programs(tmp_path / "bundle" / PROGRAMS)
    unpack(tmp_path / "bundle", tmp_path / "work")
    for program, option in (("nginx", "-v"), ("wrk", "-v")):
        file = tmp_path / "work" / "programs" / "bin" / program
        ended = subprocess.run((file, option), capture_output=True, text=True, check=False, timeout=20)
        assert program in ended.stderr + ended.stdout
