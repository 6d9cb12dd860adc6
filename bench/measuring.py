"""One draw of a contestant: start it, warm it up, take every requested measurement, stop it."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass

from bench import tree
from bench.contestant import READY, Contestant
from bench.driver import Load, sweep
from bench.running import running, wait_until_idle
from sm.errors import CommandError

#: Callers and seconds of the warm-up; the longer one where no answer came in the shorter.
WARM_CALLERS, WARM_SECONDS = 8, {"instant": (1.0, 10.0), "real": (2.0, 20.0)}
#: The fewest answers, in all and for each caller, that high percentiles need, and the longest measurement in
#: seconds. With fewer answers, the queue that fills at the beginning would distort the rate.
MIN_ANSWERS, MIN_ANSWERS_PER_CALLER, MAX_MEASUREMENT_S = 150, 2, 40.0


@dataclass(frozen=True)
class Measurements:
    """What to measure, for ``seconds`` each, longer if the queue is long; ``loads`` of :mod:`bench.mixed`."""

    models: Sequence[str]
    forms: Sequence[str]
    callers: Sequence[int]
    seconds: float
    loads: Sequence[float] = ()


@dataclass(frozen=True)
class Record:
    """One measurement. ``processor``: seconds of processor time over all processes of the contestant."""

    contestant: str
    regime: str
    model: str
    form: str
    callers: int
    draw: int
    rate: float
    answers: int
    wrong: int
    lost: int
    seconds: float
    p50: float
    p90: float
    p99: float
    max: float
    processor: float
    memory: int
    own_memory: int

    @property
    def cost(self) -> float:
        """Seconds of processor time for each answer."""
        return self.processor / max(1, self.answers)


#: Measures a contestant once, from a start of its own: number of the draw, what to measure, where to report.
Draw = Callable[[Contestant, int, Measurements, Callable[[str], None]], Iterator[Record]]


def draw(
    contestant: Contestant, number: int, measurements: Measurements, say: Callable[[str], None]
) -> Iterator[Record]:
    """Start a contestant and yield its records; raise :class:`CommandError` if it does not start."""
    with running(contestant) as root:
        for model in measurements.models:
            for form in (*measurements.forms, READY):
                if contestant.driver(model, form, 1, 1.0) is None:
                    continue
                warm = _warm_up(contestant, root, model, form)
                for callers in contestant.callers(measurements.callers):
                    answers = max(MIN_ANSWERS, MIN_ANSWERS_PER_CALLER * callers)
                    needed = min(MAX_MEASUREMENT_S, answers / warm.rate)
                    if root is not None:
                        wait_until_idle(root)
                    seconds = max(measurements.seconds, needed)
                    load = measure(contestant, root, model, form, callers, seconds)
                    cell = (contestant.name, contestant.regime, model, form, callers, number)
                    record = Record(*cell, load.rate, **asdict(load))
                    say(summary(record))
                    yield record


def _warm_up(contestant: Contestant, root: int | None, model: str, form: str) -> Load:
    """Send requests until the contestant is warm; raise :class:`CommandError` if no answer is right."""
    for seconds in WARM_SECONDS[contestant.regime]:
        load = measure(contestant, root, model, form, WARM_CALLERS, seconds)
        if load.answers:
            return load
    raise CommandError(
        f"{contestant.name} gives no right answer to {model} as {form}: {load.wrong} were wrong, "
        f"{load.lost} were lost."
    )


def measure(
    contestant: Contestant, root: int | None, model: str, form: str, callers: int, seconds: float
) -> Load:
    """Send requests for that long. A driver that is a part of the contestant counts itself."""
    command = contestant.driver(model, form, callers, seconds)
    assert command is not None
    output, use = drive(contestant, root, command, seconds)
    return Load.read(output).with_use(use.seconds, use)


def drive(
    contestant: Contestant, root: int | None, command: Sequence[str], seconds: float
) -> tuple[str, tree.Use]:
    """Return what a load generator prints. Memory is measured halfway, under load, and at the end."""
    before = tree.processor_seconds(root) if root else 0.0
    with subprocess.Popen(
        command,
        env={**os.environ, **Contestant.environment(contestant)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as driver:
        roots = [pid for pid in (root, driver.pid if contestant.asked_by_itself else None) if pid]
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                driver.wait(seconds / 2)
            halfway = tree.memory(roots)
            output, _ = driver.communicate(timeout=10 * MAX_MEASUREMENT_S)
        except subprocess.TimeoutExpired:
            raise CommandError(f"what asks {contestant.name} did not end") from None
        finally:
            # Its group: some have processes of their own.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(driver.pid, signal.SIGKILL)
            sweep(driver.pid)
        spent = (tree.processor_seconds(root) if root else 0.0) - before
    return output, tree.Use(spent, *map(max, halfway, tree.memory(roots)))


def summary(record: Record) -> str:
    failed = f", {record.wrong} wrong, {record.lost} lost" if record.wrong or record.lost else ""
    return (
        f"{record.regime} {record.contestant} {record.model} {record.form} {record.callers}: "
        f"{record.rate:.1f}/s, p50 {1000 * record.p50:.1f} ms, p99 {1000 * record.p99:.1f} ms, "
        f"{1000 * record.cost:.2f} ms of processor, {math.ceil(record.memory / 2**20)} MB{failed}"
    )
