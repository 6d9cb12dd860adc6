"""Random requests: valid ones for every route and form, and careless or malicious variants of them.

The same seed and number give the same bytes, so that a harmful request can be sent again.
"""

from __future__ import annotations

import base64
import io
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

from tests.support.faults.inputs import BINARY, JSON, LINES, TEXTS, pictures
from tests.support.load import dispatch_body

MODELS = ("resnet", "yolov5", "bert_base", "bert_base", "echo", "nobody", "")
METHODS = (
    *(
        "GET",
        "POST",
        "PUT",
        "PATCH",
        "DELETE",
        "HEAD",
        "OPTIONS",
        "TRACE",
        "CONNECT",
        "PROPFIND",
        "get",
        "G@T",
    ),
    "X" * 40,
)
PATHS = (
    *("/", "/ping", "/invocations", "/models", "/models/resnet", "/models/nobody", "/models/resnet/invoke"),
    *(
        "/metrics",
        "/openapi.json",
        "/execution-parameters",
        "/invocations-bidirectional-stream",
        "/favicon.ico",
    ),
    *("/endpoints/any/invocations", "/endpoints/any/invocations-response-stream", "/endpoints//invocations"),
    *("/v2", "/v2/health/ready", "/v2/health/live", "/v2/models/resnet", "/v2/models/resnet/config"),
    *(
        "/v2/models/resnet/stats",
        "/v2/models/echo/infer",
        "/v2/models/echo/generate",
        "/v2/models/nobody/infer",
    ),
    *(
        "/v2/models/echo/generate_stream",
        "/v2/models/echo/versions/1/infer",
        "/v2/models/echo/versions/9/infer",
    ),
    *("/v2/repository/index", "/v2/repository/models/resnet/unload", "/v2/logging", "/v2/trace/setting"),
    *("/v2/systemsharedmemory/status", "/v2/systemsharedmemory/region/x/register", "/v2//x", "//", "/%00"),
    *("/../../etc/passwd", "/invocations/..%2f..%2fetc%2fpasswd", "/invocations%20", "/%ff%fe", "/a" * 300),
    *("http://elsewhere/invocations", "*", "/invocations#part", "/invocations?%zz", "/models?limit=-1", "/é"),
    *("/models?next_page_token=%00", "/invocations?modelname=resnet&modelname=yolov5", "/invocations;x=1"),
)
TYPES = (
    *(JSON, LINES, "text/plain", "image/jpeg", "image/png", "image/webp", "application/x-npy", "text/csv"),
    *("application/octet-stream", "multipart/form-data", "application/x-www-form-urlencoded", "", "x"),
    *("a/b;c=\xff", "application/json; charset=x"),
    *(BINARY.format(size) for size in (10, -1, "x", 10**20)),
)
HEADERS: tuple[tuple[str, Sequence[str]], ...] = (
    (
        "Accept",
        ("*/*", "image/png", "text/event-stream", "application/x-npy", "application/xml", "", "q=;,", ";"),
    ),
    (
        "X-Amzn-SageMaker-Custom-Attributes",
        ("modelname=resnet", "version=9", "=;=", "a=b;c", "\xe9=\xff", ";" * 99),
    ),
    ("X-Amzn-SageMaker-Target-Model", ("yolov5", "nobody", "../x", "", "a/b.tar.gz", "\xff")),
    ("X-Amzn-SageMaker-Session-Id", ("NEW_SESSION", "no-such-session", "../..", "x" * 300, "")),
    ("X-Amzn-SageMaker-Inference-Id", ("id-1", "x" * 5000, "\xff", "a b", "\x01")),
    ("X-Amzn-Trace-Id", ("Root=1-5759e988-bd862e3fe1be46a994272793", "x y z", "", "\x7f")),
    ("Content-Encoding", ("gzip", "deflate", "br", "identity", "gzip, gzip", "\xff")),
    ("Expect", ("100-continue", "200-ok")),
    ("Inference-Header-Content-Length", ("0", "10", "-1", "x", "99999999999999999999")),
    ("Range", ("bytes=0-1", "bytes=-")),
    ("Host", ("", "a b", "elsewhere:99999", "x" * 300)),
    ("Cookie", ("x" * 9000, "a=b")),
    ("X-Forwarded-For", ("127.0.0.1", "\xff")),
    ("Upgrade", ("websocket", "h2c")),
    ("Connection", ("upgrade", "keep-alive", "close, close", "Content-Length")),
    ("Bad Name", ("x",)),
    ("Céleste", ("x",)),
    ("", ("no name",)),
)
#: Values to put where a number, a text or an object is expected.
ODD_VALUES: tuple[Any, ...] = (
    *(None, True, 0, -1, 10**400, 1e308, "", "\x00", "é" * 50, "x" * 5000, "/9j/"),
    *([], {}, [[]], [None], {"a": {"b": []}}, ["a"] * 50),
    *({"image": 1}, {"image": "%%%"}, {"text": ["a"]}, {"text": ""}, {"s3_uri": "s3://a/b"}),
)
#: A Content-Length above the box's limit.
TOO_LARGE_BYTES = 30 * 10**6
MAX_MUTATIONS = 6
#: The shares of mutated bodies and pictures, of odd payloads, and of odd members of a JSON object.
MUTATED_SHARE, ODD_PAYLOAD_SHARE, ODD_MEMBER_SHARE = 0.35, 0.15, 0.04
PICTURES = tuple(pictures(3))


@dataclass(frozen=True)
class RandomRequest:
    """The bytes of a request. ``complete``: it is a whole HTTP request, so the server must answer."""

    form: str
    method: str
    path: str
    content: bytes
    complete: bool = True


def draw_request(seed: int, number: int) -> RandomRequest:
    choice = random.Random(f"{seed}:{number}")
    form = choice.choices(list(FORMS), [weight for weight, _ in FORMS.values()])[0]
    return FORMS[form][1](choice, form)


def assemble(
    choice: random.Random,
    form: str,
    path: str,
    body: bytes = b"",
    content_type: str | None = JSON,
    method: str = "POST",
    headers: Sequence[tuple[str, str]] = (),
) -> RandomRequest:
    """Return a request with its true length. One in four has odd headers too."""
    lines = [("Host", "box"), ("Connection", "close"), *headers]
    if content_type is not None:
        lines.append(("Content-Type", content_type))
    if choice.random() < 0.25:
        lines += [odd_header(choice) for _ in range(choice.randint(1, 3))]
    if body or method in ("POST", "PUT", "PATCH"):
        lines.append(("Content-Length", str(len(body))))
    return RandomRequest(form, method, path, head(method, path, lines) + body)


def head(method: str, path: str, headers: Sequence[tuple[str, str]]) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers), "", ""]
    return "\r\n".join(lines).encode("latin-1")


def odd_header(choice: random.Random) -> tuple[str, str]:
    name, values = choice.choice(HEADERS)
    return name, choice.choice(values)


def mutate(choice: random.Random, content: bytes) -> bytes:
    """Change, remove, double or insert some bytes."""
    changed = bytearray(content)
    for _ in range(choice.randint(1, MAX_MUTATIONS)):
        place = choice.randrange(len(changed) + 1)
        length = choice.choice((1, 1, 2, 8, 100))
        what = choice.randrange(4)
        if what == 0:
            changed[place : place + length] = choice.randbytes(length)
        elif what == 1:
            del changed[place : place + length]
        elif what == 2:
            changed[place:place] = changed[place : place + length]
        else:
            changed[place:place] = choice.choice(
                (b"{", b"]", b'"', b"\\u0000", b"\xff", b"9" * 30, b"\n", b"NaN")
            )
    return bytes(changed)


def mutate_sometimes(choice: random.Random, content: bytes) -> bytes:
    return mutate(choice, content) if choice.random() < MUTATED_SHARE else content


def payload(choice: random.Random, model: str) -> Any:
    if choice.random() < ODD_PAYLOAD_SHARE:
        return choice.choice(ODD_VALUES)
    if model == "bert_base":
        return {"text": choice.choice(TEXTS)}
    return {"image": base64.b64encode(mutate_sometimes(choice, choice.choice(PICTURES))).decode()}


def dispatch_object(choice: random.Random) -> dict[str, Any]:
    model = choice.choice(MODELS)
    message: dict[str, Any] = {"modelname": model, "payload": payload(choice, model)}
    if choice.random() < 0.2:
        message["payload"] = [payload(choice, model) for _ in range(choice.randint(0, 5))]
    for name in ("version", "parameters", "modelname", "payload", "result_s3_uri", "requestType"):
        if choice.random() < ODD_MEMBER_SHARE:
            message[name] = choice.choice(ODD_VALUES)
        if choice.random() < ODD_MEMBER_SHARE / 2:
            message.pop(name, None)
    return message


def dispatch_json(choice: random.Random, form: str) -> RandomRequest:
    return assemble(choice, form, "/invocations", mutate_sometimes(choice, to_json(dispatch_object(choice))))


def raw_body(choice: random.Random, form: str) -> RandomRequest:
    kind = choice.choice(("image/jpeg", "image/png", "image/webp", "text/plain", "application/x-npy"))
    if kind == "text/plain":
        body = choice.choice((*TEXTS, "", "x" * 100_000)).encode()
    elif kind == "application/x-npy":
        stream = io.BytesIO()
        np.save(
            stream, np.zeros(choice.choice(((2, 2), (0,), (3, 8, 8))), choice.choice(("u1", "f4", "O", "U3")))
        )
        body = stream.getvalue()
    else:
        stream = io.BytesIO()
        with Image.open(io.BytesIO(choice.choice(PICTURES))) as picture:
            picture.save(stream, kind.removeprefix("image/"))
        body = stream.getvalue()
    if choice.random() < 0.2:
        body = body[: choice.randrange(len(body) + 1)]
    query = choice.choice(
        ("", "?modelname=resnet", "?modelname=yolov5&format=image", "?modelname=bert_base&top=-1")
    )
    content_type = kind if choice.random() < 0.8 else choice.choice(TYPES)
    return assemble(choice, form, f"/invocations{query}", mutate_sometimes(choice, body), content_type)


def v2_object(choice: random.Random) -> dict[str, Any]:
    tensor: dict[str, Any] = {"name": "x", "datatype": "FP32", "shape": [1, 3], "data": [1.5, 2.5, 3.5]}
    for name in tensor:
        if choice.random() < 0.15:
            tensor[name] = choice.choice(
                (*ODD_VALUES, "y", "INT64", "BYTES", [3], [1, -1], [2**40, 2**40], [1, "a"])
            )
    message: dict[str, Any] = {"inputs": [tensor]}
    if choice.random() < 0.2:
        message["outputs"] = choice.choice((*ODD_VALUES, [{"name": "y"}], [{"name": "nobody"}]))
    if choice.random() < 0.1:
        message["parameters"] = choice.choice((*ODD_VALUES, {"binary_data_output": True}, {"sequence_id": 1}))
    if choice.random() < 0.1:
        message["id"] = choice.choice(ODD_VALUES)
    return message


def v2_json(choice: random.Random, form: str) -> RandomRequest:
    path = choice.choice(
        ("/invocations?modelname=echo", "/v2/models/echo/infer", "/v2/models/echo/versions/1/infer")
    )
    return assemble(choice, form, path, mutate_sometimes(choice, to_json(v2_object(choice))))


def v2_binary(choice: random.Random, form: str) -> RandomRequest:
    data = np.arange(3, dtype=np.float32).tobytes()
    message = v2_object(choice)
    tensor = message["inputs"][0]
    tensor.pop("data", None)
    tensor["parameters"] = {"binary_data_size": choice.choice((12, 12, 12, 0, -1, 10**12, "x"))}
    start = to_json(message)
    size = choice.choice((len(start), len(start), len(start), 0, len(start) + 1, -1, 10**9))
    body = mutate_sometimes(choice, start + data)
    if choice.random() < 0.5:
        return assemble(choice, form, "/invocations?modelname=echo", body, BINARY.format(size))
    length = [("Inference-Header-Content-Length", str(size))]
    return assemble(choice, form, "/v2/models/echo/infer", body, "application/octet-stream", headers=length)


def json_lines(choice: random.Random, form: str) -> RandomRequest:
    lines = [
        to_json(choice.choice((dispatch_object, v2_object))(choice))
        if choice.random() < 0.7
        else to_json(choice.choice(ODD_VALUES))
        for _ in range(choice.randint(0, 4))
    ]
    query = choice.choice(("", "?modelname=bert_base", "?modelname=echo"))
    return assemble(choice, form, f"/invocations{query}", mutate_sometimes(choice, b"\n".join(lines)), LINES)


def generate(choice: random.Random, form: str) -> RandomRequest:
    model = choice.choice(MODELS)
    body = choice.choice(({"text_input": "a"}, {"x": [1, 2]}, {"x": 1.5}, choice.choice(ODD_VALUES)))
    path = f"/v2/models/{model}/{choice.choice(('generate', 'generate_stream'))}"
    return assemble(choice, form, path, mutate_sometimes(choice, to_json(body)))


def models(choice: random.Random, form: str) -> RandomRequest:
    method = choice.choice(("GET", "POST", "DELETE"))
    path = choice.choice(
        ("/models", "/models/resnet", "/models/resnet/invoke", "/models/..", "/models/%2e%2e")
    )
    message = {
        "model_name": choice.choice(MODELS),
        "url": choice.choice(("/opt/ml/models/x", "/proc/self", "x")),
    }
    return assemble(choice, form, path, mutate_sometimes(choice, to_json(message)), method=method)


def endpoints(choice: random.Random, form: str) -> RandomRequest:
    suffix = choice.choice(("invocations", "invocations-response-stream", "invocations-x", ""))
    name = choice.choice(("any", "%2f", "a" * 200, "%c3%a9"))
    accept = [("X-Amzn-SageMaker-Accept", choice.choice(("*/*", "text/event-stream", "\xff")))]
    body = mutate_sometimes(choice, to_json(dispatch_object(choice)))
    return assemble(choice, form, f"/endpoints/{name}/{suffix}", body, headers=accept)


def websocket(choice: random.Random, form: str) -> RandomRequest:
    headers = [
        ("Upgrade", choice.choice(("websocket", "WebSocket", "h2c"))),
        ("Sec-WebSocket-Key", choice.choice(("dGhlIHNhbXBsZSBub25jZQ==", "x", ""))),
        ("Sec-WebSocket-Version", choice.choice(("13", "13", "8", "x"))),
    ]
    lines = [("Host", "box"), ("Connection", "Upgrade"), *headers]
    sent_headers = [line for line in lines if choice.random() < 0.95]
    path = "/invocations-bidirectional-stream"
    frames = choice.randbytes(choice.randint(0, 60)) if choice.random() < 0.7 else b""
    return RandomRequest(form, "GET", path, head("GET", path, sent_headers) + frames)


def odd_method(choice: random.Random, form: str) -> RandomRequest:
    method = choice.choice(METHODS)
    body = b"{}" if choice.random() < 0.3 else b""
    return assemble(choice, form, choice.choice(PATHS), body, JSON if body else None, method)


def odd_header_request(choice: random.Random, form: str) -> RandomRequest:
    headers = [odd_header(choice) for _ in range(choice.choice((1, 2, 5, 60)))]
    body = dispatch_body("bert_base", {"text": choice.choice(TEXTS)})
    return assemble(choice, form, choice.choice(PATHS), body, choice.choice(TYPES), headers=headers)


def odd_length(choice: random.Random, form: str) -> RandomRequest:
    """Return a request with a wrong, missing or contradictory length."""
    body = dispatch_body("bert_base", {"text": choice.choice(TEXTS)})
    length_headers = choice.choice(
        (
            [("Content-Length", str(len(body) + 10))],
            [("Content-Length", str(TOO_LARGE_BYTES))],
            [("Content-Length", str(len(body) - 5))],
            [("Content-Length", choice.choice(("-1", "x", "1e3", "+5", "99999999999999999999999")))],
            [("Content-Length", str(len(body))), ("Content-Length", "3")],
            [("Content-Length", "3"), ("Transfer-Encoding", "chunked")],
            [("Transfer-Encoding", choice.choice(("gzip", "chunked, chunked", "x", "identity")))],
            [],
        )
    )
    path = choice.choice(("/invocations", "/v2/models/echo/infer", "/models", "/endpoints/any/invocations"))
    lines = [("Host", "box"), ("Connection", "close"), ("Content-Type", JSON), *length_headers]
    return RandomRequest(form, "POST", path, head("POST", path, lines) + body, complete=False)


def chunked(choice: random.Random, form: str) -> RandomRequest:
    body = dispatch_body("bert_base", {"text": choice.choice(TEXTS)})
    part = choice.randint(1, len(body))
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in (body[:part], body[part:]) if piece)
    lines = [
        ("Host", "box"),
        ("Connection", "close"),
        ("Content-Type", JSON),
        ("Transfer-Encoding", "chunked"),
    ]
    start = head("POST", "/invocations", lines)
    if choice.random() < 0.5:
        return RandomRequest(form, "POST", "/invocations", start + chunks + b"0\r\n\r\n")
    return RandomRequest(
        form, "POST", "/invocations", start + mutate(choice, chunks + b"0\r\n\r\n"), complete=False
    )


def truncated(choice: random.Random, form: str) -> RandomRequest:
    complete_request = choice.choice((dispatch_json, raw_body, v2_binary, json_lines))(choice, form)
    end = choice.randrange(len(complete_request.content))
    return RandomRequest(
        form, complete_request.method, complete_request.path, complete_request.content[:end], complete=False
    )


def garbage(choice: random.Random, form: str) -> RandomRequest:
    content = choice.choice(
        (
            choice.randbytes(choice.randint(1, 400)),
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # the beginning of a TLS handshake
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            b"GET /ping\r\n\r\n",
            b"GET /ping HTTP/9.9\r\n\r\n",
            b"POST /invocations HTTP/1.1\r\n" + b"A" * 70_000,
            mutate(choice, odd_method(choice, form).content),
        )
    )
    return RandomRequest(form, "?", "?", content, complete=False)


def to_json(value: Any) -> bytes:
    return json.dumps(value).encode()


#: The forms of requests, each with its weight and the function that draws one.
FORMS: dict[str, tuple[int, Callable[[random.Random, str], RandomRequest]]] = {
    "dispatch JSON": (16, dispatch_json),
    "raw bodies": (12, raw_body),
    "v2 JSON": (10, v2_json),
    "v2 binary": (10, v2_binary),
    "JSON lines": (6, json_lines),
    "generate": (4, generate),
    "/models": (5, models),
    "/endpoints": (6, endpoints),
    "WebSocket handshakes": (4, websocket),
    "odd methods and paths": (10, odd_method),
    "odd headers": (8, odd_header_request),
    "odd lengths": (4, odd_length),
    "chunked": (4, chunked),
    "truncated": (5, truncated),
    "garbage": (4, garbage),
}
