"""List the image's Debian packages that have known holes which a newer package closes.

``make audit`` runs it; Debian's ``debsecan`` asks Debian's security tracker. What could not be checked
is said, and is not a failure.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence


def audit(engine: str, image: str) -> str:
    """Return debsecan's lines, one for each hole. Raises :class:`LookupError` if it cannot be asked."""
    run = [engine, "run", "--rm", "--network", "none", "--entrypoint", "sh", image, "-c"]
    release = _output([*run, ". /etc/os-release && echo $ID $VERSION_CODENAME"]) if engine else ""
    if not release:
        raise LookupError(f"there is no image {image}: run make image first")
    distribution, _, suite = release.strip().partition(" ")
    if distribution != "debian":
        raise LookupError(f"the image is {distribution}'s, and the tracker is Debian's")
    if shutil.which("debsecan") is None:
        raise LookupError("there is no debsecan; on Debian and Ubuntu: apt-get install debsecan")
    with tempfile.NamedTemporaryFile("w") as status:
        status.write(_output([*run, "cat /var/lib/dpkg/status"]))
        status.flush()
        command = [
            "debsecan",
            "--suite",
            suite,
            "--status",
            status.name,
            "--only-fixed",
            "--format",
            "detail",
        ]
        completed = subprocess.run(command, capture_output=True, text=True, check=False)
    if completed.returncode:
        reason = completed.stderr.strip().splitlines()[-1:]
        raise LookupError(f"Debian's tracker was not reached: {' '.join(reason)}")
    return completed.stdout


def _output(command: Sequence[str]) -> str:
    """Return what a command prints; nothing if it fails."""
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def main(engine: str, image: str) -> int:
    try:
        holes = audit(engine, image)
    except LookupError as error:
        print(f"NOT CHECKED, the packages of the image: {error.args[0]}")
        return 0
    print(holes or f"{image}: no package of Debian has a known hole that a newer one closes")
    return 1 if holes else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
