"""The benchmark: ``make bench`` or ``python -m bench``. What it measures: bench/reports/speed.md."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from bench import files, flame, mixed
from bench.contestant import FORMS, MODELS, PROCESSES, REGIMES, THREADS, Regime
from bench.contestants import CONTESTANTS
from bench.contestants.trireme import Before
from bench.measuring import Draw, Measurements, draw
from bench.photos import PHOTOS
from bench.results import Results, machine
from bench.running import free_port
from bench.table import markdown
from sm.errors import CommandError

RESULTS = Path(__file__).with_name("results")
#: A port that was free may be somebody else's when it is wanted, and some do not always start.
TRIES = 2
#: What can be measured, and the options that are different for it.
KINDS: Mapping[str, Mapping[str, Any]] = {
    "models": {},
    "photos": {
        "models": [f"resnet-{name}" for name in PHOTOS],
        "contestants": ["trireme", "fastapi", "litserve", "bentoml"],
        "forms": FORMS,
        "callers": [8],
        "seconds": 4.0,
    },
    "mixed": {
        "contestants": ["trireme", "reference", "fastapi", "litserve", "bentoml", "mlserver"],
        "regimes": ["real"],
        "seconds": 15.0,
    },
}


def main(words: Sequence[str]) -> int:
    """Return 0, or 1 after a sentence that says why nothing could be measured."""
    options = parse(words)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that contestants are ended too
    try:
        if options.flame:
            flame.record(options.flame, options.models[0])
        elif options.show:
            print(markdown(Results.load(options.show)))
        else:
            run(options)
    except CommandError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def parse(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measure this box against others.")
    parser.add_argument("kind", nargs="?", choices=KINDS, default="models", help=", ".join(KINDS))

    def several(name: str, of: Sequence[str], default: Sequence[str]) -> None:
        parser.add_argument(name, nargs="+", choices=of, default=default, metavar="NAME", help=", ".join(of))

    photos = KINDS["photos"]["models"]
    usual = [name for name in CONTESTANTS if name != Before.name or "BENCH_BEFORE" in os.environ]
    several("--contestants", list(CONTESTANTS), usual)
    several("--regimes", REGIMES, REGIMES)
    several("--models", [*MODELS, *photos], MODELS)
    several("--forms", FORMS, FORMS[:1])
    parser.add_argument("--callers", nargs="+", type=int, default=[8, 32], metavar="N", help="at once")
    parser.add_argument("--loads", nargs="*", type=float, default=mixed.LOADS, help="mixed: of the capacity")
    parser.add_argument("--seconds", type=float, default=2.0, help="each measurement, if not longer")
    parser.add_argument("--draws", type=int, default=1, help="fresh starts of each contestant")
    today = datetime.now(timezone.utc).strftime("%Y-%m-%d-%H%M")
    parser.add_argument("--out", type=Path, default=RESULTS / f"{today}.json", help="the result's file")
    parser.add_argument("--show", type=Path, metavar="FILE", help="the tables of a result that is there")
    parser.add_argument(
        "--flame", type=Path, metavar="FILE", help="a flame graph of one of the box's workers, as SVG"
    )
    parser.set_defaults(**KINDS[parser.parse_args(words).kind])
    return parser.parse_args(words)


def run(options: argparse.Namespace) -> None:
    """Measure every contestant; save the results after each, and write the tables beside them."""
    os.environ["BENCH_PICTURES"] = options.kind
    measurements = Measurements(
        options.models, options.forms, options.callers, options.seconds, options.loads
    )
    measure: Draw = mixed.draw if options.kind == "mixed" else draw
    about = {name: CONTESTANTS[name].about for name in options.contestants}
    results = Results(machine(), settings(options), about)
    with files.prepared() as shared:
        for number in range(options.draws):
            for regime in options.regimes:
                for name in options.contestants:
                    measure_draw(results, name, regime, number, measurements, shared, measure)
                    results.save(options.out)
    text = markdown(results)
    options.out.with_suffix(".md").write_text(text)
    print(text)


def measure_draw(
    results: Results,
    name: str,
    regime: Regime,
    number: int,
    measurements: Measurements,
    shared: Path,
    measure: Draw = draw,
) -> None:
    """Measure one draw of one contestant; if that fails, report it and go on with the others."""
    if regime not in CONTESTANTS[name].regimes:
        return
    for _ in range(TRIES):
        with tempfile.TemporaryDirectory(prefix=f"trireme-bench-{name}-") as folder:
            contestant = CONTESTANTS[name](free_port(), regime, Path(folder), shared)
            try:
                results.records += list(measure(contestant, number, measurements, progress))
                return
            except CommandError as error:
                reason = str(error)
                progress(f"{name} was not measured: {reason}")
    results.missing[f"{name}, {regime}, draw {number + 1}"] = reason.splitlines()[0]


def settings(options: argparse.Namespace) -> dict[str, object]:
    return {
        "command": f"python -m bench {' '.join(sys.argv[1:])}".strip(),
        "draws": f"{options.draws}, interleaved, a fresh start each",
        "allocator": "glibc's, MALLOC_MMAP_THRESHOLD_ 32 MiB and MALLOC_TRIM_THRESHOLD_ 128 MiB for everyone",
        "ONNX Runtime": f"{PROCESSES} processes with {THREADS} thread each, but trireme: its own defaults",
    }


def progress(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {line}", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
