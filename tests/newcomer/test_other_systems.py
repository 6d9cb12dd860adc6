"""The README's commands on other systems, each in a fresh root with its own files, processes, network and port 8080.

``walk.sh`` has the steps; the workflow ``test`` runs it in containers. Needs the network and takes a quarter of an hour.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from sm.settings import HERE

#: Makes such roots, on a machine that has it. It needs root.
DEBIAN_HOST = HERE.parent / "shared" / "lab" / "debian-host"


@pytest.mark.exhaustive
@pytest.mark.timeout(3600)
@pytest.mark.skipif(
    not DEBIAN_HOST.exists() or os.geteuid() != 0,
    reason="there is no debian-host here, or no root",
)
@pytest.mark.parametrize("suite", ["trixie", "forky"])
def test_the_readmes_commands_work_on_a_fresh_system(suite: str, tmp_path: Path) -> None:
    """Debian 13; and Debian's next, whose Python 3.14 is too new for Triton's wheel."""
    clone = tmp_path / "trireme"
    subprocess.run(["git", "clone", "--quiet", str(HERE), str(clone)], check=True)
    walk = ("bash", "/src/tests/newcomer/walk.sh", "/src")
    done = subprocess.run(
        [str(DEBIAN_HOST), suite, "run", "--src", str(clone), *walk],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-8000:]
