"""Three models at one endpoint: ``python -m bench.mixed``. What it measures: bench/reports/mixed.md.

Each draw starts each service afresh, with all three models in it, and asks for them together: at random
moments at 50, 80 and 95 % of what the service can do; and one model without a rest while the others are asked
a little.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from bench import files, repositories, tree
from bench.__main__ import about, machine, progress
from bench.contestant import MODELS, Contestant
from bench.contestants import find
from bench.contestants.trireme import Trireme
from bench.open_loop import Plan, plan_request
from bench.running import free_port, running, wait_until_idle
from bench.table import rows_of
from sm.errors import CommandError
from sm.settings import HERE, Settings

REPORT = Path(__file__).with_name("reports") / "mixed.md"
CONTESTANTS = ("trireme", "reference", "fastapi", "litserve", "bentoml", "mlserver")
#: Each model's share of the arrivals.
SHARES: Mapping[str, int] = {"resnet": 4, "yolov5": 1, "bert_base": 4}
#: Shares of a service's capacity, and the callers that measure the capacity.
LOADS, CALLERS = (0.5, 0.8, 0.95), 16
#: The model that is flooded, and by how many callers; arrivals a second of the others.
FLOODED, FLOOD = "resnet", 32
LIGHT: Mapping[str, float] = {"yolov5": 1.0, "bert_base": 4.0}
#: Seconds of a warm-up, and of a measurement.
WARM_S, SECONDS = 4.0, 15.0
MEGABYTE = 2**20


class Single(Trireme):
    """The box with one of the models, as a service of its own."""

    name = "trireme_single"
    about = "this box with one model: three of them serve what one does"
    model = ""

    def prepare(self) -> None:
        folder = self.folder / "repository"
        folder.mkdir()
        (folder / self.model).symlink_to(repositories.demo() / self.model)

    def repository(self) -> object:
        return self.folder / "repository"

    def environment(self) -> dict[str, str]:
        clients = self.folder / "clients"
        clients.mkdir(exist_ok=True)
        if not (clients / self.model).exists():
            (clients / self.model).symlink_to(HERE / "clients" / self.model)
        return {**super().environment(), "TRIREME_CLIENTS": str(clients)}


@dataclass(frozen=True)
class Row:
    """One model in one measurement. Times in seconds; ``refused`` are answers with 429 and 503."""

    contestant: str
    draw: int
    phase: str
    model: str
    rate: float
    p50: float
    p99: float
    answers: int
    refused: int
    failed: int
    #: Arrivals a second of all models; 0 where callers have no rest.
    offered: float
    #: Bytes of the whole service.
    memory: int


@dataclass
class Results:
    machine: Mapping[str, Any]
    settings: Mapping[str, Any]
    about: Mapping[str, str]
    rows: list[Row] = field(default_factory=list)
    #: Bytes of the box with one model, by draw.
    single: list[Mapping[str, int]] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)

    def of(self, **wanted: object) -> list[Row]:
        return [row for row in self.rows if all(getattr(row, k) == v for k, v in wanted.items())]


def main(words: Sequence[str]) -> int:
    """Return 0, or 1 after a sentence that says why nothing could be measured."""
    options = parse(words)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that services are ended too
    try:
        results = show(options.show) if options.show else run(options)
    except CommandError as error:
        print(error, file=sys.stderr)
        return 1
    write(results, options.out)
    return 0


def parse(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.mixed", description=__doc__.split("\n")[0])
    parser.add_argument("--contestants", nargs="+", choices=CONTESTANTS, default=CONTESTANTS, metavar="NAME")
    parser.add_argument("--draws", type=int, default=1, help="fresh starts of each, one after the other")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="each measurement")
    parser.add_argument("--loads", nargs="*", type=float, default=LOADS, help="parts of the capacity")
    parser.add_argument("--out", type=Path, default=REPORT, help="the report; the figures go beside it")
    parser.add_argument("--show", type=Path, metavar="FILE", help="the report of figures that are there")
    return parser.parse_args(words)


def show(path: Path) -> Results:
    document = json.loads(path.read_text())
    return Results(**{**document, "rows": [Row(**row) for row in document["rows"]]})


def run(options: argparse.Namespace) -> Results:
    names = options.contestants
    settings = {
        "command": f"python -m bench.mixed {' '.join(sys.argv[1:])}".strip(),
        "draws": f"{options.draws}, interleaved, a fresh start each, {options.seconds:g} s each measurement",
        "arrivals": " : ".join(f"{model} {share}" for model, share in SHARES.items()),
        "flood": f"{FLOOD} callers of {FLOODED}; "
        + ", ".join(f"{model} {rate:g}/s" for model, rate in LIGHT.items()),
    }
    results = Results(machine(), settings, about(names))
    with tempfile.TemporaryDirectory(prefix="trireme-mixed-") as folder:
        shared = Path(folder) / "files"
        shared.mkdir()
        files.prepare(shared, Settings.read(os.environ))
        for draw in range(options.draws):
            for name in names:
                try:
                    with start_contestant(find(name), shared) as (contestant, root):
                        for row in measure(contestant, root, draw, options):
                            results.rows.append(row)
                            progress(line(row))
                except CommandError as error:
                    results.missing[f"{name}, draw {draw + 1}"] = str(error).splitlines()[0]
                    progress(f"{name} was not measured: {error}")
                save(results, options.out)
            if "trireme" in names:
                results.single.append({model: memory_of_single(model, shared) for model in MODELS})
                save(results, options.out)
    return results


@contextmanager
def start_contestant(kind: type[Contestant], shared: Path) -> Iterator[tuple[Contestant, int]]:
    with tempfile.TemporaryDirectory(prefix=f"trireme-mixed-{kind.name}-") as folder:
        contestant = kind(free_port(), "real", Path(folder), shared)
        with running(contestant) as root:
            assert root is not None
            yield contestant, root


def measure(contestant: Contestant, root: int, draw: int, options: argparse.Namespace) -> Iterator[Row]:
    """Capacity, the loads, and the light callers without and beside the flood."""

    def phase(name: str, seconds: float, offered: float = 0.0, **plan: Any) -> list[Row]:
        wait_until_idle(root, 10)
        return rows_of_plan(contestant, root, draw, name, seconds, offered, **plan)

    for model in MODELS:
        rows_of_plan(contestant, root, draw, "warm", WARM_S, 0.0, flood={model: 4})
    rows = phase("capacity", options.seconds, mix=CALLERS, shares=dict(SHARES))
    yield from rows
    capacity = sum(row.rate for row in rows)
    if not capacity:
        raise CommandError(f"{contestant.name} gave no right answer.")
    for load in options.loads:
        rate = load * capacity
        rates = {model: rate * share / sum(SHARES.values()) for model, share in SHARES.items()}
        yield from phase(f"{load:.0%}", options.seconds, rate, rates=rates)
    yield from phase("light", options.seconds, sum(LIGHT.values()), rates=dict(LIGHT))
    yield from phase("flood", options.seconds, sum(LIGHT.values()), rates=dict(LIGHT), flood={FLOODED: FLOOD})


def rows_of_plan(
    contestant: Contestant, root: int, draw: int, phase: str, seconds: float, offered: float, **plan: Any
) -> list[Row]:
    """Run a plan; return a row for each model in it."""
    requests = {}
    for model in MODELS:
        request = contestant.request(model, "json")
        assert request is not None
        requests[model] = plan_request(request)
    path = contestant.folder / "plan.json"
    # The same moments for every service.
    seed = 1000 * draw + len(phase)
    path.write_text(json.dumps(asdict(Plan(contestant.port, seconds, seed, requests, **plan))))
    command = (sys.executable, "-m", "bench.open_loop", str(path))
    with subprocess.Popen(command, cwd=HERE, stdout=subprocess.PIPE, text=True) as driver:
        try:
            time.sleep(seconds * 0.8)
            memory, _ = tree.memory([root])
            output, _ = driver.communicate(timeout=seconds + 120)
        finally:
            driver.kill()
    try:
        outcomes = json.loads(output.strip().splitlines()[-1])
    except (ValueError, IndexError):
        raise CommandError(f"what asks {contestant.name} ended without a result") from None
    return [
        Row(
            contestant.name,
            draw,
            phase,
            model,
            outcome["in_time"] / seconds,
            percentile(outcome["seconds"], 50),
            percentile(outcome["seconds"], 99),
            len(outcome["seconds"]),
            outcome["refused"],
            outcome["failed"],
            offered,
            memory,
        )
        for model, outcome in outcomes.items()
        if outcome["seconds"] or outcome["refused"] or outcome["failed"]
    ]


def percentile(seconds: Sequence[float], part: float) -> float:
    """Return a percentile; 0 without values."""
    return float(np.percentile(seconds, part)) if seconds else 0.0


def memory_of_single(model: str, shared: Path) -> int:
    """Return the bytes of a box with this model alone, under load."""
    kind = type("Single", (Single,), {"model": model})
    with start_contestant(kind, shared) as (contestant, root):
        rows = rows_of_plan(contestant, root, 0, "single", 2 * WARM_S, 0.0, flood={model: CALLERS})
    progress(f"{model} alone: {rows[0].memory / MEGABYTE:.0f} MB")
    return rows[0].memory


def line(row: Row) -> str:
    failures = f", {row.refused} refused, {row.failed} failed" if row.refused or row.failed else ""
    return (
        f"{row.contestant} {row.phase} {row.model}: {row.rate:.1f}/s, p50 {1000 * row.p50:.0f} ms, "
        f"p99 {1000 * row.p99:.0f} ms, {row.memory / MEGABYTE:.0f} MB{failures}"
    )


def save(results: Results, out: Path) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    out.with_suffix(".json").write_text(json.dumps(asdict(results), indent=1) + "\n")


def median_of(rows: Sequence[Row], value: Any) -> float | None:
    """Return the median of the draws; None if nothing was measured."""
    return median(map(value, rows)) if rows else None


def total(results: Results, name: str, phase: str) -> float | None:
    """Return the right answers a second of all models, the median of the draws."""
    draws: dict[int, float] = {}
    for row in results.of(contestant=name, phase=phase):
        draws[row.draw] = draws.get(row.draw, 0.0) + row.rate
    return median(draws.values()) if draws else None


def p99_ratio(results: Results, name: str, model: str) -> float | None:
    """Return the p99 of a model while another is flooded, relative to that before, draw by draw."""
    ratios = []
    for row in results.of(contestant=name, phase="flood", model=model):
        before = results.of(contestant=name, phase="light", model=model, draw=row.draw)
        if before and before[0].p99:
            # Where none was answered in time there is no percentile: worse than any.
            ratios.append(row.p99 / before[0].p99 if row.answers else float("inf"))
    return median(ratios) if ratios else None


def memory(results: Results, name: str) -> float | None:
    rows = results.of(contestant=name)
    return max(row.memory for row in rows) / MEGABYTE if rows else None


def targets(results: Results) -> Iterator[tuple[str, ...]]:
    """Return rows of a target, the best other service, this box, and whether the target is met."""
    others = [name for name in results.about if name != "trireme"]
    for model in LIGHT:
        own_ratio = p99_ratio(results, "trireme", model)
        other_ratios = {
            name: value for name in others if (value := p99_ratio(results, name, model)) is not None
        }
        if own_ratio is not None and other_ratios:
            best = min(other_ratios, key=lambda name: other_ratios[name])
            yield (
                f"p99 of {model} beside the flood, times its own",
                f"below {other_ratios[best]:.1f} ({best})",
                f"{own_ratio:.1f}",
                verdict(own_ratio < other_ratios[best]),
            )
    for phase in (f"{LOADS[-1]:.0%}", "capacity"):
        rate = total(results, "trireme", phase)
        rates = {name: value for name in others if (value := total(results, name, phase)) is not None}
        if rate is not None and rates:
            best = max(rates, key=lambda name: rates[name])
            yield (
                f"answers a second, {phase}",
                f"at least {rates[best]:.1f} ({best})",
                f"{rate:.1f}",
                verdict(rate >= rates[best]),
            )
    together = memory(results, "trireme")
    if together is not None and results.single:
        apart = median(sum(draw.values()) for draw in results.single) / MEGABYTE
        yield ("MB, against three boxes", f"below {apart:.0f}", f"{together:.0f}", verdict(together < apart))


def verdict(met: bool) -> str:
    return "met" if met else "missed"


def markdown(results: Results) -> str:
    lines = [*HEAD, ""]
    lines += [f"- {name}: {value}" for name, value in {**results.machine, **results.settings}.items()]
    lines += ["", *rows_of(("contestant", "what it is"), results.about.items())]
    lines += [f"\nNot measured: {name}. {reason}" for name, reason in results.missing.items()]
    lines += ["", "## Targets", "", *rows_of(("what", "target", "reached", ""), targets(results))]
    for phase in dict.fromkeys(row.phase for row in results.rows):
        lines += ["", f"## {TITLES.get(phase, f'{phase} of its own capacity')}", ""]
        head = (
            "contestant",
            "model",
            "answers/s",
            "p50 ms",
            "p99 ms",
            "answers",
            "429 and 503",
            "failed",
            "MB",
        )
        lines += rows_of(head, cells(results, phase))
    return "\n".join(lines) + "\n"


HEAD = (
    "# Three models at one endpoint",
    "",
    "ResNet, YOLOv5 and BERT in one service, real models, JSON bodies: `python -m bench.mixed` writes this.",
    "Arrivals are Poisson, and a time runs from when a request was due, however late it was sent. The flood",
    f"is {FLOOD} callers without a rest, beside a few requests for the others: the same moments without the",
    "flood and with it, and for every service. Medians of the draws; memory is the sum of the processes'",
    "shares (Pss), the highest of all measurements.",
)
TITLES = {
    "capacity": f"Capacity: {CALLERS} callers without a rest",
    "light": "Light load, nobody flooded",
    "flood": f"The same beside {FLOOD} callers of {FLOODED}",
}


def cells(results: Results, phase: str) -> Iterator[tuple[str, ...]]:
    for name in results.about:
        for model in MODELS:
            rows = results.of(contestant=name, phase=phase, model=model)
            if rows:
                yield (
                    name,
                    model,
                    f"{median_of(rows, lambda row: row.rate):.1f}",
                    f"{1000 * (median_of(rows, lambda row: row.p50) or 0):.0f}",
                    f"{1000 * (median_of(rows, lambda row: row.p99) or 0):.0f}",
                    str(sum(row.answers for row in rows)),
                    str(sum(row.refused for row in rows)),
                    str(sum(row.failed for row in rows)),
                    f"{max(row.memory for row in rows) / MEGABYTE:.0f}",
                )


def write(results: Results, out: Path) -> None:
    """Write the report, and the figures as JSON."""
    save(results, out)
    text = markdown(results)
    out.write_text(text)
    print(text)
    print(f"written {datetime.now(timezone.utc):%Y-%m-%d %H:%M} UTC: {out}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
