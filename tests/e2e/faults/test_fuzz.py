"""Odd requests for every route and in every form harm neither the box nor the next caller.

JSON of a wrong shape is what tests/integration/openapi/test_fuzz.py generates; here it is the bytes that are odd.

The same seed and number give the same bytes: a finding names both.
"""

from __future__ import annotations

import base64
import contextlib
import io
import json
import random
import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from itertools import chain
from typing import Any

import numpy as np
from PIL import Image

from tests.e2e.faults import FULL, SEED
from tests.support.boxes import RunningBox
from tests.support.faults.attack import all_processes
from tests.support.faults.callers import RIGHT, Callers
from tests.support.faults.inputs import BINARY, JSON, LINES, TEXTS, Sample, pictures
from tests.support.hostile_pictures import encode
from tests.support.npy_bodies import encode_npy

REQUESTS, CALLERS = 10_000 if FULL else 400, 4
#: One request in so many is a valid one whose answer is checked.
REQUESTS_PER_GOLDEN_ANSWER = 25
#: A complete request without an answer for so long is a hang. No request here takes nearly as long.
HANG_S = 20.0
MODELS = ("resnet", "yolov5", "bert_base", "echo", "nobody", "")
PICTURE = pictures(1)[0]
ENCODED = base64.b64encode(PICTURE).decode()
TENSOR: dict[str, Any] = {"name": "x", "datatype": "FP32", "shape": [1, 3], "data": [1.5, 2.5, 3.5]}
SOCKET = "/invocations-bidirectional-stream"
HANDSHAKE = (
    *(("Connection", "Upgrade"), ("Upgrade", "websocket"), ("Sec-WebSocket-Version", "13")),
    ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
)


@dataclass(frozen=True)
class Request:
    path: str
    body: bytes = b""
    content_type: str = JSON
    method: str = "POST"
    headers: tuple[tuple[str, str], ...] = ()


def to_json(value: Any) -> bytes:
    return json.dumps(value).encode()


NPY = encode_npy(np.zeros((3, 8, 8), "u1"))
PNG = encode(Image.open(io.BytesIO(PICTURE)), "PNG")


def binary(path: str) -> Request:
    """A v2 request whose tensor follows its JSON, by SageMaker's content type or by Triton's header."""
    data = np.arange(3, dtype=np.float32).tobytes()
    tensor = {**TENSOR, "parameters": {"binary_data_size": len(data)}}
    start = to_json({"inputs": [{name: value for name, value in tensor.items() if name != "data"}]})
    if path.startswith("/invocations"):
        return Request(path, body=start + data, content_type=BINARY.format(len(start)))
    size = (("Inference-Header-Content-Length", str(len(start))),)
    return Request(path, body=start + data, content_type="application/octet-stream", headers=size)


def valid_request(choice: random.Random) -> Request:
    """Draw a request as a well-meaning caller sends it."""
    model, text = choice.choice(MODELS), choice.choice(TEXTS)
    payload = {"text": text} if model == "bert_base" else {"image": ENCODED}
    dispatch = to_json({"modelname": model, "payload": choice.choice((payload, [payload] * 3))})
    v2 = to_json({"inputs": [TENSOR], "outputs": [{"name": "y"}], "parameters": {"timeout": 0}, "id": "a"})
    lines = b"\n".join((dispatch, to_json({"text": text}), v2))
    flat, load = to_json({"x": 1.5}), to_json({"model_name": model, "url": "/opt/ml/models/x"})
    return choice.choice(
        (
            Request("/invocations", dispatch),
            Request("/endpoints/any/invocations", dispatch),
            Request("/endpoints/any/invocations-response-stream", dispatch),
            Request("/invocations?modelname=resnet&top=2", body=PICTURE, content_type="image/jpeg"),
            Request("/invocations?modelname=yolov5&format=image", body=PNG, content_type="image/png"),
            Request("/invocations?modelname=bert_base", body=text.encode(), content_type="text/plain"),
            Request("/invocations?modelname=resnet", body=NPY, content_type="application/x-npy"),
            Request("/invocations?modelname=bert_base", body=lines, content_type=LINES),
            *(Request(path, v2) for path in ("/invocations?modelname=echo", "/v2/models/echo/infer")),
            *(binary(path) for path in ("/invocations?modelname=echo", "/v2/models/echo/infer")),
            *(Request(f"/v2/models/{model}/{verb}", flat) for verb in ("generate", "generate_stream")),
            Request("/models", load),
            *(Request(path, method="GET") for path in PATHS[:12]),
            Request(SOCKET, body=choice.randbytes(60), method="GET", headers=HANDSHAKE),
        )
    )


METHODS = (
    "GET",
    "POST",
    "PUT",
    "PATCH",
    "DELETE",
    "HEAD",
    "OPTIONS",
    "TRACE",
    "CONNECT",
    "get",
    "G@T",
    "X" * 40,
)
PATHS = (
    *(
        SOCKET,
        "/",
        "/ping",
        "/models",
        "/models/resnet",
        "/metrics",
        "/openapi.json",
        "/execution-parameters",
    ),
    *("/v2", "/v2/health/ready", "/v2/models/resnet/config", "/v2/repository/index", "/v2/logging"),
    *("/v2/systemsharedmemory/region/x/register", "/v2/models/echo/versions/9/infer"),
    *("/endpoints//invocations", "//", "/%00", "/../ping", "/invocations/..%2fping"),
    *("/%ff%fe", "/a" * 300, "/é", "http://elsewhere/invocations", "*", "/invocations#part"),
    *("/invocations?%zz", "/models?limit=-1", "/models?next_page_token=%00"),
    *("/invocations?modelname=resnet&modelname=yolov5", "/invocations;x=1"),
)
HEADERS: tuple[tuple[str, Sequence[str]], ...] = (
    ("Accept", ("*/*", "image/png", "text/event-stream", "application/x-npy", "", "q=;,")),
    ("Content-Type", ("text/csv", "", "x", "a/b;c=\xff")),
    ("Content-Type", [BINARY.format(size) for size in (-1, "x", 10**6)]),
    ("X-Amzn-SageMaker-Custom-Attributes", ("modelname=resnet", "=;=", "\xe9=\xff", ";" * 99)),
    ("X-Amzn-SageMaker-Target-Model", ("yolov5", "nobody", "../x", "", "\xff")),
    ("X-Amzn-SageMaker-Session-Id", ("NEW_SESSION", "no-such-session", "../..", "x" * 300)),
    ("X-Amzn-SageMaker-Inference-Id", ("id-1", "x" * 5000, "\xff", "\x01")),
    ("X-Amzn-Trace-Id", ("Root=1-5759e988-bd862e3fe1be46a994272793", "x y z", "\x7f")),
    ("Content-Encoding", ("gzip", "deflate", "br", "identity", "\xff")),
    ("Expect", ("100-continue", "200-ok")),
    ("Inference-Header-Content-Length", ("0", "+5", "5 ", "1000000")),
    ("Host", ("", "a b", "x" * 300)),
    ("Cookie", ("x" * 9000, "a=b")),
    ("Upgrade", ("websocket", "h2c")),
    ("Connection", ("upgrade", "keep-alive", "Content-Length")),
    *(("Bad Name", ("x",)), ("Céleste", ("x",)), ("", ("no name",))),
)
BYTES = (b"{", b"]", b'"', b"\\u0000", b"\xff", b"9", b"\n", b"NaN")
LENGTHS: tuple[tuple[tuple[str, str], ...], ...] = (
    *((("Content-Length", value),) for value in ("-1", "x", "1e3", "+5", "9" * 23, str(30 * 10**6))),
    (("Content-Length", "3"), ("Content-Length", "4")),
    (("Content-Length", "3"), ("Transfer-Encoding", "chunked")),
    *((("Transfer-Encoding", value),) for value in ("gzip", "chunked, chunked", "x", "identity")),
    (),
)
GARBAGE = (
    *(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    *(b"GET /ping\r\n\r\n", b"GET /ping HTTP/9.9\r\n\r\n", b"POST / HTTP/1.1\r\n" + b"A" * 70_000),
)
#: What is odd about a request, and how often.
KINDS = ("nothing", "body", "headers", "line", "length", "chunks", "end", "all")
SHARES = (2, 6, 3, 3, 1, 2, 2, 1)


def mutate(choice: random.Random, content: bytes) -> bytes:
    """Change, remove, double or insert some bytes."""
    changed = bytearray(content)
    for _ in range(choice.randint(1, 6)):
        at, length = choice.randrange(len(changed) + 1), choice.choice((1, 1, 2, 8, 100))
        part = changed[at : at + length]
        changed[at : at + length] = choice.choice((choice.randbytes(length), b"", part * 2))
        changed[at:at] = choice.choice((b"", *BYTES))
    return bytes(changed)


def draw(seed: int, number: int) -> tuple[str, str, bytes]:
    """Return what is odd about a request, its method and its bytes."""
    choice = random.Random(f"{seed}:{number}")
    kind = choice.choices(KINDS, SHARES)[0]
    request = valid_request(choice)
    body = request.body
    if kind == "body":
        body = mutate(choice, body)
    method, path = request.method, request.path
    if kind == "line":
        method, path = choice.choice(METHODS), choice.choice(PATHS)
    headers = [("Host", "box"), ("Content-Type", request.content_type), *request.headers]
    if not request.headers:
        headers.append(("Connection", "close"))
    if kind == "headers":
        odd = [choice.choice(HEADERS) for _ in range(choice.choice((1, 2, 5, 60)))]
        headers += [(name, choice.choice(values)) for name, values in odd]
    if kind == "length":
        headers += choice.choice(LENGTHS)
    elif kind == "chunks":
        headers.append(("Transfer-Encoding", "chunked"))
        body = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body) if body else b"0\r\n\r\n"
    elif method != "GET" and request.path != SOCKET:
        headers.append(("Content-Length", str(len(body))))
    head = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers), "", ""]
    content = "\r\n".join(head).encode("latin-1") + body
    if kind == "end":
        content = content[: choice.randrange(len(content))]
    elif kind == "all":
        content = choice.choice((*GARBAGE, choice.randbytes(300), mutate(choice, content)))
    return kind, method, content


def send(port: int, method: str, content: bytes, complete: bool) -> tuple[int, bytes]:
    """Return status and body of the answer; status 0: connection closed without one, -1: a hang."""
    with socket.create_connection(("127.0.0.1", port), timeout=HANG_S) as connection:
        # A server may respond and close before it has read the whole request.
        with contextlib.suppress(ConnectionError):
            connection.sendall(content)
            if not complete:
                connection.shutdown(socket.SHUT_WR)
        response = HTTPResponse(connection, method=method)
        try:
            response.begin()
            return response.status, b"" if response.status == 101 else response.read()
        except TimeoutError:
            return -1, b""
        except (OSError, HTTPException, ValueError):
            return 0, b""


def finding(port: int, number: int) -> str:
    """Send the request of this number; return what is wrong with its answer, or nothing."""
    kind, method, content = draw(SEED, number)
    complete = kind in ("nothing", "body")
    status, body = send(port, method, content, complete)
    is_answered = status > 0 or (status == 0 and not complete)
    # HTTP prescribes these for an unknown method, transfer coding or version.
    is_server_error = status >= 500 and (complete or status not in (501, 505))
    has_shape = status < 400 or method == "HEAD" or is_error(body)
    is_html = status >= 300 and b"<html" in body.lower()
    if is_answered and not is_server_error and has_shape and not is_html:
        return ""
    return f"{number}, {kind}: {status} {body[:200]!r} to {content[:100]!r}"


def is_error(body: bytes) -> bool:
    """Return true if the body, or each of its lines, has the box's error shape or that of SageMaker's runtime."""
    with contextlib.suppress(ValueError):
        found = [json.loads(body)] if body[:1] != b"{" or b"}\n{" not in body else body.splitlines()
        rows = [json.loads(row) if isinstance(row, bytes) else row for row in found]
        return bool(rows) and all({"error", "code"} <= set(row) or "OriginalMessage" in row for row in rows)
    return False


def test_odd_requests_get_client_errors_and_harm_nobody(box: RunningBox, samples: list[Sample]) -> None:
    before = all_processes(box)

    def send_one(number: int) -> list[str]:
        findings = [found] if (found := finding(box.port, number)) else []
        if number % REQUESTS_PER_GOLDEN_ANSWER:
            return findings
        sample = random.Random(number).choice(samples)
        golden = Callers(box.port, [sample], 1, HANG_S, limit=1).start().join()
        return findings if golden.outcomes() == {RIGHT: 1} else [*findings, f"{number}: {golden.details}"]

    with ThreadPoolExecutor(CALLERS) as callers:
        findings = list(chain.from_iterable(callers.map(send_one, range(REQUESTS))))
    assert not findings
    assert set(before) <= set(all_processes(box)), "a process ended"
    assert box.ping()[0] == 200
