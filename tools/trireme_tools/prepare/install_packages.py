"""Install the packages of the locks with uv, and with pip where uv cannot; a failure is one sentence.

set_up.py uses this before anything is installed: it imports the standard library alone.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from trireme_tools.prepare import pip_settings

#: Patterns in pip's output that explain a failure, the most specific first, and what they mean.
REASONS = (
    (
        r"do not match the hashes[^$]*?\n\s+(\S+) from",
        "the package index served another file for {} than the one whose hash is in the lock: it was "
        "changed, or the index builds files of its own. Look at 'index-url' in 'pip config list'",
    ),
    (r"no space left on device|disk quota exceeded", "the disk is full: make room"),
    (
        r"proxyerror|tunnel connection failed|cannot connect to proxy",
        "the proxy does not answer or refuses: look at HTTPS_PROXY, and at 'proxy' in 'pip config list'",
    ),
    (
        r"name or service not known|temporary failure in name resolution|nodename nor servname|getaddrinfo",
        "no name server answers: this machine seems to be offline, and the first start needs the network",
    ),
    (
        r"certificate_verify_failed|certificate verify failed",
        "the package index has a certificate that pip does not trust: set PIP_CERT to your company's",
    ),
    (
        r"connection refused|unreachable|no route to host|timed out|connection ?reset|newconnectionerror",
        "the package index does not answer: check the network, and 'index-url' in 'pip config list'",
    ),
    (
        r"401 |403 |user for .*:",
        "the package index wants a user or refuses this one: look at 'pip config list'",
    ),
    (
        r"no matching distribution found for ([^\n]+)",
        "the package index has no {}: look at 'index-url' in 'pip config list'. nvidia-pytriton is for Linux "
        "on x86-64 with glibc 2.35 or newer (Debian 12, Ubuntu 22.04)",
    ),
    (r"permission denied[^\n]*", "a file cannot be written ({})"),
)
#: Lines of pip's output to show if no pattern explains the failure.
SHOWN_LINES = 15


#: Seconds that uv gives an index to take a connection; pip's own pause comes after it.
CONNECT_TIMEOUT_S = "5"


class InstallError(Exception):
    """The packages were not installed; the text says why, in a sentence."""


class Installer:
    """Installs into one environment, with the indexes and certificates of pip's settings."""

    def __init__(
        self, environment: Path, variables: Mapping[str, str], *, live: bool = False, into: Path | None = None
    ) -> None:
        """Take pip and uv of ``environment``.

        Args:
            environment: The folder of a virtual environment.
            variables: Those of the machine.
            live: uv shows its own progress.
            into: Another environment to install into.
        """
        self.python = environment / "bin" / "python"
        self.target = (into or environment) / "bin" / "python"
        self.uv = environment / "bin" / "uv"
        # pip would install elsewhere with these, and an environment that is active is not the one to
        # install into.
        hidden = (
            "PIP_USER",
            "PIP_TARGET",
            "PIP_PREFIX",
            "PIP_REQUIRE_VIRTUALENV",
            "VIRTUAL_ENV",
            "PYTHONPATH",
        )
        self.variables = {name: value for name, value in variables.items() if name not in hidden}
        self.live = live
        self._uv_variables: dict[str, str] | None = None

    def install(self, *arguments: str) -> None:
        """Install what the arguments name, with nothing else. Raises :class:`InstallError`."""
        self._forget_halves()
        if not self.uv.exists() or not self._install_with_uv(arguments):
            self.install_with_pip(arguments)

    def install_with_pip(self, arguments: Sequence[str]) -> None:
        """Install with pip, which also knows what uv does not: other proxies, keyrings, old indexes."""
        command = [
            str(self.python),
            "-m",
            "pip",
            "--python",
            str(self.target),
            "install",
            "--no-deps",
            "--quiet",
        ]
        process = subprocess.run(
            [*command, "--disable-pip-version-check", "--retries", "3", *arguments],
            env=self.variables,
            stdout=sys.stderr,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            check=False,
        )
        if process.returncode:
            raise InstallError(explain(process.stderr))

    def uv_variables(self) -> dict[str, str]:
        """Return the variables for uv, with what pip is set up with."""
        if self._uv_variables is None:
            options = pip_settings.read(str(self.python), self.variables)
            self._uv_variables = {
                **self.variables,
                "UV_HTTP_CONNECT_TIMEOUT": CONNECT_TIMEOUT_S,
                **pip_settings.for_uv(options, self.variables),
            }
        return self._uv_variables

    def _install_with_uv(self, arguments: Sequence[str]) -> bool:
        command = [str(self.uv), "pip", "install", "--python", str(self.target), "--no-deps", *arguments]
        process = subprocess.run(
            command if self.live else [*command, "--quiet"],
            env=self.uv_variables(),
            stderr=None if self.live else subprocess.PIPE,
            check=False,
        )
        return process.returncode == 0

    def _forget_halves(self) -> None:
        """Remove the records of packages whose installation was interrupted, which would stop the next."""
        for folder in self.target.parent.parent.glob("lib/python3.*/site-packages/*.dist-info"):
            if not (folder / "RECORD").exists():
                shutil.rmtree(folder)


def explain(output: str) -> str:
    """Return the reason of a failure in pip's output; its last lines if it is none of the known."""
    for pattern, sentence in REASONS:
        if match := re.search(pattern, output, re.IGNORECASE):
            return sentence.format(match.group(match.lastindex or 0).strip())
    return "pip failed:\n" + "\n".join(output.strip().splitlines()[-SHOWN_LINES:]) + "\n"
