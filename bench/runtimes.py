"""Compare runtimes for the demo's graphs on this machine's processors, by speed and by answers.

    python -m bench.runtimes [--models resnet ...] [--ways onnxruntime openvino ...] [--batches 1 8]
                             [--processes 2 --threads 1] [--draws 5] [--seconds 1]

Every way is loaded in processes of its own; they take turns, a short run each, so that a machine that is busy
with something else is busy for all. Printed are each way's records a second, the processors' time for a
record, the ratio of the first way's time to it (over 1 is better) in the same turn, and how many of the
client's samples are answered alike (:mod:`sm.commands.golden`), with an output's largest difference.
No server takes part. bench/reports/cpu-target.md has a result.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bench import engines
from bench.engines import Feed
from bench.subjects import MODELS, Subject, accuracy, subject


def serve(
    pipe: Connection, way: str, file: Path, names: tuple[list[str], list[str]], threads: int, sample: Feed
) -> None:
    """Run in one process; for each (batch, seconds) send the records, the seconds, the processor seconds."""
    run = engines.runner(way, file, names, threads)
    pipe.send(None)
    while order := pipe.recv():
        batch, seconds = order
        feed = {name: np.repeat(value, batch, axis=0) for name, value in sample.items()}
        run(feed)
        started, spent, count = time.monotonic(), time.process_time(), 0
        while time.monotonic() - started < seconds:
            run(feed)
            count += batch
        pipe.send((count, time.monotonic() - started, time.process_time() - spent))


class Turn(NamedTuple):
    """Records a second, and seconds of the processors for each."""

    rate: float
    cost: float


class Team:
    """The processes of one way."""

    def __init__(self, of: Subject, way: str, file: Path, processes: int, threads: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipes, self.members = [], []
        for _ in range(processes):
            parent_end, child_end = context.Pipe()
            member = context.Process(
                target=serve, args=(child_end, way, file, of.names, threads, of.feeds[0]), daemon=True
            )
            member.start()
            self.pipes.append(parent_end)
            self.members.append(member)
        for pipe in self.pipes:
            pipe.recv()

    def run(self, batch: int, seconds: float) -> Turn:
        """Run all processes at once."""
        for pipe in self.pipes:
            pipe.send((batch, seconds))
        results = [pipe.recv() for pipe in self.pipes]
        rate = sum(count / seconds for count, seconds, _ in results)
        return Turn(rate, sum(spent for *_, spent in results) / sum(count for count, *_ in results))

    def end(self) -> None:
        for pipe, member in zip(self.pipes, self.members, strict=True):
            pipe.send(None)
            member.join()


def measure(teams: Mapping[str, Team], options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield for each way and batch the medians, and the ratio of costs to the first of the same turn."""
    cases = [(way, batch) for batch in options.batches for way in teams]
    turns = [
        {case: teams[case[0]].run(case[1], options.seconds) for case in cases} for _ in range(options.draws)
    ]
    for case in cases:
        ratios = sorted(turn[cases[0]].cost / turn[case].cost for turn in turns)
        yield {
            "way": case[0],
            "batch": case[1],
            "rate": statistics.median(turn[case].rate for turn in turns),
            "cost": statistics.median(turn[case].cost for turn in turns),
            "ratio": statistics.median(ratios),
            "range": (ratios[0], ratios[-1]),
        }


def compare(name: str, options: argparse.Namespace) -> None:
    """Print one model's table as Markdown."""
    with tempfile.TemporaryDirectory() as folder:
        chosen = subject(name, Path(folder))
        files = {way: engines.graph(way, chosen.graph, chosen.feeds, Path(folder)) for way in options.ways}
        ways = {way: file for way, file in files.items() if file}
        answers = {way: accuracy(chosen, way, file) for way, file in ways.items()}
        teams = {
            way: Team(chosen, way, file, options.processes, options.threads) for way, file in ways.items()
        }
        print(f"\n{name}, {options.processes} processes of {options.threads} threads\n")
        print(
            "| way | batch | a second | ms of processor | ratio | from – to | samples |\n"
            "|---|---|---|---|---|---|---|"
        )
        for row in measure(teams, options):
            least, most = row["range"]
            print(
                f"| {row['way']} | {row['batch']} | {row['rate']:.1f} | {1000 * row['cost']:.1f} "
                f"| {row['ratio']:.2f} | {least:.2f} – {most:.2f} | {answers[row['way']]} |"
            )
        for team in teams.values():
            team.end()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    parser.add_argument("--ways", nargs="+", choices=engines.WAYS, default=engines.WAYS)
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8])
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--draws", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0)
    options = parser.parse_args()
    for way in [way for way in options.ways if engines.missing(way)]:
        print(f"{way} is left out: pip install {engines.missing(way)}", file=sys.stderr)
        options.ways = [other for other in options.ways if other != way]
    for name in options.models:
        compare(name, options)


if __name__ == "__main__":
    main()
