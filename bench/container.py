"""Run a command that adopts orphaned processes, as PID 1 of a container does.

    python -m bench.container COMMAND [WORD ...]

So all that a contestant starts stays below it, and can be counted and ended.
"""

from __future__ import annotations

import os
import sys

from bench.tree import adopt_orphans

if __name__ == "__main__":
    adopt_orphans()
    os.execvp(sys.argv[1], sys.argv[1:])  # noqa: S606 - no shell is wanted
