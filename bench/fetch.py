"""How fast a box fetches its models from S3, against ``aws s3 cp`` in the same run.

    python -m bench.fetch [--gigabytes 10] [--rounds 3]

The S3 server is nanio, installed from PyPI into a temporary environment; a bucket is a folder. Both
programs write to the same disk, in turns, and what they wrote is removed before the next turn. Prints the
megabytes per second of each, the seconds of processor time that a gigabyte took, and the ratio of the rates.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.boxes import free_port, wait_until
from tests.support.download_hosts import accepts
from tests.support.s3 import CREDENTIALS, SECRET

SERVER = "nanio==0.1.7"
SOURCE = "s3://models/all/"


@contextmanager
def s3_server(folder: Path) -> Iterator[str]:
    """Run the server on ``folder/data``; yields its URL."""
    venv.create(folder / "environment", with_pip=True)
    programs = folder / "environment" / "bin"
    subprocess.run([programs / "pip", "install", "-q", SERVER], check=True)
    port = free_port()
    environment = {"NANIO_ACCESS_KEY": "test", "NANIO_SECRET_KEY": SECRET}
    command = (
        *(programs / "nanio", "serve", "--data-dir", folder / "data", "--host", "127.0.0.1"),
        *("--port", str(port), "--no-access-log", "--log-level", "error"),
    )
    with subprocess.Popen(command, env={**os.environ, **environment}) as server:
        try:
            wait_until(lambda: accepts(port), description="the S3 server")
            yield f"http://127.0.0.1:{port}"
        finally:
            server.terminate()


def write_model(folder: Path, size: int) -> None:
    """Write a model with one large file, of bytes that nothing can compress."""
    (folder / "1").mkdir(parents=True)
    (folder / "config.pbtxt").write_text('backend: "onnxruntime"\n')
    block = os.urandom(2**24)
    with (folder / "1" / "weights.bin").open("wb") as file:
        for start in range(0, size, len(block)):
            file.write(block[: size - start])


def run(command: Callable[[Path], list[str]], folder: Path, size: int) -> tuple[float, float]:
    """Run a command that fills a folder, check the folder; return MB/s and processor seconds per GB."""
    shutil.rmtree(folder, ignore_errors=True)
    os.sync()
    started, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command(folder), check=True, stdout=subprocess.DEVNULL)
    taken, after = time.monotonic() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    (weights,) = (file for file in folder.rglob("weights.bin") if file.parent.parent.name == "model")
    assert weights.stat().st_size == size
    shutil.rmtree(folder)
    return size / 1e6 / taken, processor / size * 1e9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--gigabytes", type=float, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    size = int(options.gigabytes * 1e9)
    commands: dict[str, Callable[[Path], list[str]]] = {
        "aws s3 cp": lambda folder: [
            *(sys.executable, "-m", "awscli", "s3", "cp", "--recursive", "--only-show-errors"),
            *(SOURCE, str(folder)),
        ],
        "the box": lambda folder: [sys.executable, "-m", "sm.models.fetch.model_cache", SOURCE, str(folder)],
    }
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
    folder = Path(tempfile.mkdtemp())
    try:
        with s3_server(folder) as url:
            os.environ.update(CREDENTIALS, AWS_ENDPOINT_URL=url)
            write_model(folder / "data" / "models" / "all" / "model", size)
            for number in range(options.rounds):
                for name in sorted(commands, reverse=bool(number % 2)):
                    found[name].append(run(commands[name], folder / "target", size))
    finally:
        shutil.rmtree(folder)
    medians = []
    for name, turns in found.items():
        rates, processors = zip(*turns, strict=True)
        medians.append(statistics.median(rates))
        each = ", ".join(f"{rate:,.0f}" for rate in rates)
        processor = f"{statistics.median(processors):.1f} s of a core per GB"
        print(f"{name}: {medians[-1]:,.0f} MB/s ({each}), {processor}")
    print(f"{options.gigabytes:g} GB: the box has {medians[1] / medians[0]:.2f} x the rate of aws s3 cp")


if __name__ == "__main__":
    main()
