"""A proxy in front of moto that records what passes, and puts faults in between.

It also supplies what moto lacks: UpdateEndpoint, and endpoints that take their time or fail.
"""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

#: What only looks. All else changes the account.
LOOKING = ("Describe", "List", "Get", "Head", "Filter", "Invoke")


@dataclass
class Request:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def operation(self) -> str:
        """Its name in boto3's API; S3's have the method and the bucket or key."""
        if target := self.headers.get("x-amz-target"):
            return target.partition(".")[2]
        path = urlsplit(self.path).path
        if "/operation/" in path:
            return path.rpartition("/")[2]
        if "form-urlencoded" in self.headers.get("content-type", ""):
            return parse_qs(self.body.decode())["Action"][0]
        if path.startswith("/endpoints/"):
            return "InvokeEndpoint"
        kind = "Object" if path.strip("/").count("/") else "Bucket"
        return f"{self.method.title()}{kind}"

    @property
    def is_change(self) -> bool:
        return not self.operation.startswith(LOOKING)


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes


def error(status: int, code: str, message: str) -> Answer:
    """In the form of the JSON services, which most here are."""
    body = json.dumps({"__type": code, "message": message}).encode()
    return Answer(status, {"Content-Type": "application/x-amz-json-1.1", "x-amzn-ErrorType": code}, body)


def xml_error(status: int, code: str, message: str) -> Answer:
    """In S3's form."""
    body = f"<Error><Code>{code}</Code><Message>{message}</Message></Error>".encode()
    return Answer(status, {"Content-Type": "application/xml"}, body)


@dataclass
class Proxy:
    """``refused`` answers in moto's place, by operation; ``cut`` hangs up after moto has done it.

    ``states`` are what an endpoint that was made or updated is described with, one after the other; one that
    failed stays.
    ``kill`` is called when a change is done, before the caller hears of it; once for each operation.
    ``rolls_back``: an update changes nothing in the end.
    """

    moto: str
    address: str = ""
    changes: list[str] = field(default_factory=list)
    bodies: dict[str, Any] = field(default_factory=dict)
    refused: dict[str, Answer] = field(default_factory=dict)
    cut: set[str] = field(default_factory=set)
    states: list[dict[str, str] | Answer] = field(default_factory=list)
    kill: Callable[[], None] | None = None
    killed: set[str] = field(default_factory=set)
    rolls_back: bool = False

    def reset(self) -> None:
        self.changes, self.bodies, self.refused, self.cut, self.states = [], {}, {}, set(), []
        self.kill, self.killed, self.rolls_back = None, set(), False

    def answer(self, request: Request) -> Answer | None:
        """None: hang up."""
        operation = request.operation
        if operation in self.refused:
            return self.refused[operation]
        if operation == "UpdateEndpoint":
            answer = Answer(200, {}, b"{}") if self.rolls_back else self._update(request)
        else:
            answer = self._forward(request)
        begun = {"CreateEndpoint", "UpdateEndpoint"} & {*self.changes}
        if operation == "DescribeEndpoint" and answer.status == 200 and begun and self.states:
            state = self._state()
            if isinstance(state, Answer):
                return state
            answer.body = json.dumps({**json.loads(answer.body), **state}).encode()
        if operation == "DeleteEndpoint":
            self.states = []
        if request.is_change:
            self.changes.append(operation)
            if request.body.startswith(b"{"):
                self.bodies[operation] = json.loads(request.body)
            if self.kill and operation not in self.killed:
                self.killed.add(operation)
                self.kill()
                return None
        return None if operation in self.cut else answer

    def _state(self) -> dict[str, str] | Answer:
        state = self.states[0]
        has_failed = isinstance(state, dict) and state["EndpointStatus"] == "Failed"
        return state if has_failed else self.states.pop(0)

    def _forward(self, request: Request) -> Answer:
        upstream = http.client.HTTPConnection(self.moto, timeout=30)
        try:
            upstream.request(request.method, request.path, request.body, request.headers)
            answer = upstream.getresponse()
            dropped = {"connection", "transfer-encoding", "content-length", "server", "date"}
            headers = {name: value for name, value in answer.getheaders() if name.lower() not in dropped}
            if request.method == "HEAD":
                headers["Content-Length"] = answer.getheader("Content-Length") or "0"
            return Answer(answer.status, headers, answer.read())
        finally:
            upstream.close()

    def _update(self, request: Request) -> Answer:
        """Removed and made again with the new configuration, in the same account."""
        asked = json.loads(request.body)
        name = asked["EndpointName"]
        there = self._sagemaker(request, "DescribeEndpoint", {"EndpointName": name})
        tags = self._sagemaker(request, "ListTags", {"ResourceArn": there["EndpointArn"]})["Tags"]
        self._sagemaker(request, "DeleteEndpoint", {"EndpointName": name})
        made = {"EndpointName": name, "EndpointConfigName": asked["EndpointConfigName"], "Tags": tags}
        body = json.dumps(self._sagemaker(request, "CreateEndpoint", made)).encode()
        return Answer(200, {"Content-Type": "application/x-amz-json-1.1"}, body)

    def _sagemaker(self, request: Request, operation: str, asked: dict[str, Any]) -> dict[str, Any]:
        body = json.dumps(asked).encode()
        headers = {
            **request.headers,
            "x-amz-target": f"SageMaker.{operation}",
            "content-length": str(len(body)),
        }
        answer = self._forward(Request("POST", "/", headers, body))
        return dict(json.loads(answer.body)) if answer.body else {}


@contextmanager
def proxied(moto: str) -> Iterator[Proxy]:
    """A proxy in front of ``moto`` (host:port), on a free port."""
    proxy = Proxy(moto)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1  # an answer goes in one piece: the second would wait 40 ms for the first's receipt

        def handle_any(self) -> None:
            if self.headers.get("Expect"):
                self.send_response_only(100)
                self.end_headers()
                self.wfile.flush()
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            headers = {
                name.lower(): value for name, value in self.headers.items() if name.lower() != "expect"
            }
            answer = proxy.answer(Request(self.command, self.path, headers, body))
            if answer is None:
                self.close_connection = True
                return
            self.send_response(answer.status)
            for name, value in {"Content-Length": str(len(answer.body)), **answer.headers}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(answer.body)

        do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = handle_any

        def handle_expect_100(self) -> bool:
            return True  # answered above, once

        def handle(self) -> None:
            try:
                super().handle()
            except ConnectionError:
                """The caller was killed."""

        def log_message(self, *_: object) -> None:
            """Nothing: pytest's output is no log."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        proxy.address = f"127.0.0.1:{server.server_port}"
        yield proxy
        server.shutdown()
        thread.join()
