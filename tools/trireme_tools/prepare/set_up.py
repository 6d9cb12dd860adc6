"""Make ``.venv`` and install the locked packages into it: what ``make`` runs first, on any Python from
3.9 on.

``python3 -m trireme_tools.prepare.set_up serve`` installs the router and Triton's server, ``dev`` the test
tools, and ``docs`` Sphinx. Before the first byte is fetched it finds an interpreter and checks
everything that
is needed; what is missing is one sentence. What an interrupted run left is mended. It imports the standard
library alone.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from trireme_tools.prepare import interpreters, needs
from trireme_tools.prepare.install_packages import Installer, InstallError
from trireme_tools.prepare.interpreters import Interpreter, InterpreterChoice, Unusable

CHECKOUT = Path(__file__).resolve().parents[3]
ENVIRONMENT = CHECKOUT / ".venv"
#: The distributions of the checkout beside the core.
PARTS = (CHECKOUT / "extensions", CHECKOUT / "tools")
#: Locks of the router's packages, and of those that build the checkout's own, with uv.
LOCK, BUILD_LOCK = "locks/requirements.lock", "locks/requirements-build.lock"
#: Packages that first_start.py and the conversions import, and that these need.
FIRST = (
    *("numpy", "onnx", "protobuf", "ml-dtypes", "typing-extensions"),
    *("rich", "markdown-it-py", "mdurl", "pygments"),
)
INSTALLING = "installing the router and Triton's server into .venv"
#: Where NVIDIA's image has its Triton.
IMAGE_TRITON = Path("/opt/tritonserver/bin/tritonserver")


def main(arguments: Sequence[str]) -> int:
    """Set up what is named; return the exit status."""
    parser = argparse.ArgumentParser(prog="set_up")
    parser.add_argument("what", choices=("serve", "dev", "docs"))
    parser.add_argument("--python", default="", help="the interpreter, or uv for one that uv fetches")
    parser.add_argument(
        "--weights", action="store_true", help="fetch and convert the models beside the packages"
    )
    parser.add_argument("--examples", action="store_true", help="those of the examples too")
    options = parser.parse_args(arguments)
    try:
        return {"serve": set_up, "dev": add_test_tools, "docs": add_sphinx}[options.what](options)
    except Unusable as error:
        say(str(error))
        return 1
    except InstallError as error:
        say(describe(error))
        return 1
    except KeyboardInterrupt:
        say("stopped; what is installed stays, and the next run goes on.")
        return 130


def describe(error: InstallError) -> str:
    """Return the sentence of a failure."""
    return f"the packages were not installed: {error}. What is here stays: run it again then."


def set_up(options: argparse.Namespace) -> int:
    """Make the environment, and install the router and Triton's server."""
    make_environment(options.python)
    if options.weights and not any((cache_folder() / "models").glob("*/*")):
        return _install_beside_the_models(["--examples"] if options.examples else [])
    say(f"{INSTALLING} (less than 1 minute the first time)")
    install_packages(live=sys.stderr.isatty())
    return 0


def _install_beside_the_models(flags: Sequence[str]) -> int:
    """Install what a conversion needs; first_start.py does the rest with it."""
    requirement = ENVIRONMENT / "first.txt"
    requirement.write_text(_locked(LOCK, *FIRST), encoding="utf-8")
    installer = Installer(ENVIRONMENT, machine_variables())
    installer.install("--require-hashes", "--requirement", str(requirement))
    path = os.pathsep.join(map(str, (CHECKOUT, *PARTS)))
    command = [str(installer.python), "-m", "trireme_tools.prepare.first_start", *flags]
    return subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, check=False).returncode


def install_packages(*, live: bool = False) -> None:
    """Install the router, Triton's server and this checkout."""
    installer = Installer(ENVIRONMENT, machine_variables(), live=live)
    installer.install("--require-hashes", *_requirements(LOCK, BUILD_LOCK))
    checkout = [word for folder in (CHECKOUT, *PARTS) for word in ("--editable", str(folder))]
    installer.install("--no-build-isolation", *checkout)
    _escape_paths(next(ENVIRONMENT.glob("lib/python3.*/site-packages")))


def _escape_paths(packages: Path) -> None:
    """Write the paths of the checkout in ASCII.

    The Python inside Triton's stub reads them as ASCII in every locale, and ends if a folder has an umlaut.
    Python 3.12 and newer read UTF-8.
    """
    for file in packages.glob("*.pth"):
        lines = file.read_bytes().splitlines()
        if not all(line.isascii() for line in lines):
            escaped = [
                line if line.isascii() else b"import os, sys; sys.path.append(os.fsdecode(%a))" % line
                for line in lines
            ]
            file.write_bytes(b"\n".join(escaped) + b"\n")


def add_test_tools(_: argparse.Namespace) -> int:
    """Install what the tests and checks need."""
    say("installing the test tools into .venv")
    installer = Installer(ENVIRONMENT, machine_variables(), live=sys.stderr.isatty())
    installer.install("--require-hashes", *_requirements("locks/requirements-dev.lock"))
    return 0


def add_sphinx(_: argparse.Namespace) -> int:
    """Make a second environment with only Sphinx and its dependencies; it finds the rest in ``.venv``."""
    say("installing Sphinx into .venv/docs")
    folder = ENVIRONMENT / "docs"
    outer = Installer(ENVIRONMENT, machine_variables(), live=sys.stderr.isatty())
    subprocess.run([outer.python, "-m", "venv", "--without-pip", folder], check=True)
    packages = next(ENVIRONMENT.glob("lib/python3.*/site-packages"))
    (folder / packages.relative_to(ENVIRONMENT) / "router.pth").write_text(f"{packages}\n", encoding="utf-8")
    inner = Installer(ENVIRONMENT, machine_variables(), live=sys.stderr.isatty(), into=folder)
    inner.install("--require-hashes", *_requirements("docs/_site/requirements.lock"))
    return 0


def machine_variables() -> dict[str, str]:
    """Return the variables of pip and uv: without a home to write to, uv keeps its files elsewhere too."""
    return {"UV_CACHE_DIR": str(user_cache() / "uv"), **os.environ}


def _requirements(*locks: str) -> list[str]:
    return [word for lock in locks for word in ("--requirement", str(CHECKOUT / lock))]


def make_environment(requested: str) -> None:
    """Make ``.venv`` with pip and uv, unless it is there and whole."""
    own_triton = bool(os.environ.get("TRIREME_TRITON_SERVER")) or IMAGE_TRITON.is_file()
    needs.check_platform(own_triton)
    cache = cache_folder()
    present = interpreters.probe(str(ENVIRONMENT / "bin" / "python"))
    fits = present and (present.is_supported or (own_triton and present.minor >= interpreters.OLDEST))
    if not fits or not _is_at_home(ENVIRONMENT):
        present = None
    sizes = {} if present else {ENVIRONMENT: needs.ENVIRONMENT_SIZE}
    if not (cache / "models").is_dir():
        sizes[cache] = needs.MODELS_SIZE
    needs.check_folders(CHECKOUT, cache, sizes)
    if present and present.pip:
        _complete(present, own_triton, has_uv=True)
    else:  # there is none, its making was interrupted, or its interpreter has gone
        has_uv = shutil.which("uv") is not None
        choice = interpreters.choose(requested, own_triton)
        interpreter = choice.interpreter or _managed(choice, cache, has_uv)
        _complete(interpreter, own_triton, has_uv)
        interpreter = interpreters.probe(interpreter.path) or interpreter
        say(f"{interpreter} runs in .venv{f': {choice.reason}' if choice.reason else ''}")
        _make(interpreter)
    _provide_uv()


def cache_folder() -> Path:
    """Return the cache; sm.settings has the same rule."""
    named = os.environ.get("TRIREME_CACHE")
    if named:
        return Path(os.path.expanduser(named)).absolute()  # noqa: PTH111  (it leaves an unknown ~name as it is)
    return user_cache() / "trireme"


def user_cache() -> Path:
    """Return the folder of the user's caches; below the temporary folder if there is no home to write to."""
    named = os.environ.get("XDG_CACHE_HOME")
    folder = Path(os.path.expanduser(named or "~/.cache")).absolute()  # noqa: PTH111
    return folder if named or needs.can_be_written(folder) else Path(tempfile.gettempdir()) / ".cache"


def _complete(interpreter: Interpreter, own_triton: bool, has_uv: bool) -> None:
    """Install the packages that an interpreter lacks if this is root; else raise :class:`Unusable`."""
    missing = needs.missing_packages(interpreter, own_triton, has_uv)
    if missing and not (interpreter.is_system and _install(missing)):
        raise Unusable(needs.describe_missing(interpreter, missing))


def _install(packages: Sequence[str]) -> bool:
    if not needs.can_install():
        return False
    say(f"installing {' and '.join(packages)} with apt-get")
    return needs.install(packages)


def _managed(choice: InterpreterChoice, cache: Path, has_uv: bool) -> Interpreter:
    """Return an interpreter of uv's, fetched into the cache unless it is there; as root, one of apt's."""
    why = choice.reason or "PYTHON=uv asks for a Python of its own"
    packages = needs.python_packages()
    if choice.reason and packages and _install(packages):
        found = interpreters.probe(needs.python_name(packages))
        if found and found.is_supported:
            return found
    advice = needs.apt_command(packages)
    if has_uv:
        uv, variables = str(shutil.which("uv")), machine_variables()
    else:
        maker = next((found for found in choice.present if found.venv), None)
        if maker is None:
            venv = f"python3.{choice.present[0].minor}-venv" if choice.present else "python3-venv"
            if choice.present and _install([venv]):
                maker = interpreters.probe(choice.present[0].path)
            if maker is None:
                raise Unusable(
                    f"{why}: {advice or needs.apt_command([venv]) or 'install one of these, or uv'}."
                )
        uv, variables = _uv_alone(maker, cache / "uv")
    variables["UV_PYTHON_INSTALL_DIR"] = str(cache / "python")
    found = interpreters.find_managed(uv, variables)
    if found is None:
        say(f"fetching Python 3.{interpreters.SUPPORTED[0]} with uv: {why}")
        reason = interpreters.fetch_managed(uv, variables)
        found = interpreters.find_managed(uv, variables)
        if found is None:
            raise Unusable(
                f"{why}, and uv could not fetch one ({reason}): {advice or 'install one'}, or set "
                "UV_PYTHON_INSTALL_MIRROR to a mirror of python-build-standalone."
            )
    return found


def _uv_alone(maker: Interpreter, folder: Path) -> tuple[str, dict[str, str]]:
    """Return a uv in a folder of its own, as there is no interpreter for ``.venv`` yet, and its variables."""
    uv = folder / "bin" / "uv"
    installer = Installer(folder, machine_variables())
    if not _runs(uv):
        shutil.rmtree(folder, ignore_errors=True)
        _venv(maker, folder)
        _install_uv(installer, folder)
    return str(uv), installer.uv_variables()


def _make(interpreter: Interpreter) -> None:
    """Make ``.venv`` in the place of one that does not run."""
    if ENVIRONMENT.exists():
        shutil.rmtree(ENVIRONMENT)
    if interpreter.venv:
        _venv(interpreter, ENVIRONMENT)
        return
    # A Python without ensurepip, and a uv of the user's: this one has pip from the index.
    command = ["uv", "venv", "--quiet", "--seed", "--python", interpreter.path, str(ENVIRONMENT)]
    process = subprocess.run(command, stderr=subprocess.PIPE, text=True, errors="replace", check=False)
    if process.returncode:
        raise Unusable(f"uv could not make {ENVIRONMENT}: {_last_line(process.stderr)}")


def _venv(interpreter: Interpreter, folder: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    process = subprocess.run(
        [interpreter.path, "-m", "venv", str(folder)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    if process.returncode:
        raise Unusable(f"{interpreter} could not make {folder}: {_last_line(process.stdout)}")


def _provide_uv() -> None:
    if not _runs(ENVIRONMENT / "bin" / "uv"):
        _install_uv(Installer(ENVIRONMENT, machine_variables()), ENVIRONMENT)


def _install_uv(installer: Installer, folder: Path) -> None:
    """Install the locked uv with pip, which every environment has."""
    requirement = folder / "uv.txt"
    requirement.write_text(_locked(BUILD_LOCK, "uv"), encoding="utf-8")
    installer.install_with_pip(["--require-hashes", "--requirement", str(requirement)])


def _is_at_home(environment: Path) -> bool:
    """True if the scripts of an environment name its own Python: it was not copied or moved."""
    try:
        return os.fsencode(environment) in (environment / "bin" / "pip").read_bytes()
    except OSError:
        return False


def _locked(lock: str, *names: str) -> str:
    """Return the lines of a lock that are about some packages, with their hashes."""
    pattern = rf"^(?:{'|'.join(map(re.escape, names))})==(?:.*\\\n)*.*\n"
    return "".join(re.findall(pattern, (CHECKOUT / lock).read_text(encoding="utf-8"), re.MULTILINE))


def _runs(program: Path) -> bool:
    try:
        return subprocess.run([program, "--version"], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def _last_line(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return lines[-1].rstrip(".") + "." if lines else "it gave no reason."


def say(line: str) -> None:
    """Write a line at once."""
    print(line, file=sys.stderr, flush=True)  # noqa: T201  (before anything is installed there is no other way)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
