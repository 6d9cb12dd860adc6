"""The wheel and the sdist, and ``sm`` as they install it: on a machine without the repository."""

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
    """What ``python -m build`` made: the sdist, and the wheel from it."""

    wheel: Path
    sdist: Path


@dataclass(frozen=True)
class Installed:
    """An environment with the wheel, in a folder of its own."""

    python: Path
    home: Path

    def environment(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        """Neither the repository nor this process's settings are in it, and the cache is in its own home."""
        others = ("TRIREME", "PYTHON", "XDG_CACHE_HOME")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(others)}
        path = f"{self.python.parent}:{os.environ['PATH']}"
        return {**kept, "PATH": path, "HOME": str(self.home), **(more or {})}

    def sm(self, *words: object, more: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        command = [str(self.python.with_name("sm")), *map(str, words)]
        return subprocess.run(
            command,
            cwd=self.home,
            env=self.environment(more),
            capture_output=True,
            text=True,
            check=False,
            timeout=240,
        )


def build(out: Path) -> Distribution:
    """Build as a release does, with the build backend of this environment."""
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(HERE)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    return Distribution(next(out.glob("*.whl")), next(out.glob("*.tar.gz")))


def install_beside_the_tools(wheel: Path, home: Path) -> Installed:
    """Install the wheel alone; its dependencies are those of this process. Takes a second, not a minute."""
    installed = _environment(Path(sys.executable), home)
    uv = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--offline", "--no-deps"]
    subprocess.run([*uv, "--python", str(installed.python), str(wheel)], check=True, timeout=60)
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    folder = subprocess.run(
        [installed.python, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    # Behind the environment's own folder, and without the .pth files of that place, which name the repository.
    Path(folder.stdout.strip(), "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    return installed


def install_alone(package: str, interpreter: Path, home: Path) -> Installed:
    """Install a package with everything it needs, as a newcomer does."""
    installed = _environment(interpreter, home, "--clear")
    command = [str(installed.python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    constraint = ["--constraint", str(HERE / "requirements.lock")]
    done = subprocess.run(
        [*command, *constraint, package], capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return installed


def _environment(interpreter: Path, home: Path, *flags: str) -> Installed:
    home.mkdir(parents=True, exist_ok=True)
    flags = flags or ("--without-pip",)
    subprocess.run([interpreter, "-m", "venv", *flags, str(home / "env")], check=True, timeout=120)
    return Installed(home / "env" / "bin" / "python", home)


def interpreters() -> Iterator[tuple[str, Path]]:
    """The Pythons of this machine that the package supports: on the PATH, or pyenv's."""
    pyenv = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser() / "versions"
    for version in supported():
        usual = [Path(found)] if (found := shutil.which(f"python{version}")) else []
        for candidate in (*sorted(pyenv.glob(f"{version}.*/bin/python")), *usual):
            done = subprocess.run(
                [candidate, "-c", "import ensurepip"], capture_output=True, check=False, timeout=60
            )
            if done.returncode == 0:
                yield version, candidate
                break


def supported() -> list[str]:
    """The versions that pyproject.toml names."""
    text = (HERE / "pyproject.toml").read_text()
    return re.findall(r'"Programming Language :: Python :: (3\.\d+)"', text)
