"""The runtimes benchmark compares ways to run a graph by speed and by results."""

from __future__ import annotations

import subprocess
import sys

from sm.settings import HERE

ARGUMENTS = "--models bert_base --ways masks --batches 1 --processes 1 --draws 1 --seconds 0.1"


def test_each_way_has_a_row_with_its_speed_and_its_agreement() -> None:
    command = [sys.executable, "-m", "bench.runtimes", *ARGUMENTS.split()]
    completed = subprocess.run(command, cwd=HERE, capture_output=True, text=True, timeout=120)
    assert completed.returncode == 0, completed.stderr
    way, batch, rate, cost, ratio, _, agreement = (
        cell.strip() for cell in completed.stdout.splitlines()[-1].split("|")[1:-1]
    )
    assert (way, batch, ratio, agreement) == ("masks", "1", "1.00", "6 of 6 alike")
    assert float(rate) > 0
    assert float(cost) > 0
