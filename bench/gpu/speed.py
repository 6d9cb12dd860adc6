"""The benchmark in its short form: each contestant on its own, then three models at once."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import requests

from bench.driver import Load, Request, wrk
from bench.gpu.building import MODELS
from bench.gpu.contestants import CONTESTANTS, OnGpu
from bench.gpu.stages import Check, Context, Outcome, Result
from bench.photos import jpeg
from bench.running import free_port, running
from bench.samples import Sample

CALLERS = (8, 32)
FORMS = ("json", "raw")
#: The size of a phone's photo of 12 megapixels.
WIDTH, HEIGHT = 4000, 3000


def speed(name: str) -> Callable[[Context], Result]:
    """Return the stage that measures one contestant."""

    def measure(context: Context) -> Result:
        with start_contestant(context, name) as contestant:
            rows = list(
                _measure_bare_triton(contestant, context)
                if name == "triton"
                else _measure_service(contestant, context)
            )
        failures = sum(row["wrong"] + row["lost"] for row in rows)
        answers = sum(row["answers"] for row in rows)
        outcome: Outcome = "passed" if answers and not failures else "failed"
        return Result(
            [Check(f"benchmark: {name}", outcome, f"{answers} answers, {failures} wrong or lost")], rows
        )

    return measure


def mix(context: Context) -> Result:
    """All three models at once, 8 callers each, JSON."""
    rows = []
    for name in ("trireme", "reference", "fastapi"):
        with start_contestant(context, name) as contestant:
            for model in MODELS:  # once, so that every worker has loaded it
                _expected_word(contestant, model)
            requests_by_model = {model: _request(contestant, model, "json") for model in MODELS}
            loads = _measure_together(contestant, requests_by_model, context.seconds)
            rows += [{"contestant": name, "model": model, **load} for model, load in loads.items()]
    failures = sum(row["wrong"] + row["lost"] for row in rows)
    return Result(
        [
            Check(
                "benchmark: three models at once",
                "failed" if failures else "passed",
                f"{failures} wrong or lost",
            )
        ],
        rows,
    )


@contextmanager
def start_contestant(context: Context, name: str) -> Iterator[OnGpu]:
    with tempfile.TemporaryDirectory(dir=context.work, ignore_cleanup_errors=True) as folder:
        contestant = CONTESTANTS[name](context, free_port(), Path(folder))
        with running(contestant):
            yield contestant


def _measure_service(contestant: OnGpu, context: Context) -> Iterator[dict[str, Any]]:
    photo = Sample(jpeg(WIDTH, HEIGHT), "image/jpeg", b"")
    for size, picture in (("small", None), ("12 megapixels", photo)):
        contestant.picture = picture
        for model in MODELS if picture is None else ("resnet", "yolov5"):
            for form in FORMS:
                if contestant.request(model, form) is None:
                    continue
                request = _request(contestant, model, form)
                for callers in CALLERS:
                    load = _measure(contestant, request, callers, context.seconds)
                    yield {
                        "contestant": contestant.name,
                        "model": model,
                        "form": form,
                        "size": size,
                        "callers": callers,
                        **load,
                    }


def _measure_bare_triton(contestant: OnGpu, context: Context) -> Iterator[dict[str, Any]]:
    for model in MODELS:
        for callers in CALLERS:
            command = contestant.driver(model, "ready", callers, context.seconds)
            assert command
            load = _run_load(command, context.seconds)
            yield {
                "contestant": contestant.name,
                "model": model,
                "form": "tensors",
                "size": "small",
                "callers": callers,
                **load,
            }


def _expected_word(contestant: OnGpu, model: str) -> bytes:
    """The label of the best answer, which every answer must contain."""
    request = contestant.request(model, "json")
    assert request
    response = requests.post(
        f"http://127.0.0.1:{contestant.port}{request.path}",
        data=request.body,
        headers=dict(request.headers),
        timeout=60,
    )
    response.raise_for_status()
    result = response.json()
    rows = result["result"] if isinstance(result, dict) else result
    first_row = rows[0] if rows else ""
    word = (
        first_row
        if isinstance(first_row, str)
        else next((value for value in first_row.values() if isinstance(value, str)), "")
    )
    return word.rpartition(":")[2].encode() if ":" in word else word.encode()


def _request(contestant: OnGpu, model: str, form: str) -> Request:
    request = contestant.request(model, form)
    assert request
    expected = _expected_word(contestant, model)
    plain = expected if expected.isascii() and b'"' not in expected else b""
    return Request(request.path, request.headers, request.body, plain)


def _measure(contestant: OnGpu, request: Request, callers: int, seconds: float) -> dict[str, Any]:
    return _run_load(wrk(request, contestant.port, callers, seconds, contestant.folder), seconds)


def _measure_together(
    contestant: OnGpu, requests_by_model: dict[str, Request], seconds: float
) -> dict[str, dict[str, Any]]:
    processes = {}
    for model, request in requests_by_model.items():
        folder = contestant.folder / model
        folder.mkdir()
        command = wrk(request, contestant.port, 8, seconds, folder)
        processes[model] = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    return {model: _parse_load(process.communicate(timeout=180)[0]) for model, process in processes.items()}


def _run_load(command: Any, seconds: float) -> dict[str, Any]:
    completed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=seconds + 150)
    return _parse_load(completed.stdout)


def _parse_load(output: str) -> dict[str, Any]:
    load = Load.read(output)
    return {**asdict(load), "rate": round(load.rate, 2)}
