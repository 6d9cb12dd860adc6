"""What every client promises, asked one after the other. Each check gives a sentence for what it found."""

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
from sm.errors import StartError
from sm.metrics import STAGE_SECONDS
from sm.plugins import registry
from sm.tools.check import input_mutation, memory_growth, payload_mutations
from sm.tools.check.calls import Caller, InProcessCaller, Reply, Request
from sm.tools.check.recording_triton import RecordingTriton
from sm.tools.golden import PIXELS, SCORE, differences

PAYLOADS, THREADS, CALLS, TIMED = 200, 64, 2000, 20
#: Requests that differ from one another, for the threads and for the calls.
VARIANTS = 6
#: How often the threads ask; a slow model's once, beyond so many seconds.
ROUNDS, ENOUGH = 3, 5.0
STAGES = ("decode", "preprocess", "own work", "infer", "postprocess", "encode")


class CheckFailed(Exception):
    """A promise that the client does not keep: the sentence names the fault."""


@dataclass(frozen=True)
class Sample:
    """``sample/payload.json`` and, beside it, the ``golden.json`` that must come back."""

    payload: Any
    golden: Any

    @classmethod
    def of(cls, folder: Path) -> Sample:
        """:class:`StartError` names the file that is not there or no JSON."""
        return cls(*(_json(folder / name) for name in ("payload.json", "golden.json")))


def _json(file: Path) -> Any:
    try:
        return json.loads(file.read_bytes())
    except OSError as error:
        raise StartError(f"{file} cannot be read ({error.strerror}): a client has a sample.") from None
    except ValueError as error:
        raise StartError(f"{file} is not JSON: {error}.") from None


def declared(client: Client, metadata: ModelMetadata) -> Iterator[str]:
    """Sentences about tensors that the client names and its model has not, or has otherwise."""
    if not isinstance(client, TensorClient) or metadata.name != client.model:
        return
    for sentence in registry.differences(client, metadata):
        served = {**metadata.inputs, **metadata.outputs}
        named = {**client.inputs, **client.outputs}
        other = any(
            name in served and served[name].datatype not in kinds.split("|")
            for name, (kinds, _) in named.items()
        )
        yield f"wrong dtype: {sentence}" if other else f"wrong name or shape: {sentence}"


def tensors(asker: InProcessCaller, observed: RecordingTriton, sample: Sample) -> str:
    """What the client names, and what it gives with its sample, is what its models take."""
    client = asker.client
    said = [observed.metadata(model) for model in client.required_models()]
    named = [sentence for metadata in said for sentence in declared(client, metadata)]
    if not named:
        asker.ask(Request(sample.payload))
    faults = [*named, *observed.faults]
    if faults:
        raise CheckFailed("; ".join(faults[:3]))
    return f"names, dtypes and shapes are those of {', '.join(client.required_models()) or 'no model'}"


def golden(asker: Caller, sample: Sample) -> str:
    """The sample gives its golden answer."""
    reply = asker.ask(Request(sample.payload))
    if reply.status != 200:
        kind = "non-JSON result: " if "cannot be sent" in reply.sentence else ""
        raise CheckFailed(f"{kind}the sample gives {reply.sentence}")
    found = list(islice(differences(reply.result, sample.golden), 3))
    tolerance = f"{PIXELS:g} for numbers above 1, {SCORE:g} for others"
    if found:
        raise CheckFailed(f"golden drift: {'; '.join(found)} (tolerance: {tolerance})")
    return f"equal (tolerance: {tolerance})"


def mutated(asker: Caller, client: Client, sample: Sample) -> str:
    """Whatever a caller sends by mistake is a result or a 4xx."""
    bad: list[tuple[Request, Reply]] = []
    results = 0

    def ask(request: Request) -> bool:
        nonlocal results
        reply = asker.ask(request)
        results += reply.status == 200
        if not reply.status or reply.status >= 500:
            bad.append((request, reply))
        return bool(reply.status)

    asked = payload_mutations.tell(client, sample.payload, PAYLOADS, ask)
    if bad:
        request, reply = min(bad, key=lambda pair: len(payload_mutations.shown(pair[0])))
        kind = "unhandled null: " if _is_null(request) else ""
        raise CheckFailed(
            f"{kind}{payload_mutations.shown(request)} gives {reply.sentence}; "
            f"{len(bad)} of {asked} payloads are no result and no 4xx"
        )
    return f"{asked} mutated payloads: {results} results, {asked - results} refused with a 4xx"


def _is_null(request: Request) -> bool:
    fields = request.payload if request.parameters is None else request.parameters
    return fields is None or (isinstance(fields, dict) and None in fields.values())


def answered(asker: Caller, sample: Sample) -> list[tuple[Request, Any]]:
    """Requests that differ, each with the answer it gets when nobody else asks."""
    replies = [
        (request, asker.ask(request)) for request in payload_mutations.variants(sample.payload, VARIANTS)
    ]
    return [(request, reply.result) for request, reply in replies if reply.status == 200]


def threads(asker: Caller, sample: Sample) -> str:
    """Many at once get what each gets alone."""
    alone = answered(asker, sample)
    if not alone:
        raise CheckFailed("not even the sample gives a result")
    turns = [alone[turn % len(alone)] for turn in range(THREADS)]
    with ThreadPoolExecutor(THREADS) as crowd:
        began = time.monotonic()
        for _ in range(ROUNDS):
            replies = crowd.map(lambda turn: asker.ask(turn[0]), turns)
            for reply, (request, wanted) in zip(replies, turns, strict=True):
                _compare(reply, request, wanted, alone)
            if time.monotonic() - began > ENOUGH:
                break
    return f"{THREADS} threads with {len(alone)} payloads get the answers of one"


def _compare(reply: Reply, request: Request, wanted: Any, alone: list[tuple[Request, Any]]) -> None:
    if reply.status != 200:
        raise CheckFailed(
            f"among {THREADS} threads {payload_mutations.shown(request)} gives {reply.sentence}"
        )
    difference = next(differences(reply.result, wanted), None)
    if difference is None:
        return
    others = [result for other, result in alone if other is not request]
    whose = "another's answer" if reply.result in others else "another answer than alone"
    raise CheckFailed(
        f"state shared between threads: among {THREADS} a request gets {whose} ({difference}); "
        "nothing about a request may live on self"
    )


def untouched(client: Client, sample: Sample) -> str:
    """The payload is after the call what it was before."""
    try:
        found = input_mutation.changed(client, Request(sample.payload))
    except Exception as error:
        raise CheckFailed(f"the sample gives {type(error).__name__}: {error}") from None
    if found:
        raise CheckFailed(found)
    return "its input is left as it is; the same payload gives the same answer"


def flat(asker: InProcessCaller, observed: RecordingTriton, sample: Sample) -> str:
    """Memory does not grow with the calls. Triton's answers are played again: this is the client's own."""
    requests = [request for request, _ in answered(asker, sample)] or [Request(sample.payload)]
    observed.replaying = True
    try:
        found = memory_growth.find_leak(
            lambda turn: asker.reply(requests[turn % len(requests)]), CALLS, asker.client.folder
        )
    finally:
        observed.replaying = False
    if found:
        raise CheckFailed(found)
    return f"memory is flat over {CALLS:,} calls"


def stages(asker: InProcessCaller, observed: RecordingTriton, sample: Sample) -> dict[str, float]:
    """Milliseconds of each stage of one request, the mean of :data:`TIMED`."""
    began, asked = time.perf_counter(), observed.seconds
    spent = mean(asker, sample, lambda: own_seconds(asker.client))
    spent["infer"] = (observed.seconds - asked) / TIMED * 1000
    if not isinstance(asker.client, TensorClient):
        # It has no verbs to be told apart: what is not in Triton is its own.
        whole = (time.perf_counter() - began) / TIMED * 1000
        spent["own work"] = max(0.0, whole - sum(spent.values()))
    return {name: spent[name] for name in STAGES if name in spent}


def mean(asker: Caller, sample: Sample, seconds: Callable[[], dict[str, float]]) -> dict[str, float]:
    """What :data:`TIMED` requests add to ``seconds``, in milliseconds for one, in the order of a request."""
    before = seconds()
    for _ in range(TIMED):
        asker.ask(Request(sample.payload))
    after = seconds()
    spent = {name: (value - before.get(name, 0.0)) / TIMED * 1000 for name, value in after.items()}
    return {name: spent[name] for name in STAGES if name in spent}


def own_seconds(client: Client) -> dict[str, float]:
    """What the router's own series say of the client so far, by stage."""
    return {
        sample.labels["stage"]: sample.value
        for metric in STAGE_SECONDS.collect()
        for sample in metric.samples
        if sample.name.endswith("_sum") and sample.labels["client"] == client.name
    }
