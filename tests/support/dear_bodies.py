"""Measure what bodies that repeat one thing cost this process, for each payload type, parameter and route.

``python -m tests.support.dear_bodies`` prints the dearest cases. Each runs in a fork, so that its memory is its own.
"""

from __future__ import annotations

import argparse
import csv
import gc
import io
import itertools
import json
import logging
import os
import pkgutil
import re
import socket
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import replace
from functools import cache, cached_property
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import orjson
from flask import Flask
from werkzeug.routing import Rule
from werkzeug.test import EnvironBuilder, run_wsgi_app
from wsproto.frame_protocol import CloseReason, Opcode

import sm.client
import trireme_extensions.tasks
from sm.client import Client
from sm.client.payloads import NPY_MAGIC, Payload, keys_of
from sm.control import model_routes
from sm.http.control_paths import MAX_BODY_BYTES
from sm.http.messages import CSV, EVENTS, JSON, JSON_LINES, NPY, load_json
from sm.http.responses import handle_errors
from sm.model_processes.answer_guard import AnswerGuard
from sm.model_processes.generations import SharedGeneration
from sm.models.load_records import LoadRecords
from sm.models.model_loader import ModelLoader
from sm.models.on_demand import Catalog, OnDemand
from sm.models.staging import Staging
from sm.models.table import models_of
from sm.router import app, v2_routes, websocket
from sm.router.forms.session import NEW
from sm.router.invocation_routes import Router
from sm.router.request_types import SESSION_HEADER
from sm.run_state import Box
from sm.settings import Settings
from sm.triton.calls import Calls
from tests.support.memory import peak_of_process
from tests.support.noted_control import RecordingControl
from tests.support.onnx_graphs import write_graph
from tests.support.rerankers import write_reranker
from tests.support.task_models import load_task, load_translator, write_text_model, write_translator
from trireme_extensions.search.forms import FORMS as SEARCH
from trireme_extensions.search.search import EmbeddingsForm
from trireme_extensions.tasks.task_table import TASKS

MIB = 2**20
#: What the answer to a MiB may cost: processor time beyond what its JSON takes to be read, and memory.
MILLISECONDS, MEBIBYTES = 25.0, 40.0
#: A body is measured in a half of its size first.
PART = 2
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
    "a record of keys": ("[{", '"k%d":1,', '"k":1}]'),
    "equal keys": ("{", '"k":1,', '"k":1}'),
    "large numbers": ("[", "12345678901234567890,", "1]"),
    "words for no number": ("[", "NaN,", "NaN]"),
    "levels": ("[" + "[" * 900 + "]" * 900, "," + "[" * 900 + "]" * 900, "]"),
    "pairs of levels": ("[", "[[]],", "1]"),
    "four levels of a number": ("[", "[[[[1]]]],", "1]"),
    "lists and texts of brackets": ("[", '"[[",', "1]"),
    "many levels": ("", "[", ""),
}
#: The same for bodies of other types than JSON.
LINES: dict[str, tuple[str, str, str]] = {
    "spaces": ("", " ", "1"),
    "line ends": ("", "\n", "1"),
    "lines of a number": ("", "1\n", "1"),
    "lines of a list": ("", "[]\n", "[]"),
    "lines of an object": ("", "{}\n", "{}"),
    "lines of another key": ("", '{"x":1}\n', "{}"),
    "lines of three cells": ("", "1,x,3\n", "1,2,3"),
    "lines of quotes": ("", '"a","b"\n', '"a"'),
    "cells": ("", ",", "1"),
    "quoted cells": ("", '"a",', "1"),
    "a quote that is not closed": ('"', "a\n", ""),
    "an array's header": (NPY_MAGIC.decode("latin-1") + "\1\0\x10\x27", "(", ")"),
}


def text_of(value: str, size: int) -> str:
    """Return JSON of about ``size`` bytes."""
    start, unit, end = VALUES[value] if value in VALUES else LINES[value]
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
    headers: tuple[tuple[str, str], ...] = ()
    method: str = "POST"
    #: Which of :func:`applications` has the path.
    plane: str = "data"

    def body(self, size: int) -> bytes:
        """Return a body of at most ``size`` bytes, and nearly as many."""
        text = text_of(self.value, size - 4000)
        encoding = "latin-1" if text.startswith("\x93") else "utf-8"
        return self.place[0].encode() + text.encode(encoding) + self.place[1].encode()


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


def applications(clients: dict[str, Client], folder: Path) -> dict[str, Flask]:
    """Return the data plane with these clients and no Triton, and the control plane's ``/models`` of each kind."""
    box = Box("bodies", folder / "run", folder / "repository", 1, 1, 1, "gunicorn", 0)
    for path in (box.run, box.repository):
        path.mkdir()
    guard = AnswerGuard(SharedGeneration.create(folder / "generation"), lambda model: (model,))
    settings = replace(Settings(), sessions=True, sessions_path=folder / "sessions")
    loader = ModelLoader(
        LoadRecords(folder / "models.json"),
        Staging(folder / "served", folder / "archives"),
        RecordingControl(),
        home=folder,
    )
    on_demand = OnDemand(loader, Catalog(str(box.repository), folder), folder)
    planes = {
        "one repository": model_routes.listing(box),
        "multi-model": model_routes.loading(loader, {}),
        "on demand": model_routes.on_demand(on_demand, {}),
    }
    made: dict[str, Flask] = {
        "data": app.create(settings, box, models_of(clients), Calls(guard, folder=folder))
    }
    for name, blueprint in planes.items():
        made[name] = Flask(name)
        made[name].config["MAX_CONTENT_LENGTH"] = MAX_BODY_BYTES
        handle_errors(made[name])
        made[name].register_blueprint(blueprint)
    return made


#: Members of a dispatch request and of Hugging Face's form: what is before a value and what is behind.
FORMS = (
    *(('{"payload":', "}"), ("", ""), ('{"payload":"a","x":', "}"), ('{"payload":{"x":', "}}")),
    *(('{"payload":"a","version":', "}"), ('{"payload":"a","parameters":', "}"), ('{"inputs":', "}")),
    *(('{"inputs":["a"],"parameters":', "}"), ('{"inputs":"a","x":', "}")),
    ('{"inputs":"a","parameters":{"candidate_labels":', "}}"),
)
#: The values that stand for the others where they are read in the same way for every type.
USUAL = (
    "numbers",
    "texts",
    "lists",
    "objects with another key",
    "keys",
    "a long key",
    "levels",
    "four levels of a number",
)


def fields_of(client: Client) -> Iterator[tuple[str, str]]:
    """Yield what is around a value in each field of a client's payload and parameters."""
    kind = client.payload
    names = [key for name, info in kind.model_fields.items() for key in keys_of(name, info)]
    yield from ((f'{{"payload":{{"{name}":', "}}") for name in names if name != "parameters")
    yield from (
        (f'{{"payload":"a","parameters":{{"{name}":', "}}") for name in sorted({*kind.parameter_names(), "x"})
    )


def client_cases(clients: dict[str, Client]) -> Iterator[Case]:
    """Yield each case of a client's types, and of the forms of search."""
    for name, client in clients.items():
        path = f"/invocations?modelname={name}"
        for place in FORMS:
            yield from (Case(path, JSON, place, value) for value in USUAL if value != "texts")
        for place in fields_of(client):
            yield from (Case(path, JSON, place, value) for value in VALUES)
        for kind in (JSON_LINES, *client.payload.content_types):
            yield from (Case(path, kind, ("", ""), value) for value in VALUES if "text" not in value)
            yield from (Case(path, kind, ("", ""), value) for value in LINES)
    for place in TABLES:
        yield from (Case("/invocations?modelname=tabular", JSON, place, value) for value in VALUES)
    for path in dict.fromkeys(path for form in SEARCH for path in form.paths):
        yield from (Case(path, JSON, ("", ""), value) for value in VALUES)
        for form in (row.kind for row in SEARCH if path in row.paths):
            model = "sentence-embeddings" if issubclass(form, EmbeddingsForm) else "ranker"
            for name in (*form.model_fields, "x"):
                start = f'{{"model":"{model}","query":"a","{form.member}":["a"],"{name}":'
                values = USUAL if name == "x" else VALUES
                yield from (Case(path, JSON, (start, "}"), value) for value in values if may_be(name, value))


#: Rows as other servers take them.
TABLES = (
    *(('{"instances":', "}"), ('{"dataframe_records":', "}"), ('{"dataframe_split":', "}")),
    *(('{"dataframe_split":{"data":', "}}"), ('{"dataframe_split":{"data":[[1]],"columns":', "}}")),
    *(('{"inputs":{"x":', "}}"), ('{"payload":{"rows":[', "]}}"), ('{"payload":{"rows":[[1,2,3],', "]}}")),
)
#: Bodies in Triton's own protocol: what is before a value and what is behind.
TENSORS = (
    *(('{"inputs":', "}"), ('{"inputs":[', "]}"), ('{"id":', ',"inputs":[]}'), ('{"parameters":', "}")),
    *(('{"inputs":[{"name":"x","datatype":"FP32","shape":', ',"data":[1]}]}'), ('{"outputs":', "}")),
    *(('{"inputs":[{"name":"x","datatype":"FP32","shape":[1],"data":', "}]}"), ("", "")),
    ('{"inputs":[{"name":"x","datatype":"BYTES","shape":[1],"data":', "}]}"),
)
#: What is around a value in the bodies of a route, by the beginning of its path; all routes get the value alone.
PLACES: dict[str, tuple[tuple[str, str], ...]] = {
    "/v2/models/tabular/infer": TENSORS,
    "/v2/models/tabular/generate": (("", ""), ('{"text_input":', "}"), ('{"parameters":', "}")),
    "/models/TextPayload/versions": (('{"canary":', "}"), ('{"action":', "}"), ('{"x":', "}")),
    "/models/TextPayload/invoke": FORMS,
    "/models": (('{"model_name":', "}"), ('{"model_name":"a","url":', "}"), ('{"x":', "}")),
    "/endpoints": FORMS,
    websocket.PATH: FORMS,
}
#: Headers that lead a body another way.
WAYS = (
    (("Accept", EVENTS),),
    (("X-Amzn-SageMaker-Accept", EVENTS),),
    ((SESSION_HEADER, NEW),),
    ((SESSION_HEADER, "%session"),),
    ((SESSION_HEADER, "none"),),
)


def paths_of(rule: Rule) -> list[str]:
    """Return paths of a route."""
    if rule.rule.startswith("/v2/"):
        filled = (route.template.replace("{version}", "1") for route in v2_routes.ROUTES)
        return [re.sub(r"\{\w+\}", "tabular", path) for path in filled]
    return [re.sub(r"<\w+>", "TextPayload", rule.rule)]


def route_cases(planes: dict[str, Flask]) -> Iterator[Case]:
    """Yield each case of every route of the applications that may get a body."""
    for plane, application in planes.items():
        for rule in application.url_map.iter_rules():
            methods = {*(rule.methods or ())} & {"POST", "PUT", "PATCH", "DELETE"}
            if rule.websocket:
                methods = {"GET"}
            for method, path in itertools.product(sorted(methods), paths_of(rule)):
                query = "?modelname=TextPayload" if path.startswith(("/endpoints", websocket.PATH)) else ""
                found = next((PLACES[start] for start in PLACES if path.startswith(start)), ())
                for place in (("", ""), *found):
                    # Those of /v2 have no other way from here on, and a wrong method reads no body.
                    few = place in FORMS or (path.startswith("/v2") and not found)
                    values = tuple(VALUES) if not few else USUAL
                    if method not in ("GET", "POST") and rule.rule != "/models/<name>/versions":
                        values = USUAL[:1]
                    yield from (Case(path + query, JSON, place, value, (), method, plane) for value in values)


def way_cases() -> Iterator[Case]:
    """Yield each case of what a header leads another way: to a stream, or to a session and its commands."""
    path = "/invocations?modelname=TextPayload"
    for headers in WAYS:
        for place in (*FORMS, ('{"requestType":', "}")):
            yield from (Case(path, JSON, place, value, headers) for value in USUAL)


def may_be(name: str, value: str) -> bool:
    """False for what a request may say: the work for right texts is the model's."""
    return name not in ("documents", "texts", "input", "inputs", "query") or "text" not in value


class Cost(NamedTuple):
    """What a case took, for each MiB of its body."""

    case: Case
    #: Bytes of its body at most.
    size: int
    status: int
    #: Milliseconds of processor time: to read the body as JSON, which no answer can do without; and in all.
    reading: float
    milliseconds: float
    mebibytes: float
    answer: str

    @property
    def beyond_reading(self) -> float:
        return self.milliseconds - self.reading

    @property
    def is_dear(self) -> bool:
        return self.beyond_reading > MILLISECONDS or self.mebibytes > MEBIBYTES


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


def run_websocket(application: Flask, environ: dict[str, Any], body: bytes) -> tuple[int, bytes]:
    """Send a body as the one message of a WebSocket; return 101 and the answer's frame."""
    caller, served = socket.socketpair()
    head = bytes([0x80 | Opcode.TEXT, 0x80 | 127]) + len(body).to_bytes(8, "big") + bytes(4)
    close = bytes([0x80 | Opcode.CLOSE, 0x80 | 2]) + bytes(4) + CloseReason.NORMAL_CLOSURE.to_bytes(2, "big")
    answer = bytearray()

    def call() -> None:
        caller.sendall(head + body)
        answer.extend(caller.recv(1000))
        caller.sendall(close)
        while caller.recv(2**16):
            pass

    environ["gunicorn.socket"] = served
    caller.settimeout(60)
    with closing(caller):
        calling = threading.Thread(target=call)
        calling.start()
        with closing(served):  # as the server does, at which the caller's thread ends
            _, status, _ = run_wsgi_app(application, environ, buffered=True)
        calling.join()
    return int(status.split()[0]), bytes(answer)


HANDSHAKE = {
    "Upgrade": "websocket",
    "Connection": "Upgrade",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    "Sec-WebSocket-Version": "13",
}


@cache
def reading_of(body_of: tuple[tuple[str, str], str], size: int, is_csv: bool) -> float:
    """Return the milliseconds of processor time, for each MiB, that JSON or CSV takes to be read.

    That is to parse it, to let Python's garbage collector look at it once, and to drop it.
    """
    body = Case("", "", *body_of).body(size)

    def read() -> float:
        started = time.process_time()
        with suppress(ValueError):
            read = load_json(body)
            gc.collect(0)
            del read
        spent, started = time.process_time() - started, time.process_time()
        if is_csv:
            with suppress(ValueError, csv.Error):
                [*csv.reader(io.StringIO(body.decode()), strict=True)]
            return time.process_time() - started
        return spent

    return 1000 * MIB / len(body) * float(in_a_fork(read))


def measure(planes: dict[str, Flask], case: Case, size: int, again: bool = False) -> Cost:
    """Answer a case in a fork, and measure it; ``again``: also what reading its body takes now."""
    body, application = case.body(size), planes[case.plane]
    path, _, query = case.path.partition("?")
    is_websocket = case.method == "GET"

    def answer() -> tuple[int, float, int, str]:
        headers: dict[str, str] = dict(case.headers)
        if headers.get(SESSION_HEADER) == "%session":
            assert isinstance(application, Router) and application.flow.sessions
            headers[SESSION_HEADER] = application.flow.sessions.open("somebody").id
        environ = EnvironBuilder(
            path,
            query_string=query,
            method=case.method,
            data=None if is_websocket else body,
            content_type=None if is_websocket else case.content_type,
            headers=[*headers.items(), *(HANDSHAKE.items() if is_websocket else ())],
        ).get_environ()
        found: list[tuple[int, bytes]] = []

        def run() -> None:
            if is_websocket:
                found.append(run_websocket(application, environ, body))
            else:
                parts, status, _ = run_wsgi_app(application, environ)
                found.append((int(status.split()[0]), b"".join(parts)[:200]))

        started = time.process_time()
        peak = peak_of_process(run)
        ((status, text),) = found
        return status, time.process_time() - started, peak, text.decode(errors="replace")

    status, seconds, peak, text = in_a_fork(answer)
    scale = len(body) / MIB
    # Rows read CSV whatever the type says, but for an array.
    is_csv = case.content_type == CSV or case.content_type == NPY
    read = reading_of.__wrapped__ if again else reading_of
    reading = read((case.place, case.value), size, is_csv)
    return Cost(case, size, status, reading, 1000 * seconds / scale, peak / MIB / scale, text)


def costs(size: int, only: str = "", turns: int = 1) -> Iterator[Cost]:
    """Yield what each case costs, as it is measured; one that is dear in a part of its size, in the whole of it.

    A shorter body costs more for each MiB, as each answer takes some milliseconds whatever its request's size.

    Args:
        size: Bytes of a body.
        only: A part of the cases' text.
        turns: Measurements in whole size; the least counts.
    """
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        clients = {kind.__name__: reader_of(kind) for kind in payload_types()} | task_clients(folder)
        planes = applications(clients, folder)
        gc.freeze()  # as the box does before it starts a worker
        every = chain(client_cases(clients), route_cases(planes), way_cases())
        cases = [case for case in dict.fromkeys(every) if only in str(case)]
        for number, case in enumerate(cases):
            cost = measure(planes, case, size // PART)
            for _ in range(turns):
                if cost.is_dear:
                    again = measure(planes, case, size, again=True)
                    is_first = cost.size < size
                    cost = again if is_first else min(cost, again, key=lambda each: each.beyond_reading)
            if number % 500 == 0:
                sys.stderr.write(f"{number:,} of {len(cases):,} bodies\n")
            yield cost


def main() -> None:
    logging.getLogger().addHandler(logging.NullHandler())
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=float, default=1.0, help="MiB of each body")
    parser.add_argument("--only", default="", help="a part of the cases' text")
    parser.add_argument("--top", type=int, default=30)
    options = parser.parse_args()
    found = [*costs(int(options.size * MIB), options.only)]
    for name in ("beyond_reading", "mebibytes"):
        for cost in sorted(found, key=lambda cost: -getattr(cost, name))[: options.top]:
            case = f"{cost.case.path} {cost.case.content_type} {cost.case.place} {cost.case.value}"
            figures = f"{cost.milliseconds:8.1f} ms ({cost.reading:5.1f}) {cost.mebibytes:6.1f} MiB"
            sys.stdout.write(f"{figures} {cost.status} {case} {cost.answer[:70]!r}\n")
        sys.stdout.write(f"of {len(found)} cases\n")


if __name__ == "__main__":
    main()
