"""The container under test, and what is known of it."""

from __future__ import annotations

import json
import math
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import urlsplit

import pytest
import requests

JSON = "application/json"
PREFIX = "X-Amzn-SageMaker-"
#: A name that no server has by chance.
UNKNOWN_MODEL = "there-is-no-such-model"
#: How a reason to skip begins. By it the table tells what is missing from what could not be found out.
LACKS, CANNOT_TELL = "not there: ", "could not be asked: "
#: The platform's own limit for a response.
ANSWER_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class ModelRequest:
    """The body, content type and headers of a request to a model."""

    body: bytes
    content_type: str = JSON
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Archive:
    """A model as the platform unpacks it.

    ``url`` is its folder as the container sees it, ``here`` the same folder as the tests see it.
    """

    name: str
    url: str
    here: Path

    @property
    def layout(self) -> str:
        """``a``: one model; ``b``: a folder for each model; empty for one that is not Triton's."""
        if (self.here / "config.pbtxt").exists():
            return "a"
        return "b" if any(self.here.glob("*/config.pbtxt")) else ""


@dataclass
class Container:
    """The container at ``url``. ``mode`` is single, mme or batch."""

    url: str
    mode: str = "single"
    #: Whether a missing feature fails the test (Trireme's own box) instead of skipping it.
    complete: bool = False
    model: str = ""
    given_request: ModelRequest | None = None
    archives: tuple[Archive, ...] = ()

    @property
    def address(self) -> tuple[str, int]:
        parts = urlsplit(self.url)
        return parts.hostname or "127.0.0.1", parts.port or (443 if parts.scheme == "https" else 80)

    def request(self, method: str, path: str, **options: Any) -> requests.Response:
        """Send a request on a new connection. ``options`` are those of ``requests.request``."""
        return requests.request(method, f"{self.url}{path}", **{"timeout": ANSWER_TIMEOUT_S, **options})

    def post(self, path: str, request: ModelRequest, **options: Any) -> requests.Response:
        headers = {"Content-Type": request.content_type, **request.headers, **options.pop("headers", {})}
        return self.request("POST", path, data=request.body, headers=headers, **options)

    def invoke(self, request: ModelRequest, **options: Any) -> requests.Response:
        return self.post("/invocations", request, **options)

    def connect(self, timeout: float = 10) -> socket.socket:
        return socket.create_connection(self.address, timeout=timeout)

    def cannot_tell(self, why: str, verdict: str = CANNOT_TELL) -> NoReturn:
        """End the test: whether the container keeps the promise cannot be found out, because of ``why``."""
        (pytest.fail if self.complete else pytest.skip)(f"{verdict}{why}")

    def expect(self, holds: object, what: str) -> None:
        """A promise beyond the platform's contract: the container is reported to lack it if it does not hold."""
        if not holds:
            self.cannot_tell(what, LACKS)

    def expect_refusal(self, response: requests.Response, status: int) -> None:
        """The response blames the caller; that it has this very status is a promise beyond the contract."""
        assert_refused(response)
        self.expect(response.status_code == status, f"it is a {response.status_code}, not a {status}")

    def error(self, response: requests.Response) -> dict[str, Any]:
        """The members of an error that is a JSON object; ends the test if it is not one."""
        try:
            members = response.json()
        except ValueError:
            members = None
        self.expect(isinstance(members, dict), "an error is not a JSON object")
        return dict(members)

    @cached_property
    def has_v2(self) -> bool:
        """Whether the container has Triton's own API."""
        return self.request("GET", "/v2/health/live").status_code == 200

    @cached_property
    def v2_model(self) -> str:
        """The model for v2 requests: the one given with --model, else the first that is ready, else empty."""
        if self.model or not self.has_v2:
            return self.model
        index = self.request("POST", "/v2/repository/index", data=b"{}").json()
        ready = [row["name"] for row in index if row.get("state") == "READY"]
        return ready[0] if ready else ""

    @cached_property
    def tensors_of_ones(self) -> dict[str, Any] | None:
        """A v2 request of ones for that model, if its metadata suffices to write one and it gets a 200."""
        if not self.v2_model or not self.has_v2:
            return None
        response = self.request("GET", f"/v2/models/{self.v2_model}")
        if response.status_code != 200:
            return None
        body = {"inputs": [ones(tensor) for tensor in response.json()["inputs"]]}
        inference = self.request("POST", f"/v2/models/{self.v2_model}/infer", json=body)
        return body if inference.status_code == 200 else None

    @cached_property
    def known_request(self) -> ModelRequest | None:
        """A request for ``/invocations`` that gets a 200, if there is one."""
        if self.given_request is not None or self.tensors_of_ones is None:
            return self.given_request
        return self.with_target_model(ModelRequest(json.dumps(self.tensors_of_ones).encode()))

    def with_target_model(self, request: ModelRequest) -> ModelRequest:
        """The same request with the platform's header that names the v2 model, if there is one."""
        if not self.v2_model:
            return request
        headers = {**request.headers, f"{PREFIX}Target-Model": self.v2_model}
        return ModelRequest(request.body, request.content_type, headers)

    def accepted_request(self) -> ModelRequest:
        """:attr:`known_request`; ends the test if there is none."""
        if self.known_request is None:
            self.cannot_tell("no request is known that this container answers: give one with --body")
        return self.known_request


def ones(tensor: Mapping[str, Any]) -> dict[str, Any]:
    """The tensor as a JSON input filled with ones. Open dimensions get the size 1."""
    shape = [max(1, size) for size in tensor["shape"]]
    value: object = {"BYTES": "1", "BOOL": True}.get(tensor["datatype"], 1)
    data = [value] * math.prod(shape)
    return {"name": tensor["name"], "datatype": tensor["datatype"], "shape": shape, "data": data}


def read_json(response: requests.Response) -> Any:
    """The body of a response that must be JSON, whatever its status."""
    assert response.headers.get("Content-Type", "").startswith(JSON), response.headers
    return response.json()


def assert_refused(response: requests.Response) -> None:
    """The response blames the caller: 4xx, no HTML, no traceback."""
    assert 400 <= response.status_code < 500, (response.status_code, response.text[:200])
    assert_not_html(response)


def assert_not_html(response: requests.Response) -> None:
    assert "html" not in response.headers.get("Content-Type", ""), "the response is HTML"
    assert "Traceback" not in response.text, "a traceback reaches the caller"


def find_archives(folders: str) -> Iterator[Archive]:
    """The archives below ``HERE[:THERE]``."""
    here, _, there = folders.partition(":")
    for model in sorted(Path(here).glob("*/model")) if here else ():
        name = model.parent.name
        yield Archive(name, f"{there or Path(here).absolute()}/{name}/model", model)
