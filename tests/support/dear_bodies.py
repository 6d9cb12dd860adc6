"""Measure what bodies that repeat one thing cost this process, for each payload type, parameter and route.

``python -m tests.support.dear_bodies`` prints the dearest cases. Each runs in a fork, so that its memory is its own.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import logging
import os
import pkgutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cached_property
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import orjson
from werkzeug.test import EnvironBuilder, run_wsgi_app

import sm.client
import trireme_extensions.tasks
from sm.client import Client
from sm.client.payloads import Payload, keys_of
from sm.http.messages import JSON, JSON_LINES, load_json
from sm.model_processes.answer_guard import AnswerGuard
from sm.model_processes.generations import SharedGeneration
from sm.models.found_clients import models_of
from sm.router import form_routes, invocation_routes, v2_routes
from sm.router.classify import RequestClassifier
from sm.router.forms.table import Forms
from sm.router.invocation_routes import Router
from sm.router.records import OrderedMap
from sm.router.request_flow import RequestFlow
from sm.router.running_invocation import LogSample
from sm.router.triton_requests import TritonForwarder
from sm.settings import MAX_RECORDS
from sm.triton.calls import Calls
from sm.triton.http_proxy import Upstream
from tests.support.memory import peak_of_process
from tests.support.onnx_graphs import write_graph
from tests.support.rerankers import write_reranker
from tests.support.task_models import load_task, load_translator, write_text_model, write_translator
from trireme_extensions.search.forms import FORMS as SEARCH
from trireme_extensions.search.search import EmbeddingsForm
from trireme_extensions.tasks.task_table import TASKS

MIB = 2**20
#: One unit of a body, and what is around as many of them as it has room for. ``%d`` is a number of its own.
VALUES: dict[str, tuple[str, str, str]] = {
    "numbers": ("[", "1,", "1]"),
    "fractions": ("[", "0.25,", "1]"),
    "nulls": ("[", "null,", "null]"),
    "truths": ("[", "true,", "true]"),
    "texts": ("[", '"a",', '"a"]'),
    "empty texts": ("[", '"",', '""]'),
    "lists": ("[", "[],", "[]]"),
    "lists of a number": ("[", "[1],", "[1]]"),
    "empty objects": ("[", "{},", "{}]"),
    "objects with another key": ("[", '{"xxxxxxxx":1},', "{}]"),
    "objects with a wrong text": ("[", '{"text":1,"rows":1},', '{"text":1}]'),
    "a right text, then numbers": ('["a",', "1,", "1]"),
    "a row": ("[[", '"a",', '"a"]]'),
    "keys": ("{", '"k%d":1,', '"k":1}'),
    "keys of truths": ("{", '"k%d":true,', '"k":true}'),
    "keys of lists": ("{", '"k%d":[],', '"k":[]}'),
    "a long key": ('{"', "k", '":1}'),
    "a long text": ('"', "a", '"'),
    "an escaped text": ('"', "\\u00e9", '"'),
    "quotes": ('"', "'\\\"", '"'),
    "digits": ("", "1", "1"),
    "a long fraction": ("0.", "1", "1"),
    "levels": ("[" + "[" * 900 + "]" * 900, "," + "[" * 900 + "]" * 900, "]"),
    "many levels": ("", "[", ""),
}


def text_of(value: str, size: int) -> str:
    """Return JSON of about ``size`` bytes."""
    start, unit, end = VALUES[value]
    if "%d" in unit:
        return start + "".join(unit % number for number in range(size // (len(unit) + 4))) + end
    return start + unit * (size // len(unit)) + end


class Case(NamedTuple):
    """A request."""

    path: str
    content_type: str
    #: Where the value stands: what is before it and what is behind.
    place: tuple[str, str]
    value: str

    def body(self, size: int) -> bytes:
        return (self.place[0] + text_of(self.value, size) + self.place[1]).encode()


def payload_types() -> list[type[Payload]]:
    """Return the payload types of the core's clients and of the tasks."""
    for package in (sm.client, trireme_extensions.tasks):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.startswith("sm.client.tasks"):  # the tasks by their old address
                import_module(module.name)
    found, waiting = [], [Payload]
    while waiting:
        kind = waiting.pop()
        waiting += kind.__subclasses__()
        if kind is not Payload and kind.__module__.startswith(("sm.", "trireme_extensions.")):
            found.append(kind)
    return found


def reader_of(kind: type[Payload]) -> Client:
    """Return a client that reads all that a payload says of itself."""
    lazy = [name for name in dir(kind) if isinstance(getattr(kind, name, None), cached_property | property)]

    def inference(_: Client, payload: Payload) -> str:
        for name in lazy:
            if not name.startswith(("_", "model_")):
                getattr(payload, name)
        return "read"

    made: Any = type(kind.__name__, (Client,), {"payload": kind, "inference": inference})
    client: Client = made(None, Path(), Path())
    client.name = kind.__name__
    return client


#: Tasks whose records are pictures or sound: what costs there is decoding, which has limits of its own.
DECODED = {
    "object-detection",
    *(task for task in TASKS if task.startswith(("image-", "audio-", "automatic-"))),
}


def task_clients(folder: Path) -> dict[str, Client]:
    """Return a client of each task but :data:`DECODED`, with its graph."""
    labels = {
        "token-classification": ("O", "B-PER"),
        "text-classification": ("sad", "glad"),
        "zero-shot-classification": ("contradiction", "entailment"),
    }
    graphs = {"zero-shot-classification": "text-classification"}
    clients: dict[str, Client] = {}
    for task in ("fill-mask", "question-answering", "sentence-embeddings", *labels):
        write_text_model(folder / task, graphs.get(task, task), labels.get(task, ()))
        clients[task] = load_task(folder / task, task=task)
    written = write_reranker(folder / "ranker")
    clients["ranker"] = load_task(written, **json.loads((written / "task.json").read_text()))
    clients["text2text-generation"] = load_translator(write_translator(folder / "translator"))
    (folder / "tabular").mkdir()
    write_graph(folder / "tabular" / "model.onnx", "(float[b,3] x) => (float[b,3] y) { y = Identity(x) }")
    clients["tabular"] = load_task(folder / "tabular", task="tabular")
    for name, client in clients.items():
        client.name = name
    assert clients.keys() - {"ranker"} == TASKS.keys() - DECODED, "a new task needs a client here"
    return clients


def router_of(clients: dict[str, Client], folder: Path, pool: ThreadPoolExecutor) -> Router:
    """Return the data plane's application with these clients, and no Triton."""
    guard = AnswerGuard(
        SharedGeneration.create(folder / f"generation-{time.monotonic_ns()}"), lambda model: (model,)
    )
    models, calls = models_of(clients), Calls(guard, folder=folder)
    flow = RequestFlow(
        models,
        RequestClassifier(models, max_records=MAX_RECORDS),
        TritonForwarder(Upstream(1, 1.0, calls), models),
        calls,
        OrderedMap(pool, 1),
    )
    router = Router(flow, LogSample(0.0), 64 * MIB, 60.0, 60.0, False)
    router.register_blueprint(invocation_routes.blueprint(router))
    router.register_blueprint(v2_routes.blueprint(router))
    router.register_blueprint(form_routes.blueprint(router, Forms.load()))
    return router


#: Members of a dispatch request and of Hugging Face's form: what is before a value and what is behind.
FORMS = (
    *(('{"payload":', "}"), ("", ""), ('{"payload":"a","x":', "}"), ('{"payload":{"x":', "}}")),
    *(('{"payload":"a","version":', "}"), ('{"payload":"a","parameters":', "}"), ('{"inputs":', "}")),
    *(('{"inputs":["a"],"parameters":', "}"), ('{"inputs":"a","x":', "}")),
    ('{"inputs":"a","parameters":{"candidate_labels":', "}}"),
)
#: The values that stand for the others where they are read in the same way for every type.
USUAL = ("numbers", "texts", "lists", "objects with another key", "keys", "a long key", "levels")


def fields_of(client: Client) -> Iterator[tuple[str, str]]:
    """Yield what is around a value in each field of a client's payload and parameters."""
    kind = client.payload
    names = [key for name, info in kind.model_fields.items() for key in keys_of(name, info)]
    yield from ((f'{{"payload":{{"{name}":', "}}") for name in names if name != "parameters")
    yield from (
        (f'{{"payload":"a","parameters":{{"{name}":', "}}") for name in sorted({*kind.parameter_names(), "x"})
    )


def cases(clients: dict[str, Client]) -> Iterator[Case]:
    """Yield each case."""
    for name, client in clients.items():
        path = f"/invocations?modelname={name}"
        for place in FORMS:
            yield from (Case(path, JSON, place, value) for value in USUAL if value != "texts")
        for place in fields_of(client):
            yield from (Case(path, JSON, place, value) for value in VALUES)
        for kind in (JSON_LINES, *client.payload.content_types):
            yield from (Case(path, kind, ("", ""), value) for value in VALUES if "text" not in value)
    for path in dict.fromkeys(path for form in SEARCH for path in form.paths):
        yield from (Case(path, JSON, ("", ""), value) for value in VALUES)
        for form in (row.kind for row in SEARCH if path in row.paths):
            model = "sentence-embeddings" if issubclass(form, EmbeddingsForm) else "ranker"
            for name in (*form.model_fields, "x"):
                start = f'{{"model":"{model}","query":"a","{form.member}":["a"],"{name}":'
                values = USUAL if name == "x" else VALUES
                yield from (Case(path, JSON, (start, "}"), value) for value in values if may_be(name, value))


#: Bodies in Triton's own protocol: what is before a value and what is behind.
TENSORS = (
    *(('{"inputs":', "}"), ('{"inputs":[', "]}"), ('{"id":', ',"inputs":[]}'), ('{"parameters":', "}")),
    *(('{"inputs":[{"name":"x","datatype":"FP32","shape":', ',"data":[1]}]}'), ('{"outputs":', "}")),
    *(('{"inputs":[{"name":"x","datatype":"FP32","shape":[1],"data":', "}]}"), ("", "")),
    ('{"inputs":[{"name":"x","datatype":"BYTES","shape":[1],"data":', "}]}"),
)
#: Triton's paths, and bodies for each. There is no Triton, so what is sent on costs no more here.
V2_PATHS = {
    "/v2/models/tabular/infer": TENSORS,
    "/v2/models/tabular/generate": (("", ""), ('{"text_input":', "}"), ('{"parameters":', "}")),
    "/v2/models/tabular/generate_stream": (("", ""), ('{"text_input":', "}")),
}


def v2_cases() -> Iterator[Case]:
    """Yield each case of Triton's own protocol."""
    for path, places in V2_PATHS.items():
        for place in places:
            yield from (Case(path, JSON, place, value) for value in VALUES)


def may_be(name: str, value: str) -> bool:
    """False for what a request may say: the work for right texts is the model's."""
    return name not in ("documents", "texts", "input", "inputs", "query") or "text" not in value


class Cost(NamedTuple):
    """What a case took, for each MiB of its body."""

    case: Case
    status: int
    #: Milliseconds of processor time: to read the body as JSON, which no answer can do without; and in all.
    reading: float
    milliseconds: float
    mebibytes: float
    answer: str


def in_a_fork(work: Callable[[], object]) -> Any:
    """Return what ``work`` returns in a fork of this process, through JSON."""
    reader, writer = os.pipe()
    if not (child := os.fork()):
        try:
            os.close(reader)
            with os.fdopen(writer, "wb") as pipe:
                pipe.write(orjson.dumps(work()))
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        content = pipe.read()
    os.waitpid(child, 0)
    return orjson.loads(content)


def measure(make_router: Callable[[], Router], case: Case, size: int) -> Cost:
    """Answer a case in a fork, and measure it."""
    body = case.body(size)

    def answer() -> tuple[int, float, float, float, str]:
        router, found = make_router(), SimpleNamespace(status=0, text="")
        path, _, query = case.path.partition("?")
        builder = EnvironBuilder(
            path, query_string=query, method="POST", data=body, content_type=case.content_type
        )
        environ = builder.get_environ()

        def run() -> None:
            parts, status, _ = run_wsgi_app(router, environ)
            found.status, found.text = int(status.split()[0]), b"".join(parts)[:200].decode(errors="replace")

        started = time.process_time()
        with suppress(orjson.JSONDecodeError):
            load_json(body)
        reading, started = time.process_time() - started, time.process_time()
        peak = peak_of_process(run)
        return found.status, reading, time.process_time() - started, peak, found.text

    status, reading, seconds, peak, text = in_a_fork(answer)
    scale = len(body) / MIB
    return Cost(case, status, 1000 * reading / scale, 1000 * seconds / scale, peak / MIB / scale, text)


def costs(size: int, only: str = "") -> Iterator[Cost]:
    """Yield what each case costs."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        clients = {kind.__name__: reader_of(kind) for kind in payload_types()} | task_clients(folder)
        pools: list[ThreadPoolExecutor] = []
        gc.freeze()  # as the box does before it starts a worker

        def make_router() -> Router:
            pools.append(ThreadPoolExecutor(1))  # threads do not survive a fork
            return router_of(clients, folder, pools[-1])

        for case in itertools.chain(cases(clients), v2_cases()):
            if only in str(case):
                yield measure(make_router, case, size)


def main() -> None:
    logging.getLogger().addHandler(logging.NullHandler())
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=float, default=1.0, help="MiB of each body")
    parser.add_argument("--only", default="", help="a part of the cases' text")
    parser.add_argument("--top", type=int, default=30)
    options = parser.parse_args()
    found = [*costs(int(options.size * MIB), options.only)]
    for name in ("milliseconds", "mebibytes"):
        for cost in sorted(found, key=lambda cost: -getattr(cost, name))[: options.top]:
            case = f"{cost.case.path} {cost.case.content_type} {cost.case.place} {cost.case.value}"
            figures = f"{cost.milliseconds:8.1f} ms ({cost.reading:5.1f}) {cost.mebibytes:6.1f} MiB"
            sys.stdout.write(f"{figures} {cost.status} {case} {cost.answer[:70]!r}\n")
        sys.stdout.write(f"of {len(found)} cases\n")


if __name__ == "__main__":
    main()
