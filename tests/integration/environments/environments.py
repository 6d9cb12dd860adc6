"""Write a small package as a wheel, and run ``sm pack-env`` to pack it into an environment."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

from sm.settings import HERE

WHEEL = "trireme_greeting-1.0-py3-none-any.whl"


def write_greeting_wheel(folder: Path, word: str = "ahoy") -> Path:
    """Write the wheel of a package ``trireme_greeting`` with a constant ``WORD`` and a command."""
    info = "trireme_greeting-1.0.dist-info"
    files = {
        "trireme_greeting.py": f"WORD = {word!r}\n\ndef main():\n    print(WORD)\n",
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: trireme-greeting\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": "[console_scripts]\ngreet = trireme_greeting:main\n",
    }
    record = "".join(f"{name},,\n" for name in (*files, f"{info}/RECORD"))
    with zipfile.ZipFile(folder / WHEEL, "w") as made:
        for name, text in {**files, f"{info}/RECORD": record}.items():
            made.writestr(name, text)
    return folder / WHEEL


def write_requirements(folder: Path, *lines: str, word: str = "ahoy") -> Path:
    """Write the wheel and a ``requirements.txt`` that names it, and return the latter."""
    write_greeting_wheel(folder, word)
    (folder / "requirements.txt").write_text("\n".join((f"./{WHEEL}", *lines)) + "\n")
    return folder / "requirements.txt"


def run_pack_env(
    *arguments: object, cache: Path, command_prefix: str = "", **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run ``sm pack-env``. ``command_prefix`` is a command that ends by running it in its place."""
    command = [*command_prefix.split(), sys.executable, "-m", "sm.cli", "pack-env", *map(str, arguments)]
    environment = {**os.environ, "TRIREME_CACHE": str(cache), **variables}
    return subprocess.run(command, cwd=HERE, capture_output=True, text=True, env=environment)
