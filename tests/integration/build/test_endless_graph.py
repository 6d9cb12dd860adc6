"""``sm build-model`` on a graph that never ends: Ctrl-C, and nothing left in the repository."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.boxes import wait_until
from tests.support.onnx_graphs import endless


@contextmanager
def endless_build(folder: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """Run ``sm build-model`` until ONNX Runtime is in the loop."""
    graph, out = endless(folder / "endless.onnx").path, folder / "repository"
    words = ("build-model", "endless", "--source", str(graph), "--out", str(out), *options)
    with subprocess.Popen(
        (sys.executable, "-m", "sm.cli", *words), stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as build:
        try:
            # Loading what build-model needs takes a second or two of the processor, the loop all of it.
            wait_until(lambda: processor_seconds(build.pid) > 4, description="the loop")
            yield build, out
        finally:
            build.kill()


def processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize("options", [(), ("--no-compare",)], ids=["compare", "no compare"])
def test_ctrl_c_ends_a_build_whose_graph_runs_without_end(tmp_path: Path, options: tuple[str, ...]) -> None:
    with endless_build(tmp_path, *options) as (build, out):
        started = time.monotonic()
        build.send_signal(signal.SIGINT)
        assert build.wait(10) == -signal.SIGINT
        assert time.monotonic() - started < 5
        wait_until(lambda: not list(out.iterdir()), description="the folders' removal")


def test_a_killed_build_leaves_nothing_in_the_repository(tmp_path: Path) -> None:
    with endless_build(tmp_path) as (build, out):
        assert [path.name[:10] for path in out.iterdir()] == [".building-"] * 2
        build.kill()
        build.wait(10)
        wait_until(lambda: not list(out.iterdir()), description="the folders' removal")
