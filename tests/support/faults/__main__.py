"""``python -m tests.support.faults``: run all fault tests in full. The exit status is 1 if a goal is missed."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path

from sm.settings import HERE, cores
from tests.support.faults import report
from tests.support.faults.attack import Fault, attack
from tests.support.faults.boxes import (
    attacked_box,
    learn_samples,
    make_repository,
    make_small_repository,
    small_samples,
)
from tests.support.faults.faults import make_faults
from tests.support.faults.fuzz import Fuzz
from tests.support.faults.inputs import Sample
from tests.support.faults.memory import exhaust_memory
from tests.support.faults.overload import overload
from tests.support.faults.soak import soak
from tests.support.faults.stalls import make_small_faults, make_stalls
from tests.support.faults.streams import attack_streams, markdown

#: The commands that ``all`` runs, each with its defaults.
COMMANDS = ("stalls", "small", "faults", "fuzz", "soak", "overload", "memory", "streams")


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    if options.command == "all":
        return max(run_titled(name, options.seed) for name in COMMANDS)
    with tempfile.TemporaryDirectory(prefix="trireme-faults-") as folder:
        missed: bool = options.run(Path(folder), options)
    return int(missed)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.support.faults", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="of all that is drawn (default: 1)")
    commands = parser.add_subparsers(dest="command", required=True)
    stalls = commands.add_parser("stalls", help="processes stand still for 1 to 10 s")
    stalls.add_argument("--count", type=int, default=20, help="how many stalls (default: 20)")
    stalls.set_defaults(run=run_stalls)
    faults = commands.add_parser("faults", help="the fault table")
    faults.add_argument(
        "--restarts", type=int, default=20, help="how often in a row the box and Triton are started again"
    )
    faults.set_defaults(run=run_faults)
    small = commands.add_parser("small", help="kills and short stalls of small models, all in one box")
    small.add_argument("--count", type=int, default=30, help="how many faults (default: 30)")
    small.set_defaults(run=run_small)
    for command in (stalls, faults):
        command.add_argument("--only", default="", help="only faults that have this in their name")
        command.add_argument(
            "--one-box", action="store_true", help="all in one box, not a fresh one for each"
        )
    fuzz = commands.add_parser("fuzz", help="odd requests in every form")
    fuzz.add_argument("--requests", type=int, default=10_000, help="how many (default: 10,000)")
    fuzz.add_argument("--first", type=int, default=0, help="the number of the first, to send one again")
    fuzz.set_defaults(run=run_fuzz)
    soaking = commands.add_parser("soak", help="many mixed requests, and what the box holds in the end")
    soaking.add_argument("--requests", type=int, default=100_000, help="how many (default: 100,000)")
    soaking.set_defaults(run=run_soak)
    overloading = commands.add_parser("overload", help="500 callers who wait as they are told")
    overloading.add_argument("--seconds", type=float, default=30.0, help="of each measurement (default: 30)")
    overloading.set_defaults(run=run_overload)
    memory = commands.add_parser("memory", help="more archives than memory holds, evicted on each 507")
    memory.add_argument("--loads", type=int, default=100, help="how many (default: 100)")
    memory.set_defaults(run=run_memory)
    streams = commands.add_parser("streams", help="callers who harm streams and WebSockets")
    streams.add_argument("--times", type=int, default=5, help="how often each attack (default: 5)")
    streams.set_defaults(run=run_streams)
    commands.add_parser("all", help="all of these, one after the other, with their defaults")
    return parser.parse_args(arguments)


def run_titled(name: str, seed: int) -> int:
    print(f"\n## {name}\n", flush=True)
    return main(["--seed", str(seed), name])


def run_stalls(folder: Path, options: argparse.Namespace) -> bool:
    return run_table(folder, list(make_stalls(options.count, options.seed)), options)


def run_small(folder: Path, options: argparse.Namespace) -> bool:
    rows: list[report.Row] = []
    with attacked_box(folder, make_small_repository(folder)) as box:
        samples = small_samples(box)
        for fault in make_small_faults(options.count, options.seed):
            rows.append(attack(box, samples, fault, seed=options.seed))
            report_progress(f"{len(rows)} of {options.count}: {' | '.join(rows[-1].cells())}")
    missed = [f"{row.fault}: {missed}" for row in rows for missed in row.misses()]
    return finish(report.markdown(rows), missed)


def run_faults(folder: Path, options: argparse.Namespace) -> bool:
    return run_table(folder, list(make_faults(options.seed, options.restarts)), options)


def run_table(folder: Path, faults: Sequence[Fault], options: argparse.Namespace) -> bool:
    """Inject each fault, and print the table.

    By default each fault gets a fresh box, because a box delays its restarts more and more.
    """
    chosen = [fault for fault in faults if options.only in fault.name]
    repository = make_repository(folder)
    rows: list[report.Row] = []
    samples: list[Sample] = []
    for group in group_by_kind(chosen) if options.one_box else [[fault] for fault in chosen]:
        with attacked_box(folder, repository, group[0].kind) as box:
            samples = samples or learn_samples(box)
            for fault in group:
                rows.append(attack(box, samples, fault, seed=options.seed))
                report_progress(
                    f"{len(rows)} of {len(chosen)}: {' | '.join(rows[-1].cells())}", *rows[-1].details
                )
    return finish(
        report.markdown(rows), [f"{row.fault}: {missed}" for row in rows for missed in row.misses()]
    )


def run_fuzz(folder: Path, options: argparse.Namespace) -> bool:
    with attacked_box(folder, make_repository(folder)) as box:
        done = Fuzz(box, learn_samples(box), options.seed, options.requests, options.first).run(
            report_progress
        )
        report_progress(*done.findings)
        missed = done.misses()
    return finish(done.markdown(), missed)


def run_soak(folder: Path, options: argparse.Namespace) -> bool:
    with attacked_box(folder, make_repository(folder)) as box:
        done = soak(box, learn_samples(box), options.requests, options.seed, report_progress)
    report_progress(*done.details)
    return finish(done.markdown(), done.misses())


def run_overload(folder: Path, options: argparse.Namespace) -> bool:
    with attacked_box(folder, make_repository(folder)) as box:
        done = overload(box, learn_samples(box), options.seconds)
    report_progress(*done.details)
    return finish(done.markdown(), done.misses())


def run_memory(folder: Path, options: argparse.Namespace) -> bool:
    done = exhaust_memory(folder, options.loads, options.seed, report_progress)
    report_progress(*done.details)
    return finish(done.markdown(), done.misses())


def run_streams(folder: Path, options: argparse.Namespace) -> bool:
    rows = attack_streams(folder, options.times, options.seed, report_progress)
    return finish(markdown(rows), [missed for row in rows for missed in row.misses()])


def group_by_kind(faults: Sequence[Fault]) -> list[list[Fault]]:
    """Return the faults grouped by their kind of box."""
    kinds = dict.fromkeys(fault.kind for fault in faults)
    return [[fault for fault in faults if fault.kind == kind] for kind in kinds]


def report_progress(*lines: str) -> None:
    """Print progress to standard error."""
    for line in lines:
        print(line, file=sys.stderr, flush=True)


def finish(table: str, missed_goals: Sequence[str]) -> bool:
    """Print the result, and return true if a goal is missed."""
    print(f"{datetime.now(timezone.utc):%Y-%m-%d %H:%M} UTC, commit {commit()}, {machine()}.\n\n{table}")
    print(
        "\nThe goal is met." if not missed_goals else f"\nThe goal is missed: {'; '.join(missed_goals)}.",
        flush=True,
    )
    return bool(missed_goals)


def commit() -> str:
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=HERE, capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or "unknown"


def machine() -> str:
    """Return the cores and the load average, because a busy machine slows every measurement."""
    return f"{cores()} cores, load average {os.getloadavg()[2]:.1f} over 15 minutes"


if __name__ == "__main__":
    sys.exit(main())
