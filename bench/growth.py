"""Costs that may grow with the number of requests, the size of a body or the number of models.

    python -m bench.growth [--requests 100000] [--minutes 20] [--only bodies models records connections]

Prints Markdown: a row for each promise. bench/reports/speed.md says what is measured; what grows with
callers and with workers is in the benchmark itself, see :mod:`bench.ratios`.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from bench import batches, endurance, files, large, many, tree
from bench.__main__ import machine, progress
from bench.contestants.trireme import One, Trireme
from bench.ratios import MEGABYTE
from bench.running import free_port, running
from sm.errors import CommandError
from sm.settings import Settings

Box = TypeVar("Box", bound=Trireme)


@dataclass(frozen=True)
class Promise:
    """A row of the table."""

    what: str
    target: str
    reached: str
    met: bool

    def __str__(self) -> str:
        return f"| {self.what} | {self.target} | {self.reached} | {'met' if self.met else 'missed'} |"


class BoxFolders:
    """Gives each box a folder of its own, and the files that all share."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        files.prepare(folder / "files", Settings.read(os.environ))

    def box(self, kind: type[Box]) -> Box:
        """Return a box with instant models, not started yet."""
        folder = Path(tempfile.mkdtemp(prefix=f"{kind.name}-", dir=self._folder))
        return kind(free_port(), "instant", folder, self._folder / "files")


def main(words: Sequence[str]) -> int:
    """Return 0, or 1 after a sentence that says what could not be measured."""
    options = parse(words)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the boxes are ended too
    tree.adopt_orphans()
    rows: list[Promise] = []
    try:
        with tempfile.TemporaryDirectory(prefix="trireme-bench-") as folder:
            folders, facts = BoxFolders(Path(folder)), machine()
            for name in options.only:
                for row in PROMISES[name](folders, options):
                    progress(str(row))
                    rows.append(row)
    except CommandError as error:
        print(error, file=sys.stderr)
        return 1
    print("\n".join([*(f"- {name}: {value}" for name, value in facts.items()), "", *table(rows)]))
    return 0


def parse(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.growth", description="Measure the costs that grow."
    )
    parser.add_argument(
        "--requests", type=int, default=100_000, metavar="N", help="over which memory is flat"
    )
    parser.add_argument("--minutes", type=float, default=20, metavar="N", help="for them at most")
    parser.add_argument(
        "--only",
        nargs="+",
        choices=PROMISES,
        default=list(PROMISES),
        metavar="NAME",
        help=", ".join(PROMISES),
    )
    return parser.parse_args(words)


def memory(folders: BoxFolders, options: argparse.Namespace) -> Iterator[Promise]:
    box, samples = folders.box(Trireme), []
    with running(box) as root:
        assert root
        for sample in endurance.memory_samples(box, root, options.requests, 60 * options.minutes):
            samples.append(sample)
            progress(
                f"{sample.requests:,} requests: {_megabytes(sample.memory)}, {_megabytes(sample.own_memory)}"
            )
    yield memory_promise(samples)


def memory_promise(samples: Sequence[endurance.MemorySample]) -> Promise:
    growth, share = endurance.measured_growth(samples)
    first, last = samples[0], samples[-1]
    reached = (
        f"{_megabytes(first.memory)} after {first.requests:,}, {_megabytes(last.memory)} at the end "
        f"(without Triton {_megabytes(first.own_memory)}, {_megabytes(last.own_memory)}); "
        f"from the third quarter to the last {growth / MEGABYTE:+.2f} MB for 10,000, {share:+.1%}"
    )
    what = f"memory over {last.requests:,} requests"
    megabytes = endurance.MAX_GROWTH_BYTES / MEGABYTE
    target = f"last quarter grows < {megabytes:g} MB for 10,000, < {endurance.MAX_GROWTH_SHARE:.0%}"
    return Promise(what, target, reached, endurance.is_flat(samples))


def bodies(folders: BoxFolders, _options: argparse.Namespace) -> Iterator[Promise]:
    box = folders.box(One)
    with running(box) as root:
        assert root
        for cost in large.costs(box, root):
            reached = (
                f"{cost.copies:.2f}: worker {cost.worker / cost.size:.2f}, nginx {cost.nginx / cost.size:.2f}"
            )
            what = f"memory for a body of {cost.size / MEGABYTE:.0f} MiB, {cost.form}, in copies of it"
            yield Promise(what, "< 3", reached, cost.copies < 3)


def models(folders: BoxFolders, _options: argparse.Namespace) -> Iterator[Promise]:
    plain_box, many_box = folders.box(Trireme), folders.box(many.Many)
    with running(plain_box) as root, running(many_box) as beside:
        assert root
        assert beside
        few, more = many.compare_in_turns((plain_box, root), (many_box, beside))
    ratio = many.ratio(few, more)
    times = (
        f"{path} {before:.1f} ms, {after:.1f} ms"
        for path, before, after in zip(many.CONTROL, few.milliseconds, more.milliseconds, strict=True)
    )
    what = f"answers a second of {many.MEASURED_MODEL} beside {many.MODELS} more models, 8 callers"
    yield Promise(what, "≥ 0.95 ×", f"{ratio:.2f}; {'; '.join(times)}", ratio >= 0.95)


def records(folders: BoxFolders, _options: argparse.Namespace) -> Iterator[Promise]:
    box = folders.box(batches.Batch)
    with running(box) as root:
        assert root
        bodies = [batches.lines(size) for size in batches.LINES_BYTES]
        few, more = batches.costs(box, root, bodies)
        yield records_promise(
            f"{bodies[-1][0]:,} pictures in {batches.LINES_BYTES[-1] // 10**6} MB of lines", few, more
        )
        copies = max(cost.memory / cost.size for cost in more)
        what = (
            f"memory for {batches.LINES_BYTES[-1] // 10**6} MB of lines in batch transform, in copies of it"
        )
        before = max(cost.memory / cost.size for cost in few)
        reached = f"{copies:.2f}; for {batches.LINES_BYTES[0] // 10**6} MB {before:.2f}"
        yield Promise(what, f"< {batches.MAX_COPIES}", reached, copies < batches.MAX_COPIES)
        few, more = batches.costs(box, root, [batches.records(count) for count in batches.LIST_RECORDS])
        yield records_promise(f"{batches.LIST_RECORDS[-1]:,} records in a list", few, more)


def records_promise(what: str, few: Sequence[batches.Cost], more: Sequence[batches.Cost]) -> Promise:
    ratio = batches.ratio(few, more)
    times = " and ".join(
        f"{statistics.median(cost.milliseconds for cost in costs):.2f} ms, "
        f"{statistics.median(cost.memory for cost in costs) / costs[0].records / 1024:.1f} KB"
        for costs in (few, more)
    )
    reached = f"{ratio:.2f}; a record {times}"
    target = f"≤ {batches.MAX_RATIO} × that of {few[0].records:,}"
    return Promise(f"processor time for a record, {what}", target, reached, ratio <= batches.MAX_RATIO)


def connections(folders: BoxFolders, _options: argparse.Namespace) -> Iterator[Promise]:
    box = folders.box(Trireme)
    with running(box) as root:
        assert root
        costs = batches.beside_connections(box, root)
    what = (
        f"processor time for an answer of {many.MEASURED_MODEL} beside {batches.CONNECTIONS} open connections"
    )
    reached = f"{costs.ratio:.2f}"
    yield Promise(what, f"≤ {batches.MAX_RATIO} × without", reached, costs.ratio <= batches.MAX_RATIO)
    what = f"memory of the box for each of {batches.CONNECTIONS} open connections"
    target = f"< {batches.MAX_CONNECTION_BYTES // 1024} KB"
    yield Promise(
        what, target, f"{costs.bytes_each / 1024:.1f} KB", costs.bytes_each < batches.MAX_CONNECTION_BYTES
    )


#: The promises by name, in the order in which they are measured.
PROMISES: dict[str, Callable[[BoxFolders, argparse.Namespace], Iterator[Promise]]] = {
    "bodies": bodies,
    "models": models,
    "records": records,
    "connections": connections,
    "memory": memory,
}


def table(rows: Sequence[Promise]) -> Iterator[str]:
    yield "| what | target | reached | |"
    yield "|---|---|---|---|"
    yield from map(str, rows)


def _megabytes(size: int) -> str:
    return f"{size / MEGABYTE:,.1f} MB"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
