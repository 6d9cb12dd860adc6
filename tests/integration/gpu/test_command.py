"""The command for a machine with a GPU: its errors, and the contents of its bundle."""

from __future__ import annotations

import os
import subprocess
import zipfile
from pathlib import Path

import pytest

from bench.gpu import bundle
from bench.gpu.unpacking import PROGRAMS, unpack
from sm.settings import HERE


def test_a_repacked_wheel_has_only_the_files_that_triton_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    wheel = tmp_path / "nvidia_pytriton-1-py3-none-any.whl"
    stubs = "pytriton/tritonserver/python_backend_stubs"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        program = zipfile.ZipInfo("pytriton/tritonserver/bin/tritonserver")
        program.external_attr = 0o755 << 16
        archive.writestr(program, b"server" * 1000)
        for version in ("3.11", "3.12"):
            archive.writestr(f"{stubs}/{version}/triton_python_backend_stub", b"stub")
        archive.writestr("nvidia_pytriton.libs/libpython3-4.13.so.1.0", b"python" * 1000)
        archive.writestr("nvidia_pytriton.libs/libssl.so.3", b"ssl")
        archive.writestr("pytriton/proxy/server.py", b"")
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
    assert variables["PYTHONPATH"].split(":") == [str(HERE), str(HERE / "tools"), str(site)]


def test_the_packed_programs_run_with_their_own_libraries(tmp_path: Path) -> None:
    (tmp_path / "bundle").mkdir()
    bundle.collect_programs(tmp_path / "bundle" / PROGRAMS)
    unpack(tmp_path / "bundle", tmp_path / "work")
    for program, option in (("nginx", "-v"), ("wrk", "-v")):
        file = tmp_path / "work" / "programs" / "bin" / program
        completed = subprocess.run((file, option), capture_output=True, text=True, check=False, timeout=20)
        assert program in completed.stderr + completed.stdout
