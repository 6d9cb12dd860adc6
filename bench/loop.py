"""The lower bound of this machine: the work of a request without a server, one process per core.

    python -m bench.loop MODEL SECONDS

From the picture's or text's bytes to the result. Files and regime are in the environment, see
:func:`bench.work.work`.
"""

from __future__ import annotations

import json
import sys

from bench.contestant import PROCESSES
from bench.samples import sample
from bench.together import Step, report
from bench.work import work

#: Rounds before the clock runs.
WARM = 3


def main(model: str, seconds: float) -> None:
    asked = sample(model)

    def steps(_count: int) -> list[Step]:
        # Within the process: a session does not survive a fork.
        answer = work(model)
        for _ in range(WARM):
            answer(asked.content)
        return [lambda: asked.expected in json.dumps(answer(asked.content)).encode()]

    report(steps, [1] * PROCESSES, seconds)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
