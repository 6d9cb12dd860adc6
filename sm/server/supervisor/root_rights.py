"""Give up root's rights: the image started as root, as AWS asks for, goes on as an ordinary user.

Nothing in a box needs root. The supervisor takes the user before it makes its first file, and executes itself
again, so that each file and process of the box is that user's, as if the image had started so.
"""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from sm.errors import StartError
from sm.run_state import SHARED_MEMORY, temporary_folder
from sm.server.startup import IS_IMAGE, choose_repository, unreadable
from sm.settings import PACKAGE, Settings, can_be_written

#: The Dockerfile makes this user where the base image has none of this number.
USER = 1000
#: Where SageMaker puts models and their archives.
PLATFORM = Path("/opt/ml")
UNPRIVILEGED_PORTS = Path("/proc/sys/net/ipv4/ip_unprivileged_port_start")
#: Seconds to look through the models' files.
CHECK_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class UserAccount:
    """A user with the groups and the home folder that its entry names."""

    user: int
    group: int
    groups: tuple[int, ...]
    home: str

    @classmethod
    def find(cls, user: int = USER) -> UserAccount:
        try:
            entry = pwd.getpwuid(user)
        except KeyError:
            return cls(user, user, (), "/")
        groups = os.getgrouplist(entry.pw_name, entry.pw_gid)
        return cls(user, entry.pw_gid, tuple(groups), entry.pw_dir)

    def obstacle(self, environment: Mapping[str, str]) -> str:
        """Return in words why a box cannot run as this user; empty if it can.

        A process of that user looks: nobody else knows what lists of access and network file systems allow.
        """
        try:
            process = subprocess.run(
                [sys.executable, "-m", __name__],
                env={**environment, "HOME": self.home, "PYTHONPATH": str(PACKAGE.parent)},
                user=self.user,
                group=self.group,
                extra_groups=self.groups,
                capture_output=True,
                text=True,
                check=False,
                timeout=CHECK_TIMEOUT_S,
            )
        except (OSError, subprocess.SubprocessError) as error:
            return f"no process can become user {self.user} ({error})"
        lines = (process.stdout if process.returncode == 0 else process.stderr).splitlines()
        return lines[-1] if lines else ""

    def execute_again(self) -> None:
        """Become this user, and execute the command line of this process again."""
        os.setgroups(self.groups)
        os.setgid(self.group)
        os.setuid(self.user)
        environment = {**os.environ, "HOME": self.home}
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)  # noqa: S606


def is_root_of_image() -> bool:
    """True if this process is root in the project's image."""
    return IS_IMAGE and os.geteuid() == 0


def obstacles(settings: Settings) -> Iterator[str]:
    """Yield what this process's user lacks for a box."""
    lowest = int(UNPRIVILEGED_PORTS.read_text()) if UNPRIVILEGED_PORTS.exists() else 1024
    for port in (settings.port, *([settings.tls_port] if settings.tls else [])):
        if port < lowest:
            yield f"only root may listen on port {port}"
    user = os.geteuid()
    for path in _read(settings):
        if unread := next(unreadable(path), None):
            yield f"{unread} cannot be read by user {user} (chmod -R a+rX)"
    for folder in _written(settings):
        if not can_be_written(folder):
            yield f"{folder} cannot be written by user {user}"


def _read(settings: Settings) -> Iterator[Path]:
    yield PLATFORM
    yield choose_repository(settings)
    yield settings.archives
    yield from settings.clients
    files = (settings.submit_directory, settings.api_keys_file, settings.tls_certificate, settings.tls_key)
    yield from filter(None, (*files, settings.triton_server))
    yield settings.cache


def _written(settings: Settings) -> Iterator[Path]:
    """Yield the folders in which a box makes files."""
    captured = [Path(settings.capture)] if settings.capture.startswith("/") else []
    sessions = [settings.sessions_path] if settings.sessions_path else []
    shared = [SHARED_MEMORY] if SHARED_MEMORY.is_dir() else []
    yield from (temporary_folder(), *shared, settings.cache, *captured, *sessions)


def main() -> None:
    """Print the first obstacle of this user, if there is one."""
    try:
        obstacle = next(obstacles(Settings.read(os.environ)), "")
    except StartError as error:
        obstacle = str(error)
    sys.stdout.write(obstacle)


if __name__ == "__main__":
    main()
