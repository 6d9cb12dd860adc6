"""The container that is asked, and what is known of it."""

from __future__ import annotations

import json
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
#: How a reason to skip begins: the table tells by it what is not there from what nobody could find out.
LACKS, UNASKED = "not there: ", "could not be asked: "
#: Seconds that an answer may take: the platform's own.
ANSWER_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Question:
    """A request of which the caller of these tests says, or we know, that it gets a 200."""

    body: bytes
    content_type: str = JSON
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Archive:
    """A model as the platform unpacks it: ``url`` is its folder as the container sees it, ``here`` as we do."""

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
    """Whoever answers at ``url``. ``mode`` is single, mme or batch."""

    url: str
    mode: str = "single"
    #: Our own box has to have everything: what would be a gap elsewhere is a failure.
    complete: bool = False
    model: str = ""
    given: Question | None = None
    archives: tuple[Archive, ...] = ()

    @property
    def address(self) -> tuple[str, int]:
        parts = urlsplit(self.url)
        return parts.hostname or "127.0.0.1", parts.port or (443 if parts.scheme == "https" else 80)

    def ask(self, method: str, path: str, **options: Any) -> requests.Response:
        """One request on a connection of its own; ``options`` are those of ``requests``."""
        return requests.request(method, f"{self.url}{path}", **{"timeout": ANSWER_TIMEOUT_S, **options})

    def post(self, path: str, question: Question, **options: Any) -> requests.Response:
        headers = {"Content-Type": question.content_type, **question.headers, **options.pop("headers", {})}
        return self.ask("POST", path, data=question.body, headers=headers, **options)

    def invoke(self, question: Question, **options: Any) -> requests.Response:
        return self.post("/invocations", question, **options)

    def connect(self, timeout: float = 10) -> socket.socket:
        return socket.create_connection(self.address, timeout=timeout)

    def lacks(self, what: str) -> NoReturn:
        """End the test: this is not there."""
        if self.complete:
            pytest.fail(f"{LACKS}{what}")
        pytest.skip(f"{LACKS}{what}")

    def unasked(self, why: str) -> NoReturn:
        """End the test: whether this is there cannot be found out like this."""
        if self.complete:
            pytest.fail(f"{UNASKED}{why}")
        pytest.skip(f"{UNASKED}{why}")

    def expects(self, holds: object, what: str) -> None:
        """What this contract asks beyond the platform's: a gap where it is not so."""
        if not holds:
            self.lacks(what)

    def error(self, answer: requests.Response) -> dict[str, Any]:
        """The members of an error that is a JSON object; ends the test where it is none."""
        try:
            found = answer.json()
        except ValueError:
            found = None
        self.expects(isinstance(found, dict), "an error is no JSON object")
        members: dict[str, Any] = found
        return members

    @cached_property
    def v2(self) -> bool:
        """Whether Triton's own API is there."""
        return self.ask("GET", "/v2/health/live").status_code == 200

    @cached_property
    def v2_model(self) -> str:
        """The model to ask over v2: the one that was named, else the first that is ready; empty if none is."""
        if self.model or not self.v2:
            return self.model
        index = self.ask("POST", "/v2/repository/index", data=b"{}").json()
        ready = [row["name"] for row in index if row.get("state") == "READY"]
        return ready[0] if ready else ""

    @cached_property
    def tensors(self) -> dict[str, Any] | None:
        """A v2 request of ones for that model, if its metadata tells how and it is answered with 200."""
        if not self.v2_model or not self.v2:
            return None
        answer = self.ask("GET", f"/v2/models/{self.v2_model}")
        if answer.status_code != 200:
            return None
        body = {"inputs": [ones(tensor) for tensor in answer.json()["inputs"]]}
        tried = self.ask("POST", f"/v2/models/{self.v2_model}/infer", json=body)
        return body if tried.status_code == 200 else None

    @cached_property
    def known(self) -> Question | None:
        """A request for ``/invocations`` that gets a 200, if there is one."""
        if self.given is not None or self.tensors is None:
            return self.given
        return self.addressed(Question(json.dumps(self.tensors).encode()))

    def addressed(self, question: Question) -> Question:
        """The same for the v2 model, where there is one, named in the header that the platform has for it."""
        if not self.v2_model:
            return question
        headers = {**question.headers, f"{PREFIX}Target-Model": self.v2_model}
        return Question(question.body, question.content_type, headers)

    def good(self) -> Question:
        """:attr:`known`; ends the test where there is none."""
        if self.known is None:
            self.unasked("no request is known that this container answers: give one with --body")
        return self.known


def ones(tensor: Mapping[str, Any]) -> dict[str, Any]:
    """An input of ones in the JSON form; open dimensions have the size 1."""
    shape = [max(1, size) for size in tensor["shape"]]
    count = 1
    for size in shape:
        count *= size
    one: object = {"BYTES": "1", "BOOL": True}.get(tensor["datatype"], 1)
    return {"name": tensor["name"], "datatype": tensor["datatype"], "shape": shape, "data": [one] * count}


def json_of(answer: requests.Response) -> Any:
    """The body of an answer that has to be JSON, whatever its status."""
    assert answer.headers.get("Content-Type", "").startswith(JSON), answer.headers
    return answer.json()


def refused(answer: requests.Response) -> None:
    """A caller's mistake is called one: 4xx, no page for a browser, no traceback."""
    assert 400 <= answer.status_code < 500, (answer.status_code, answer.text[:200])
    assert_no_page(answer)


def assert_no_page(answer: requests.Response) -> None:
    assert "html" not in answer.headers.get("Content-Type", ""), "the answer is HTML"
    assert "Traceback" not in answer.text, "a traceback reaches the caller"


def archives(folders: str) -> Iterator[Archive]:
    """The archives below ``HERE[:THERE]``."""
    here, _, there = folders.partition(":")
    for model in sorted(Path(here).glob("*/model")) if here else ():
        name = model.parent.name
        yield Archive(name, f"{there or Path(here).absolute()}/{name}/model", model)
