"""``sm build-model`` on a graph that takes minutes, or more memory than it may: a sentence, and nothing left in the repository."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.boxes import wait_until
from tests.support.onnx_graphs import long_loop, write_graph
from tests.support.sm_command import run_sm


@contextmanager
def long_build(folder: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """Run ``sm build-model`` until ONNX Runtime is in the loop."""
    graph, out = long_loop(folder / "long.onnx").path, folder / "repository"
    words = ("build-model", "long", "--source", str(graph), "--out", str(out))
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


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_build_that_is_ended_leaves_nothing_in_the_repository(
    tmp_path: Path, number: signal.Signals
) -> None:
    with long_build(tmp_path) as (build, out):
        assert [path.name[:10] for path in out.iterdir()] == [".building-"] * 2
        build.send_signal(number)
        assert build.wait(60) == -number
        wait_until(lambda: not list(out.iterdir()), description="the folders' removal")


@pytest.mark.parametrize(
    ("options", "status"), [((), 1), (("--no-compare",), 0)], ids=["compare", "no compare"]
)
def test_a_graph_that_takes_minutes_is_not_tried_to_its_end(
    tmp_path: Path, options: tuple[str, ...], status: int
) -> None:
    """Without the comparison it is a warning, as for any graph that takes no random inputs."""
    graph, out = long_loop(tmp_path / "long.onnx").path, tmp_path / "repository"
    words = ("build-model", "long", "--source", graph, "--out", out, "--trial-seconds", "1", *options)
    built = run_sm(*words)
    assert built.returncode == status
    assert [path.name for path in out.iterdir()] == ["long"] * (1 - status)


#: 2^28 numbers, twice the memory that the test allows: of one node, grown by a loop, and of a constant that an
#: optimization would compute.
HUGE = {
    "tile": """(float[1] x) => (float[n] y) <int64[1] times = {268435456}> { y = Tile(x, times) }""",
    "loop": """(float[1] x) => (float[n] y) <int64 rounds = {28}, bool yes = {1}> {
        y = Loop <body = body (int64 i, bool go, float[n] v) => (bool on, float[m] w) {
            on = Identity(go)
            w = Concat <axis = 0> (v, v)
        }> (rounds, yes, x)
    }""",
    "constant": """(float[1] x) => (float[n] y) <int64[1] size = {268435456}> {
        zeros = ConstantOfShape(size)
        y = Add(x, zeros)
    }""",
}


@pytest.mark.parametrize("kind", HUGE)
def test_a_graph_whose_output_is_huge_is_refused_before_its_memory_is_used(tmp_path: Path, kind: str) -> None:
    graph, out = write_graph(tmp_path / "huge.onnx", HUGE[kind]).path, tmp_path / "repository"
    words = ("build-model", "huge", "--source", graph, "--out", out, "--trial-memory", "512")
    built = run_sm(*words)
    # The peak of all children of this process that have ended.
    assert built.returncode == 1, built.stderr
    assert "Traceback" not in built.stderr
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss < 2 * 2**20
    assert not out.exists() or not list(out.iterdir())
