"""Build the wheels and the sdist, install them into environments of their own and run ``sm`` from there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from sm.settings import HERE
from trireme_tools.prepare.interpreters import SUPPORTED


class Distribution(NamedTuple):
    """The files of ``make dist``: the core's wheel, the repository's sdist, and the other two wheels."""

    wheel: Path
    sdist: Path
    extensions: Path
    tools: Path


class Installed(NamedTuple):
    """A virtual environment with a wheel installed."""

    python: Path
    home: Path

    def environment(self, **more: str) -> dict[str, str]:
        """Return variables without this process's settings, and with a home folder of the environment's own."""
        excluded = ("TRIREME", "PYTHON", "XDG_CACHE_HOME")
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(excluded)}
        path = f"{self.python.parent}:{os.environ['PATH']}"
        return {**inherited, "PATH": path, "HOME": str(self.home), **more}

    def sm(self, *words: object) -> subprocess.CompletedProcess[str]:
        command = [str(self.python.with_name("sm")), *map(str, words)]
        env = self.environment()
        return subprocess.run(command, cwd=self.home, env=env, capture_output=True, text=True, timeout=240)


def run(*command: object) -> str:
    """Run a command that must succeed, and return what it prints."""
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


def build(out: Path) -> Distribution:
    """Build as a release does, but with the build backend of this environment."""
    command = (sys.executable, "-m", "build", "--no-isolation", "--outdir", out)
    run(*command, HERE)
    for name in ("extensions", "tools"):
        run(*command, "--wheel", HERE / name)
    wheels = (next(out.glob(f"trireme_{name}-*.whl")) for name in ("serving", "extensions", "tools"))
    wheel, extensions, tools = wheels
    return Distribution(wheel, next(out.glob("*.tar.gz")), extensions, tools)


def install_without_dependencies(home: Path, *wheels: Path) -> Installed:
    """Install the wheels only, and let them import this process's packages. Takes a second instead of a minute."""
    installed = _environment(sys.executable, home, "--without-pip")
    uv = (sys.executable, "-m", "uv", "pip", "install", "--quiet", "--offline", "--no-deps")
    run(*uv, "--python", installed.python, *wheels)
    folder = Path(run(installed.python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"))
    # This process's packages without those under test, whose metadata and .pth files name the repository.
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if "trireme" not in path.name and not (folder / path.name).exists():
            (folder / path.name).symlink_to(path)
    return installed


def install_with_dependencies(package: str, wheels: Path, interpreter: Path, home: Path) -> Installed:
    """Install a package and its dependencies with pip, as a new user does, also from the folder ``wheels``."""
    installed = _environment(interpreter, home, "--clear")
    # The versions without their hashes: with hashes pip takes no range of versions, and packages declare ranges.
    lines = (HERE / "locks/requirements.lock").read_text().splitlines()
    versions = home / "versions.txt"
    versions.write_text("\n".join(line.removesuffix(" \\") for line in lines if not line.startswith(" ")))
    sources = ("--constraint", versions, "--find-links", wheels)
    run(installed.python, "-m", "pip", "install", "-q", "--disable-pip-version-check", *sources, package)
    return installed


def _environment(interpreter: str | Path, home: Path, flag: str) -> Installed:
    home.mkdir(parents=True, exist_ok=True)
    run(interpreter, "-m", "venv", flag, home / "env")
    return Installed(home / "env" / "bin" / "python", home)


def interpreters() -> Iterator[tuple[str, Path]]:
    """Yield version and path of each supported Python of this machine, from pyenv or from PATH."""
    pyenv = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser() / "versions"
    for version in supported_versions():
        for found in (*sorted(pyenv.glob(f"{version}.*/bin/python")), shutil.which(f"python{version}")):
            if found and not subprocess.call([found, "-c", "import ensurepip"], stderr=subprocess.DEVNULL):
                yield version, Path(found)
                break


def supported_versions() -> list[str]:
    """Return the Python versions that the wheel's Triton has programs for, and a box can run on."""
    return [f"3.{minor}" for minor in sorted(SUPPORTED)]
