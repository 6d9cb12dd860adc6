"""Run a command that dies with its parent: ``python child.py PARENT COMMAND...``.

If a download outlived a killed ``sm prepare``, it would write into a folder that the next one has removed.
This runs as a program before the command, as a hook between fork and exec is unsafe with threads.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main(parent: int, command: list[str]) -> None:
    """Replace this process by the command; does not return."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the call
        sys.exit(1)
    os.execvp(command[0], command)  # noqa: S606


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
