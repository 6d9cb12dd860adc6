"""Packages of the operating system that the box needs: nginx, and the Python library that Triton's stub
embeds.

As root they are installed with apt-get; otherwise a sentence names the command to run.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sm.commands.progress import Progress
from sm.errors import CommandError
from sm.repository import machine

MAX_ATTEMPTS = 3
#: Debian's maintainer scripts would start nginx on port 80; this file's exit status 101 forbids it.
POLICY = Path("/usr/sbin/policy-rc.d")


def provide(progress: Progress) -> None:
    """Install what is missing, or print the command. The box can run without nginx, but not without the
    library.
    """
    missing = [*([] if has_nginx() else ["nginx-light"]), *([] if has_libpython() else [library_package()])]
    if not missing:
        return
    if not can_install():
        progress.say(f"missing: {', '.join(missing)}. Run: sudo apt-get install {' '.join(missing)}")
        return
    try:
        with progress.step(f"installing {', '.join(missing)} with apt-get"):
            install(missing)
    except CommandError as error:
        progress.say(f"{error} Run: apt-get install {' '.join(missing)}")


def has_nginx() -> bool:
    """True if nginx is installed; an ordinary user's PATH does not contain sbin."""
    return shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin") is not None


def has_libpython() -> bool:
    try:
        machine.libpython()
    except CommandError:
        return False
    return True


def library_package() -> str:
    return f"libpython{machine.VERSION}"


def can_install() -> bool:
    return os.geteuid() == 0 and shutil.which("apt-get") is not None


def install(packages: list[str]) -> None:
    """Run ``apt-get install`` with retries, and without starting services."""
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    reason = ""
    with no_services():
        for attempt in range(1, MAX_ATTEMPTS + 1):
            subprocess.run(["apt-get", "update", "-qq"], env=quiet, capture_output=True, check=False)
            command = ["apt-get", "install", "-y", "-qq", *packages]
            process = subprocess.run(command, env=quiet, capture_output=True, text=True, check=False)
            if process.returncode == 0:
                return
            reason = (process.stderr.strip().splitlines() or ["no reason given"])[-1]
            time.sleep(2 * attempt)
    raise CommandError(f"apt-get could not install {', '.join(packages)}: {reason}.")


@contextmanager
def no_services() -> Iterator[None]:
    """Keep maintainer scripts from starting services, unless the machine has a policy already."""
    if POLICY.exists():
        yield
        return
    POLICY.write_text("#!/bin/sh\nexit 101\n")
    POLICY.chmod(0o755)
    try:
        yield
    finally:
        POLICY.unlink(missing_ok=True)
