"""``sm tune``: measure, choose a setting, show the difference, and write it with ``--apply``."""

from __future__ import annotations

import argparse
import difflib
import os
import re
import signal
import sys
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from sm.errors import CommandError
from sm.hardware import Hardware, cores
from sm.repository.machine import Machine
from sm.repository.manifest import NAME, Manifest
from sm.run_state import write_atomically
from sm.settings import Settings
from trireme_tools.arguments import number
from trireme_tools.charts import bar
from trireme_tools.cost import cost_command, prices
from trireme_tools.cost.prices import RequestCost, request_cost
from trireme_tools.progress import Progress
from trireme_tools.tune import sweep, tune_report, tuning_box
from trireme_tools.tune.sweep import Point, Space
from trireme_tools.tune.tuning_box import MeasurementInterrupted, TunedModel, TuningBox, edit, setting_of

UNITS = {"ms": 1e-3, "s": 1.0, "us": 1e-6}
MAX_BOUND_S = 3600.0


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("model", metavar="MODEL", help="the client's name, as in requests")
    command.add_argument(
        "--p99",
        type=duration,
        default=0.2,
        metavar="TIME",
        help="the highest p99 allowed, such as 200ms (the default) or 1s",
    )
    command.add_argument(
        "--minutes",
        type=number(24 * 60, "a number of minutes"),
        default=5.0,
        metavar="N",
        help="the time limit for the whole run (5)",
    )
    command.add_argument("--apply", action="store_true", help="write the best setting into config.pbtxt")
    command.add_argument(
        "--engines",
        action="store_true",
        help="time the engines of a model of the cpu target instead, and Triton's own ONNX Runtime backend; "
        "--apply writes their order into its manifest, which every box reads, and the better backend",
    )
    command.add_argument("--part", metavar="NAME", help="the model to tune if the client calls several")
    command.add_argument(
        "--instances", type=counts, metavar="N,N", help="instance counts to try; powers of 2 up to the cores"
    )
    command.add_argument(
        "--callers",
        type=counts,
        default=(1, 2, 4, 8, 16, 32),
        metavar="N,N",
        help="numbers of concurrent requests to try (1,2,4,8,16,32)",
    )
    command.add_argument(
        "--delays", type=delays, metavar="TIME,TIME", help="delays of dynamic batching to try (1ms,5ms)"
    )
    command.add_argument(
        "--report",
        type=Path,
        metavar="FOLDER",
        help="the folder for report.md, plot.svg and sweep.json (tune-MODEL)",
    )
    command.add_argument(
        "--from",
        type=Path,
        dest="sweep",
        metavar="FILE",
        help="choose from this sweep.json without measuring",
    )
    command.add_argument(
        "--instance-type",
        action="append",
        metavar="TYPE",
        help="the instance type of the cost, such as ml.m5.xlarge; repeatable",
    )
    command.add_argument(
        "--region", default="us-east-1", metavar="REGION", help="the Region of the cost (us-east-1)"
    )
    command.add_argument("--live", action="store_true", help="use today's prices from AWS's price list")
    command.add_argument("--profile", metavar="PROFILE", help="with --live: the AWS profile")


def duration(text: str) -> float:
    """Parse ``200ms``, ``0.2s`` or ``500us``; return seconds."""
    match = re.fullmatch(r"([0-9]*\.?[0-9]+)(ms|us|s)", text)
    seconds = float(match[1]) * UNITS[match[2]] if match else 0.0
    if not 0 < seconds <= MAX_BOUND_S:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time, such as 200ms or 1s")
    return seconds


def delays(text: str) -> tuple[int, ...]:
    """Parse durations between commas; return microseconds."""
    return tuple(sorted({round(duration(word) * 1e6) for word in text.split(",")}))


def counts(text: str) -> tuple[int, ...]:
    words = text.split(",")
    if not all(word.isdecimal() and 0 < int(word) <= 1024 for word in words):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of counts, such as 1,2,4")
    return tuple(sorted({int(word) for word in words}))


#: Limits in seconds for one measurement, which gets an equal share of the time.
MIN_MEASUREMENT_S, MAX_MEASUREMENT_S = 1.0, 15.0
#: The share of the time for loading and warming up.
OVERHEAD_SHARE = 0.4
#: Numbers of callers for which each setting gets time.
CALLER_LEVELS = 3
#: Seconds that the box takes to stop.
STOP_S = 5.0
INTERRUPTED = "interrupted"
DEFAULT_INSTANCES = {"cpu": ("ml.m5.xlarge",), "gpu": ("ml.g4dn.xlarge", "ml.g5.xlarge")}


@dataclass
class Sweep:
    """The measured points, and why the measuring ended early, if it did."""

    points: list[Point] = field(default_factory=list)
    ended: str = ""


def run(options: argparse.Namespace) -> int:
    """Return 0; 1 if no setting is within the bound, or there was nothing to choose from."""
    settings = Settings.read(os.environ)
    model = tuning_box.find(options.model, options.part, settings)
    if options.engines:
        return order_engines(model, settings, options.apply)
    if options.apply and not os.access(model.file if model.file.exists() else model.file.parent, os.W_OK):
        raise CommandError(f"{model.file} cannot be written: make it writable, or leave out --apply.")
    costs = price_list(options)
    folder = options.report or Path(f"tune-{options.model}")
    space = space_of(model, options)
    result = read(options.sweep, model) if options.sweep else measure(model, space, options, settings, folder)
    best = sweep.choose(result.points, options.p99)
    changed = edit(model.text, best.setting) if best else model.text
    diff = difference(model.file, model.text, changed)
    report = tune_report.TuningReport(
        model.client,
        model.name,
        options.p99,
        tuple(result.points),
        space.present,
        best,
        ended=result.ended,
        costs=costs(best.rate) if best else (),
        diff=diff,
    )
    for path in tune_report.write(report, folder):
        say(f"wrote {path}")
    for line in tune_report.summary(report):
        say(line)
    sys.stdout.write(diff)
    if best is None:
        return 1
    return apply_setting(model, changed, options.apply, result.ended == INTERRUPTED)


def order_engines(model: TunedModel, settings: Settings, apply: bool) -> int:
    """Time the engines of each version of a model, and Triton's own backend for the newest.

    ``apply`` writes the order into the manifests, and the better backend into the configuration.

    Raises:
        CommandError: The model is not of the cpu target, has no golden data, or cannot be written.
    """
    # They import the engines, which a sweep does not need.
    from trireme_extensions.convert.onnx_cpu.engines import Wanted
    from trireme_tools.build.accuracy_report import fastest_first

    versions = sorted((file.parent for file in model.file.parent.glob("*/engines.py")), key=version_number)
    if not versions:
        raise CommandError(
            f"{model.name} has no engines to choose from: sm build-model --target cpu makes some."
        )
    manifests = {version: read_manifest(version) for version in versions}
    by_record = model.config.max_batch_size > 0 and not model.config.HasField("dynamic_batching")
    said = model.config.parameters
    tolerance = float(said["tolerance"].string_value) if "tolerance" in said else Wanted.tolerance
    for version, manifest in manifests.items():
        order = fastest_first(version, by_record, tolerance)
        manifests[version] = manifest.model_copy(update={"engines": order})
        say(f"{model.name}, version {version.name}: the fastest first: {', '.join(order)}")
    backend = choose_backend(model, versions[-1], manifests[versions[-1]], settings)
    target = "onnxruntime" if backend == "onnxruntime" else "cpu"
    unwritten = {
        version / NAME: described.model_dump_json(indent=2) + "\n"
        for version, manifest in manifests.items()
        if (described := manifest.model_copy(update={"target": target})) != read_manifest(version)
    }
    if backend != model.config.backend:
        unwritten[model.file] = tuning_box.edit_backend(model.text, backend)
        sys.stdout.write(difference(model.file, model.text, unwritten[model.file]))
    for file, text in unwritten.items() if apply else ():
        try:
            replace(file, text)
        except OSError as error:
            raise CommandError(f"{file} cannot be written: {error.strerror}.") from None
        say(f"wrote {file}")
    if not unwritten:
        say("The order and the backend are written already.")
    elif not apply:
        say("Nothing was written: --apply writes it.")
    return 0


def version_number(folder: Path) -> int:
    return int(folder.name) if folder.name.isdecimal() else -1


def read_manifest(version: Path) -> Manifest:
    manifest = Manifest.read(version)
    if manifest is None:
        raise CommandError(f"{version} has no {NAME}: sm build-model writes it.")
    return manifest


def choose_backend(model: TunedModel, version: Path, manifest: Manifest, settings: Settings) -> str:
    """Measure both backends, if this Triton has both, and return the one that should serve the model."""
    from trireme_tools.tune import backends  # imports gRPC

    if missing := backends.why_not(Machine.find(settings)):
        say(missing)
        return str(model.config.backend)
    answers = backends.measure(model, version, manifest, settings)
    for each in answers:
        say(str(each))
    say(
        f"A crash on the backend {backends.ONNX_RUNTIME} ends Triton, and so every model until it has "
        f"started again; on {backends.PYTHON} it costs one model. So {backends.ONNX_RUNTIME} is taken only "
        f"where an answer takes {backends.MIN_GAIN:g} times less processor time."
    )
    return backends.choose(answers, model.config.backend)


def apply_setting(model: TunedModel, changed: str, apply: bool, interrupted: bool) -> int:
    """Write the configuration if ``apply``, else say how to."""
    if changed == model.text:
        say(f"{model.file} has the best setting already.")
    elif apply and interrupted:
        say("Nothing was written, as the measuring was interrupted: --from with --apply writes it.")
    elif apply:
        if (model.file.read_text() if model.file.exists() else "") != model.text:
            raise CommandError(f"{model.file} was changed meanwhile, so nothing was written.")
        replace(model.file, changed)
        say(f"wrote {model.file}")
    else:
        say("Nothing was written: --apply writes it.")
    return 0


def replace(file: Path, text: str) -> None:
    """Replace a file's content in one step; its mode stays, and a link stays a link."""
    target = file.resolve()
    mode = target.stat().st_mode & 0o777 if target.exists() else 0o644
    write_atomically(target, text)
    target.chmod(mode)


def space_of(model: TunedModel, options: argparse.Namespace) -> Space:
    present = setting_of(model.config)
    powers = tuple(2**power for power in range(10) if 2**power <= max(2, cores()))
    return Space(
        present,
        options.instances or tuple(sorted({*powers, present.instances})),
        model.config.max_batch_size,
        options.callers,
        options.delays or sweep.DELAYS_US,
        powers if model.takes_threads else (),
    )


def price_list(options: argparse.Namespace) -> Callable[[float], tuple[RequestCost, ...]]:
    """Return a function from a rate to its costs. Raises :class:`CommandError` now if a type has no price."""
    kind = "gpu" if Hardware.find().gpus else "cpu"
    types = options.instance_type or DEFAULT_INSTANCES[kind]
    prices_of_types = cost_command.fetch_prices(options.profile) if options.live else prices.dated_prices()
    for instance in types:
        prices_of_types.of(options.region, instance)
    return lambda rate: tuple(
        request_cost(instance_type, options.region, rate, prices_of_types.of) for instance_type in types
    )


def read(file: Path, model: TunedModel) -> Sweep:
    """Read a sweep that was measured before."""
    try:
        points, about = sweep.loads(file.read_text("utf-8-sig"))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CommandError(f"{file} is not a sweep.json of sm tune: {error}.") from None
    if about.get("model") != model.name:
        raise CommandError(f"{file} is of {about.get('model')!r}, not of {model.name!r}.")
    return Sweep(points)


def measure(
    model: TunedModel, space: Space, options: argparse.Namespace, settings: Settings, folder: Path
) -> Sweep:
    """Measure until all is tried, the time is over, or Ctrl-C. Every point is written to disk at once."""
    folder.mkdir(parents=True, exist_ok=True)
    result, clock = Sweep(), Clock(options.minutes * 60)
    before = signal.signal(signal.SIGINT, interrupt_once)
    try:
        with closing(TuningBox(model, settings)) as box:
            sweep_settings(box, space, options.p99, clock, result, lambda: save(result, model, folder))
    except (KeyboardInterrupt, MeasurementInterrupted):
        # Ignore Ctrl-C until this process ends, which is soon: the report must still be written.
        before = signal.SIG_IGN
        result.ended = INTERRUPTED
    finally:
        signal.signal(signal.SIGINT, before)
    return result


def interrupt_once(*_: object) -> None:
    """End the measuring at the first Ctrl-C; a second one would leave the box running."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise KeyboardInterrupt


def save(result: Sweep, model: TunedModel, folder: Path) -> None:
    write_atomically(folder / "sweep.json", sweep.dumps(result.points, model=model.name, client=model.client))


@dataclass
class Clock:
    """The time of one tuning in seconds."""

    seconds: float
    began: float = field(default_factory=time.monotonic)

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self.began

    @property
    def remaining(self) -> float:
        return self.seconds - self.elapsed

    def __str__(self) -> str:
        share = bar(min(self.elapsed, self.seconds), 2 * self.seconds)
        return f"{share:░<20} {self.elapsed:.0f} of {self.seconds:.0f} s"


def sweep_settings(
    box: TuningBox, space: Space, bound: float, clock: Clock, result: Sweep, save: Callable[[], None]
) -> None:
    """Measure each setting with more and more callers, until more do not help."""
    progress = Progress(sys.stderr)
    level_seconds = (
        clock.seconds * (1 - OVERHEAD_SHARE) / (space.size * min(CALLER_LEVELS, len(space.callers)))
    )
    seconds = min(MAX_MEASUREMENT_S, max(MIN_MEASUREMENT_S, level_seconds))
    while (setting := space.next(result.points, bound)) is not None:
        points: list[Point] = []
        for callers in space.callers:
            needed = 2 * seconds + (0.0 if setting == box.started else box.slowest_start) + STOP_S
            if clock.remaining < needed and result.points:
                result.ended = "the time was over"
                return
            with progress.step(f"{clock}  {setting}, {sweep.format_count(callers, 'caller')}"):
                point = box.measure(setting, callers, seconds)
            points.append(point)
            result.points.append(point)
            save()
            progress.say(f"    {format_point(point)}")
            if sweep.has_peaked(points, bound):
                break


def format_point(point: Point) -> str:
    if point.failure:
        return f"failed: {point.failure}"
    errors = f", {point.errors} failed: {point.error}" if point.errors else ""
    return f"{point.rate:.1f}/s, p50 {point.p50 * 1e3:.0f} ms, p99 {point.p99 * 1e3:.0f} ms{errors}"


def difference(file: Path, old: str, new: str) -> str:
    """Return a unified diff; empty if nothing changes."""
    lines = difflib.unified_diff(
        old.splitlines(keepends=True), new.splitlines(keepends=True), str(file), f"{file} (tuned)"
    )
    return "".join(
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines
    )


def say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
