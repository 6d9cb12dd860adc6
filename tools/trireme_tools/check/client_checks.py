"""The promises that every client must keep. Each check returns a sentence with its result."""

from __future__ import annotations

import copy
import ctypes
import gc
import json
import os
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from sm.client.base import Client, ModelMetadata, TensorClient
from sm.client.results import Picture
from sm.commands.golden import SCORE_TOLERANCE, TOLERANCE_PX, differences
from sm.errors import CommandError, TriremeError
from sm.metrics import DURATIONS
from sm.plugins import checks
from sm.router.answers import dumps
from sm.router.dispatch import validate_payload
from trireme_tools.check import payload_mutations
from trireme_tools.check.calls import Caller, CheckReply, CheckRequest, InProcessCaller, read_request
from trireme_tools.check.recording_triton import RecordingTriton


def find_change(client: Client, request: CheckRequest) -> str | None:
    """Describe the part of the payload that ``inference`` changes; None if there is none."""
    invocation = read_request(client, request.body(client.name))
    payload = validate_payload(client, invocation, invocation.records[0])
    before = copy.deepcopy(_parts(payload))
    first_result = _as_caller_reads(client.inference(payload))
    for name, value in _parts(payload).items():
        if not _same(value, before[name]):
            return f"mutation of its input: payload.{name} is another after the call; work on a copy"
    if any(differences(_as_caller_reads(client.inference(payload)), first_result)):
        return "state of an earlier call: the same payload gives another answer the second time"
    return None


def _as_caller_reads(result: object) -> Any:
    """Return a result as the caller reads it."""
    return json.loads(dumps(result.as_json() if isinstance(result, Picture) else result))


def _parts(payload: Any) -> dict[str, Any]:
    """Return the payload's fields and cached properties, such as a picture's pixels."""
    cached_properties = [
        name
        for kind in type(payload).__mro__
        for name, member in vars(kind).items()
        if isinstance(member, cached_property) and not name.startswith("_")
    ]
    parts = {name: getattr(payload, name) for name in type(payload).model_fields}
    for name in cached_properties:
        try:
            parts[name] = getattr(payload, name)
        except TriremeError:
            continue
    return parts


def _same(first: Any, second: Any) -> bool:
    if isinstance(first, np.ndarray):
        return bool(first.dtype == second.dtype and first.tobytes() == second.tobytes())
    return bool(first == second)


#: Calls before the first measurement, so that caches are filled.
WARM_UP_CALLS = 200
#: Bytes that all calls together may leave, and objects per call: the allocators' noise is below both.
MAX_GROWTH_BYTES, MAX_OBJECTS_PER_CALL = 8 * 2**20, 0.5
#: Calls that are traced, which is slow, to name the line that leaks.
TRACED_CALLS = 100


def find_leak(call: Callable[[int], object], calls: int, folder: Path) -> str | None:
    """Call it ``calls`` times. Returns a sentence with the line of ``folder`` that leaks, or None."""
    for turn in range(WARM_UP_CALLS):
        call(turn)
    before = _measure()
    for turn in range(WARM_UP_CALLS, calls):
        call(turn)
    after = _measure()
    objects, size = after[0] - before[0], after[1] - before[1]
    if objects < MAX_OBJECTS_PER_CALL * (calls - WARM_UP_CALLS) and size < MAX_GROWTH_BYTES:
        return None
    grown = f"{size / 2**20:.1f} MiB and {objects:,} objects more after {calls - WARM_UP_CALLS:,} calls"
    return f"leak: {grown}{_culprit(call, folder)}"


def _measure() -> tuple[int, int]:
    """Return Python's allocated blocks and the resident bytes, after freeing what can be freed."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return sys.getallocatedblocks(), pages * os.sysconf("SC_PAGE_SIZE")


def _culprit(call: Callable[[int], object], folder: Path) -> str:
    tracemalloc.start(12)
    try:
        snapshot = tracemalloc.take_snapshot()
        for turn in range(TRACED_CALLS):
            call(turn)
        gc.collect()
        grown = tracemalloc.take_snapshot().compare_to(snapshot, "traceback")
    finally:
        tracemalloc.stop()
    for row in sorted(grown, key=lambda row: -row.size_diff):
        frames = [frame for frame in row.traceback if Path(frame.filename).is_relative_to(folder)]
        if frames and row.count_diff >= TRACED_CALLS // 2:
            return f"; most of it from {Path(frames[-1].filename).name}, line {frames[-1].lineno}"
    return ""


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
        return cls(*(cls.read(folder / name) for name in ("payload.json", "golden.json")))

    @staticmethod
    def read(file: Path) -> Any:
        """Read one of the two files."""
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
    for sentence in checks.differences(client, metadata):
        served = {**metadata.inputs, **metadata.outputs}
        named_tensors = {**client.inputs, **client.outputs}
        other = any(
            name in served and served[name].datatype not in kinds.split("|")
            for name, (kinds, _) in named_tensors.items()
        )
        yield f"wrong dtype: {sentence}" if other else f"wrong name or shape: {sentence}"


def check_tensors(caller: InProcessCaller, recording: RecordingTriton, sample: Sample) -> str:
    """Check that the tensors that the client sends are those of its models."""
    caller.ask(CheckRequest(sample.payload))
    if recording.faults:
        raise CheckFailed("; ".join(islice(recording.faults, 3)))
    return f"names, dtypes and shapes are those of {', '.join(caller.client.required_models()) or 'no model'}"


def check_golden(caller: Caller, sample: Sample) -> str:
    """Check that the sample gets its golden answer."""
    reply = caller.ask(CheckRequest(sample.payload))
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
    failures: list[tuple[CheckRequest, CheckReply]] = []
    results = 0

    def ask(request: CheckRequest) -> bool:
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


def _is_null(request: CheckRequest) -> bool:
    fields = request.payload if request.parameters is None else request.parameters
    return fields is None or (isinstance(fields, dict) and None in fields.values())


def run_alone(caller: Caller, sample: Sample) -> list[tuple[CheckRequest, Any]]:
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


def _compare(
    reply: CheckReply, request: CheckRequest, expected: Any, alone: list[tuple[CheckRequest, Any]]
) -> None:
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
        change = find_change(client, CheckRequest(sample.payload))
    except Exception as error:
        raise CheckFailed(f"the sample gives {type(error).__name__}: {error}") from None
    if change:
        raise CheckFailed(change)
    return "its input is left as it is; the same payload gives the same answer"


def check_memory(caller: InProcessCaller, recording: RecordingTriton, sample: Sample) -> str:
    """Check that memory does not grow. Triton's answers are replayed, so the memory is the client's."""
    requests = [request for request, _ in run_alone(caller, sample)] or [CheckRequest(sample.payload)]
    recording.replaying = True
    try:
        leak = find_leak(
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
        caller.ask(CheckRequest(sample.payload))
    after = seconds()
    milliseconds = {
        name: (value - before.get(name, 0.0)) / TIMED_CALLS * 1000 for name, value in after.items()
    }
    return {name: milliseconds[name] for name in STAGES if name in milliseconds}


def stage_seconds(client: Client) -> dict[str, float]:
    """Return the router's series of the client so far, by stage."""
    totals: dict[str, float] = {}
    (durations,) = DURATIONS.collect()
    for sample in durations.samples:
        if sample.name.endswith("_sum") and sample.labels["model"] == client.name:
            stage = sample.labels["stage"]
            totals[stage] = totals.get(stage, 0.0) + sample.value
    return totals
