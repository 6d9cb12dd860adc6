"""The promises that every client must keep. Each check returns a sentence with its result."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from sm.client.base import Client, ModelMetadata, TensorClient
from sm.commands.golden import SCORE_TOLERANCE, TOLERANCE_PX, differences
from sm.errors import CommandError
from sm.metrics import DURATIONS
from sm.plugins import registry
from trireme_tools.check import input_mutation, memory_growth, payload_mutations
from trireme_tools.check.calls import Caller, InProcessCaller, Reply, Request
from trireme_tools.check.recording_triton import RecordingTriton

MUTATED_PAYLOADS, THREADS, MEMORY_CALLS, TIMED_CALLS = 200, 64, 2000, 20
#: Different requests, for the threads and for the calls.
VARIANTS = 6
#: Rounds of requests by threads; one round for a model that takes more seconds than this.
ROUNDS, MAX_ROUNDS_S = 3, 5.0
STAGES = ("decode", "preprocess", "own work", "infer", "postprocess", "encode")


class CheckFailed(Exception):
    """The client breaks a promise; the sentence names the fault."""


@dataclass(frozen=True)
class Sample:
    """``sample/payload.json`` and the ``golden.json`` beside it with the expected answer."""

    payload: Any
    golden: Any

    @classmethod
    def of(cls, folder: Path) -> Sample:
        """Read the sample. :class:`CommandError` names a file that is missing or not JSON."""
        return cls(*(_json(folder / name) for name in ("payload.json", "golden.json")))


def _json(file: Path) -> Any:
    try:
        return json.loads(file.read_bytes())
    except OSError as error:
        raise CommandError(f"{file} cannot be read ({error.strerror}): a client has a sample.") from None
    except ValueError as error:
        raise CommandError(f"{file} is not JSON: {error}.") from None


def find_mismatches(client: Client, metadata: ModelMetadata) -> Iterator[str]:
    """Describe tensors that the client names and its model lacks, or has in another type or shape."""
    if not isinstance(client, TensorClient) or metadata.name != client.model:
        return
    for sentence in registry.differences(client, metadata):
        served = {**metadata.inputs, **metadata.outputs}
        named_tensors = {**client.inputs, **client.outputs}
        other = any(
            name in served and served[name].datatype not in kinds.split("|")
            for name, (kinds, _) in named_tensors.items()
        )
        yield f"wrong dtype: {sentence}" if other else f"wrong name or shape: {sentence}"


def check_tensors(caller: InProcessCaller, recording: RecordingTriton, sample: Sample) -> str:
    """Check that the tensors of the client, declared and sent, are those of its models."""
    client = caller.client
    served_metadata = [recording.metadata(model) for model in client.required_models()]
    mismatches = [sentence for metadata in served_metadata for sentence in find_mismatches(client, metadata)]
    if not mismatches:
        caller.ask(Request(sample.payload))
    faults = [*mismatches, *recording.faults]
    if faults:
        raise CheckFailed("; ".join(faults[:3]))
    return f"names, dtypes and shapes are those of {', '.join(client.required_models()) or 'no model'}"


def check_golden(caller: Caller, sample: Sample) -> str:
    """Check that the sample gets its golden answer."""
    reply = caller.ask(Request(sample.payload))
    if reply.status != 200:
        kind = "non-JSON result: " if "cannot be sent" in reply.sentence else ""
        raise CheckFailed(f"{kind}the sample gives {reply.sentence}")
    drift = list(islice(differences(reply.result, sample.golden), 3))
    tolerance = f"{TOLERANCE_PX:g} for numbers above 1, {SCORE_TOLERANCE:g} for others"
    if drift:
        raise CheckFailed(f"golden drift: {'; '.join(drift)} (tolerance: {tolerance})")
    return f"equal (tolerance: {tolerance})"


def check_mutations(caller: Caller, client: Client, sample: Sample) -> str:
    """Check that mistaken payloads get a result or a 4xx."""
    failures: list[tuple[Request, Reply]] = []
    results = 0

    def ask(request: Request) -> bool:
        nonlocal results
        reply = caller.ask(request)
        results += reply.status == 200
        if not reply.status or reply.status >= 500:
            failures.append((request, reply))
        return bool(reply.status)

    count = payload_mutations.try_mutations(client, sample.payload, MUTATED_PAYLOADS, ask)
    if failures:
        request, reply = min(failures, key=lambda pair: len(payload_mutations.format_request(pair[0])))
        kind = "unhandled null: " if _is_null(request) else ""
        raise CheckFailed(
            f"{kind}{payload_mutations.format_request(request)} gives {reply.sentence}; "
            f"{len(failures)} of {count} payloads are not result and no 4xx"
        )
    return f"{count} mutated payloads: {results} results, {count - results} refused with a 4xx"


def _is_null(request: Request) -> bool:
    fields = request.payload if request.parameters is None else request.parameters
    return fields is None or (isinstance(fields, dict) and None in fields.values())


def run_alone(caller: Caller, sample: Sample) -> list[tuple[Request, Any]]:
    """Return different requests, each with its answer when it runs alone."""
    replies = [
        (request, caller.ask(request)) for request in payload_mutations.variants(sample.payload, VARIANTS)
    ]
    return [(request, reply.result) for request, reply in replies if reply.status == 200]


def check_threads(caller: Caller, sample: Sample) -> str:
    """Check that concurrent requests get the same answers as each one alone."""
    alone = run_alone(caller, sample)
    if not alone:
        raise CheckFailed("not even the sample gives a result")
    calls = [alone[number % len(alone)] for number in range(THREADS)]
    with ThreadPoolExecutor(THREADS) as pool:
        began = time.monotonic()
        for _ in range(ROUNDS):
            replies = pool.map(lambda call: caller.ask(call[0]), calls)
            for reply, (request, expected) in zip(replies, calls, strict=True):
                _compare(reply, request, expected, alone)
            if time.monotonic() - began > MAX_ROUNDS_S:
                break
    return f"{THREADS} threads with {len(alone)} payloads get the answers of one"


def _compare(reply: Reply, request: Request, expected: Any, alone: list[tuple[Request, Any]]) -> None:
    if reply.status != 200:
        raise CheckFailed(
            f"among {THREADS} threads {payload_mutations.format_request(request)} gives {reply.sentence}"
        )
    difference = next(differences(reply.result, expected), None)
    if difference is None:
        return
    others = [result for other, result in alone if other is not request]
    which_answer = "another's answer" if reply.result in others else "another answer than alone"
    raise CheckFailed(
        f"state shared between threads: among {THREADS} a request gets {which_answer} ({difference}); "
        "nothing about a request may live on self, and no record of a batch may change another's result"
    )


def check_payload_unchanged(client: Client, sample: Sample) -> str:
    """Check that a call leaves the payload unchanged."""
    try:
        change = input_mutation.find_change(client, Request(sample.payload))
    except Exception as error:
        raise CheckFailed(f"the sample gives {type(error).__name__}: {error}") from None
    if change:
        raise CheckFailed(change)
    return "its input is left as it is; the same payload gives the same answer"


def check_memory(caller: InProcessCaller, recording: RecordingTriton, sample: Sample) -> str:
    """Check that memory does not grow. Triton's answers are replayed, so the memory is the client's."""
    requests = [request for request, _ in run_alone(caller, sample)] or [Request(sample.payload)]
    recording.replaying = True
    try:
        leak = memory_growth.find_leak(
            lambda turn: caller.reply(requests[turn % len(requests)]), MEMORY_CALLS, caller.client.folder
        )
    finally:
        recording.replaying = False
    if leak:
        raise CheckFailed(leak)
    return f"memory is flat over {MEMORY_CALLS:,} calls"


def measure_stages(caller: InProcessCaller, recording: RecordingTriton, sample: Sample) -> dict[str, float]:
    """Return the milliseconds of each stage of a request, the mean of :data:`TIMED_CALLS`."""
    began, seconds_before = time.perf_counter(), recording.seconds
    milliseconds = mean_milliseconds(caller, sample, lambda: stage_seconds(caller.client))
    milliseconds["infer"] = (recording.seconds - seconds_before) / TIMED_CALLS * 1000
    if not isinstance(caller.client, TensorClient):
        # The client has no separate stages: everything outside of Triton is its own.
        total = (time.perf_counter() - began) / TIMED_CALLS * 1000
        milliseconds["own work"] = max(0.0, total - sum(milliseconds.values()))
    return {name: milliseconds[name] for name in STAGES if name in milliseconds}


def mean_milliseconds(
    caller: Caller, sample: Sample, seconds: Callable[[], dict[str, float]]
) -> dict[str, float]:
    """Return the milliseconds of one request by stage, from what :data:`TIMED_CALLS` requests added to
    ``seconds``.
    """
    before = seconds()
    for _ in range(TIMED_CALLS):
        caller.ask(Request(sample.payload))
    after = seconds()
    milliseconds = {
        name: (value - before.get(name, 0.0)) / TIMED_CALLS * 1000 for name, value in after.items()
    }
    return {name: milliseconds[name] for name in STAGES if name in milliseconds}


def stage_seconds(client: Client) -> dict[str, float]:
    """Return the router's series of the client so far, by stage."""
    totals: dict[str, float] = {}
    for (name, stage, _), seconds in DURATIONS.sums().items():
        if name == client.name:
            totals[stage] = totals.get(stage, 0.0) + seconds
    return totals
