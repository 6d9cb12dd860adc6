"""A package that no box has, and what packs it into an environment."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

from sm.settings import HERE

WHEEL = "trireme_greeting-1.0-py3-none-any.whl"


def wheel(folder: Path, word: str = "ahoy") -> Path:
    """A package ``trireme_greeting`` with a ``WORD`` and a command, as a wheel."""
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


def requirements(folder: Path, *lines: str, word: str = "ahoy") -> Path:
    """The file, with the wheel beside it."""
    wheel(folder, word)
    (folder / "requirements.txt").write_text("\n".join((f"./{WHEEL}", *lines)) + "\n")
    return folder / "requirements.txt"


def pack(
    *words: object, cache: Path, through: str = "", **variables: str
) -> subprocess.CompletedProcess[str]:
    """As one types it. ``through``: a command line that becomes it in the end."""
    line = [*through.split(), sys.executable, "-m", "sm.cli", "pack-env", *map(str, words)]
    environment = {**os.environ, "TRIREME_CACHE": str(cache), **variables}
    return subprocess.run(line, cwd=HERE, capture_output=True, text=True, env=environment)
