"""Build the wheels and the sdist, install them into environments of their own and run ``sm`` from there."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from sm.settings import HERE


@dataclass(frozen=True)
class Distribution:
    """The files of ``make dist``: the repository's sdist, the runtime's wheel, and the tools' wheel."""

    wheel: Path
    sdist: Path
    tools: Path


@dataclass(frozen=True)
class Installed:
    """A virtual environment with a wheel installed."""

    python: Path
    home: Path

    def environment(self, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        """Return variables without this process's settings, and with a home folder of the environment's own."""
        excluded = ("TRIREME", "PYTHON", "XDG_CACHE_HOME")
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(excluded)}
        path = f"{self.python.parent}:{os.environ['PATH']}"
        return {**inherited, "PATH": path, "HOME": str(self.home), **(extra or {})}

    def sm(self, *words: object, extra: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        command = [str(self.python.with_name("sm")), *map(str, words)]
        return subprocess.run(
            command,
            cwd=self.home,
            env=self.environment(extra),
            capture_output=True,
            text=True,
            check=False,
            timeout=240,
        )


def build(out: Path) -> Distribution:
    """Build as a release does, but with the build backend of this environment."""
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out)]
    for arguments in ((str(HERE),), ("--wheel", str(HERE / "tools"))):
        completed = subprocess.run(
            [*command, *arguments], capture_output=True, text=True, check=False, timeout=240
        )
        assert completed.returncode == 0, completed.stdout + completed.stderr
    wheel, tools = (next(out.glob(f"trireme_{name}-*.whl")) for name in ("serving", "tools"))
    return Distribution(wheel, next(out.glob("*.tar.gz")), tools)


def install_without_dependencies(home: Path, *wheels: Path) -> Installed:
    """Install the wheels only, and let them import this process's packages. Takes a second instead of a minute."""
    installed = _environment(Path(sys.executable), home)
    uv = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--offline", "--no-deps"]
    subprocess.run([*uv, "--python", str(installed.python), *map(str, wheels)], check=True, timeout=60)
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    folder = subprocess.run(
        [installed.python, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    # This process's packages without the two under test, whose metadata and .pth files name the repository.
    dependencies = home / "dependencies"
    dependencies.mkdir()
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if "trireme" not in path.name:
            (dependencies / path.name).symlink_to(path)
    Path(folder.stdout.strip(), "dependencies.pth").write_text(str(dependencies))
    return installed


def install_with_dependencies(package: str, wheels: Path, interpreter: Path, home: Path) -> Installed:
    """Install a package and its dependencies with pip, as a new user does, also from the folder ``wheels``."""
    installed = _environment(interpreter, home, "--clear")
    command = [str(installed.python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    # The versions without their hashes: with hashes pip takes no range of versions, and packages declare ranges.
    lines = (HERE / "requirements.lock").read_text().splitlines()
    versions = home / "versions.txt"
    versions.write_text("\n".join(line.removesuffix(" \\") for line in lines if not line.startswith(" ")))
    sources = ["--constraint", str(versions), "--find-links", str(wheels)]
    completed = subprocess.run(
        [*command, *sources, package], capture_output=True, text=True, check=False, timeout=600
    )
    assert completed.returncode == 0, completed.stdout + completed.stderr
    return installed


def _environment(interpreter: Path, home: Path, *flags: str) -> Installed:
    home.mkdir(parents=True, exist_ok=True)
    flags = flags or ("--without-pip",)
    subprocess.run([interpreter, "-m", "venv", *flags, str(home / "env")], check=True, timeout=120)
    return Installed(home / "env" / "bin" / "python", home)


def interpreters() -> Iterator[tuple[str, Path]]:
    """Yield version and path of each supported Python of this machine, from pyenv or from PATH."""
    pyenv = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser() / "versions"
    for version in supported_versions():
        on_path = [Path(found)] if (found := shutil.which(f"python{version}")) else []
        for candidate in (*sorted(pyenv.glob(f"{version}.*/bin/python")), *on_path):
            completed = subprocess.run(
                [candidate, "-c", "import ensurepip"], capture_output=True, check=False, timeout=60
            )
            if completed.returncode == 0:
                yield version, candidate
                break


def supported_versions() -> list[str]:
    """Return the Python versions that pyproject.toml names."""
    text = (HERE / "pyproject.toml").read_text()
    return re.findall(r'"Programming Language :: Python :: (3\.\d+)"', text)
