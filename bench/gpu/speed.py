"""The benchmark in its short form: each contestant on its own, then three models at once."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.contestant import FORMS, MODELS
from bench.driver import Load, wrk
from bench.gpu.contestants import CONTESTANTS, OnGpu
from bench.gpu.stages import Check, Context, Outcome, Result
from bench.measuring import Measurements, draw
from bench.running import free_port, running

CALLERS, CALLERS_EACH = (8, 32), 8
#: The models' samples, and a phone's photograph.
SAMPLES = (*MODELS, "resnet-12MP", "yolov5-12MP")


def speed(name: str) -> Callable[[Context], Result]:
    """Return the stage that measures one contestant."""

    def measure(context: Context) -> Result:
        samples = MODELS if name == "triton" else SAMPLES
        measurements = Measurements(samples, FORMS, CALLERS, context.seconds)
        with new_contestant(context, name) as contestant:
            rows = [asdict(record) for record in draw(contestant, 0, measurements, print)]
        return _result(f"benchmark: {name}", rows)

    return measure


def mix(context: Context) -> Result:
    """All three models at once, 8 callers each, JSON."""
    rows = []
    for name in ("trireme", "reference", "fastapi"):
        with new_contestant(context, name) as contestant, running(contestant):
            loads = _measure_together(contestant, context.seconds)
            rows += [{"contestant": name, "model": model, **load} for model, load in loads.items()]
    return _result("benchmark: three models at once", rows)


def _result(name: str, rows: list[dict[str, Any]]) -> Result:
    failures = sum(row["wrong"] + row["lost"] for row in rows)
    answers = sum(row["answers"] for row in rows)
    outcome: Outcome = "passed" if answers and not failures else "failed"
    return Result([Check(name, outcome, f"{answers} answers, {failures} wrong or lost")], rows)


@contextmanager
def new_contestant(context: Context, name: str) -> Iterator[OnGpu]:
    with tempfile.TemporaryDirectory(dir=context.work, ignore_cleanup_errors=True) as folder:
        yield CONTESTANTS[name](context, free_port(), Path(folder))


def _measure_together(contestant: OnGpu, seconds: float) -> dict[str, dict[str, Any]]:
    # Made first, so that every worker has loaded every model.
    requests_by_model = {model: contestant.request(model, "json") for model in MODELS}
    processes = {}
    for model, request in requests_by_model.items():
        assert request
        folder = contestant.folder / model
        folder.mkdir()
        command = wrk(request, contestant.port, CALLERS_EACH, seconds, folder)
        processes[model] = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    loads = {model: Load.read(process.communicate(timeout=180)[0]) for model, process in processes.items()}
    return {model: {**asdict(load), "rate": load.rate} for model, load in loads.items()}
