"""A small package as a wheel, ``sm pack-env`` to pack it, and a python model that needs it."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from sm.settings import HERE
from tests.support.tritons import HEAD, Model
from tests.support.wheels import write_wheel

ANSWER = """
import json, sys
import trireme_greeting
said = {"word": trireme_greeting.WORD, "numpy": np.__version__, "prefix": sys.prefix, "at": np.__file__}
return {"y": np.array([json.dumps(said), tensor(request, "x")[0].decode()], dtype=object)}
"""
#: A request to a :class:`GreetingModel`.
BODY = {"inputs": [{"name": "x", "shape": [1], "datatype": "BYTES", "data": ["back"]}]}


@dataclass(frozen=True)
class GreetingModel(Model):
    """A model that runs in a packed environment."""

    environment: str = ""

    def config(self) -> str:
        value = f'{{string_value: "$$TRITON_MODEL_DIRECTORY/{self.environment}"}}'
        return super().config() + f'parameters {{key: "EXECUTION_ENV_PATH", value: {value}}}\n'


def greeting_model(environment: str) -> GreetingModel:
    return GreetingModel(
        ANSWER, {"x": ("STRING", [1])}, {"y": ("STRING", [2])}, head=HEAD, environment=environment
    )


@dataclass(frozen=True)
class PackedEnvironment:
    """The requirements, the packed folder and the cache of an environment."""

    requirements: Path
    folder: Path
    cache: Path


def write_requirements(folder: Path, *lines: str, word: str = "ahoy") -> Path:
    """Write a wheel, and a ``requirements.txt`` that names it; return the latter."""
    wheel = write_wheel(folder, "trireme_greeting", text=f"WORD = {word!r}\n")
    (folder / "requirements.txt").write_text("\n".join((f"./{wheel.name}", *lines)) + "\n")
    return folder / "requirements.txt"


def greet(environment: Path) -> list[str]:
    """Activate an environment as a person does; return what its package says and where its Python is."""
    code = "import sys, trireme_greeting as greeting; print(greeting.WORD, sys.executable, sep='\\n')"
    command = f'source "{environment}/bin/activate" && python3 -c "{code}"'
    printed = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True).stdout
    return printed.splitlines()


def run_pack_env(
    *arguments: object, cache: Path, command_prefix: str = "", **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run ``sm pack-env``. ``command_prefix`` is a command that ends by running it in its place."""
    command = [
        *command_prefix.split(),
        sys.executable,
        "-m",
        "sm.cli",
        "pack-env",
        "env",
        *map(str, arguments),
    ]
    environment = {**os.environ, "TRIREME_CACHE": str(cache), **variables}
    return subprocess.run(command, cwd=HERE, capture_output=True, text=True, env=environment)
