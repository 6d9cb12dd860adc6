"""Run ``pip install`` and, if it fails, say why in one sentence instead of pip's many.

The Makefile runs this file before anything is installed: it imports the standard library alone.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence

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


def main(arguments: Sequence[str]) -> int:
    """Install what ``arguments`` name; return pip's status."""
    if not has_pip() and not restore_pip():
        say("pip is missing in .venv and cannot be put back: remove the folder .venv, and run make again.")
        return 1
    live = sys.stderr.isatty()
    command = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", *arguments]
    if not live:
        command.append("--quiet")
    process = subprocess.Popen(
        command, stdout=None if live else subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace"
    )
    try:
        _, errors = process.communicate()
    except KeyboardInterrupt:
        process.wait()
        say("stopped; what is installed stays, and the next run goes on.")
        return 130
    if process.returncode:
        say(f"the packages were not installed: {explain(errors)}. What is here stays: run it again then.")
    elif errors and live:
        sys.stderr.write(errors)
    return process.returncode


def explain(output: str) -> str:
    """Return the reason of a failure in pip's output; its last lines if it is none of the known."""
    for pattern, sentence in REASONS:
        if match := re.search(pattern, output, re.IGNORECASE):
            return sentence.format(match.group(match.lastindex or 0).strip())
    return "pip failed:\n" + "\n".join(output.strip().splitlines()[-SHOWN_LINES:]) + "\n"


def has_pip() -> bool:
    return not subprocess.run(
        [sys.executable, "-m", "pip", "--version"], capture_output=True, check=False
    ).returncode


def restore_pip() -> bool:
    """Put pip back: it is missing if the making of the environment was interrupted."""
    command = [sys.executable, "-m", "ensurepip", "--upgrade", "--default-pip"]
    environment = {name: value for name, value in os.environ.items() if name != "PIP_REQUIRE_VIRTUALENV"}
    return not subprocess.run(command, capture_output=True, env=environment, check=False).returncode


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)  # noqa: T201  (before anything is installed there is no other way)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
