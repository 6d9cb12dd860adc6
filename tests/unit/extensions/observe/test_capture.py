"""Samples of payloads and answers are kept in the layout of SageMaker's Data Capture, beside the requests."""

from __future__ import annotations

import base64
import errno
import json
import os
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from sm import metrics
from sm.client.base import Client
from sm.http.messages import PNG, Answer
from sm.router.request_types import Message
from sm.run_state import Box
from sm.server.observers import ObservedProcess
from sm.settings import Settings
from tests.support.boxes import wait_until
from tests.support.client_sources import EmptyTriton
from tests.support.series import value
from trireme_extensions.observe.capture import (
    MAX_EVENT_BYTES,
    MAX_HELD_BYTES,
    Capture,
    read_percents,
    write_file,
)
from trireme_extensions.observe.observers import CaptureObserver

LINE = re.compile(r"m/AllTraffic/\d{4}/\d\d/\d\d/\d\d/[0-9a-f-]{36}\.jsonl")


class Plain(Client):
    def inference(self, payload: Any) -> object:
        return payload


class Careful(Plain):
    """Keeps no names, nothing that is secret, and fails for what it does not know."""

    def redact(self, payload: Any, result: Any) -> tuple[Any, Any] | None:
        if payload.get("secret"):
            return None
        return {**payload, "name": len(payload["name"])}, b"hidden"


class Files(dict[str, bytes]):
    """Stores files in memory."""

    def write(self, name: str, content: bytes) -> None:
        self[name] = content

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for content in self.values() for line in content.splitlines()]


PLAIN, CAREFUL = (kind(EmptyTriton(), Path(), Path()) for kind in (Plain, Careful))
Offer = tuple[str, Message, Answer, Client | None]


def keep(*offers: Offer, clients: Sequence[Client] = (), **options: Any) -> Files:
    """Offer requests with their answers; return the files that are written of them."""
    files = Files()
    capture = Capture(files.write, options.pop("percents", {}), lambda: clients, **options)
    for offer in offers:
        capture.offer(*offer)
    capture.flush()
    return files


def message(body: bytes, content_type: str = "application/json") -> Message:
    return Message(body, {"content-type": content_type}, {}, "id-1")


def plain(model: str) -> Offer:
    return model, message(b"{}"), Answer(b"{}"), None


@pytest.fixture
def dropped() -> Iterator[Callable[[str], float]]:
    reasons = ("size", "queue", "redact", "stop")
    before = {reason: value(metrics.CAPTURE_DROPPED.labels(reason)) for reason in reasons}
    yield lambda reason: value(metrics.CAPTURE_DROPPED.labels(reason)) - before[reason]


def test_an_invocation_is_one_line_as_sagemaker_writes_it() -> None:
    files = keep(("m", message(b'{"a": 1}'), Answer(b'{"b":2}'), PLAIN))
    (name,) = files
    assert LINE.fullmatch(name)
    (line,) = files.lines()
    common = {"observedContentType": "application/json", "encoding": "JSON"}
    assert line["captureData"] == {
        "endpointInput": {**common, "mode": "INPUT", "data": '{"a": 1}'},
        "endpointOutput": {**common, "mode": "OUTPUT", "data": '{"b":2}'},
    }
    assert line["eventMetadata"].keys() == {"eventId", "inferenceId", "inferenceTime"}
    assert (line["eventMetadata"]["inferenceId"], line["eventVersion"]) == ("id-1", "0")


def test_bytes_are_base64_and_a_stream_keeps_its_payload_alone_and_a_failure_nothing() -> None:
    streamed = ("m", message(b"\x89PNG", PNG), Answer(iter((b"part",))), None)
    failed = ("m", message(b"{}"), Answer(b"{}", status=503), None)
    (line,) = keep(streamed, failed).lines()
    assert line["captureData"].keys() == {"endpointInput"}
    kept = line["captureData"]["endpointInput"]
    assert (kept["encoding"], base64.b64decode(kept["data"])) == ("BASE64", b"\x89PNG")


def test_one_file_has_all_invocations_of_a_model_since_the_last() -> None:
    files = keep(*map(plain, ("m", "other/../m", "m")))
    assert sorted(content.count(b"\n") for content in files.values()) == [1, 2]
    assert {name.split("/")[0] for name in files} == {"m", "other%2F..%2Fm"}


def test_the_sample_is_by_percent_and_by_model() -> None:
    percents = read_percents(("10", "m=50", "n=0"))
    for chance, kept in ((0.05, {"m", "others"}), (0.2, {"m"}), (0.6, set[str]())):
        offers = map(plain, ("m", "n", "others"))
        files = keep(*offers, percents=percents, chance=lambda drawn=chance: drawn)
        assert {name.split("/")[0] for name in files} == kept


def test_a_client_redacts_what_is_kept_or_keeps_nothing() -> None:
    bodies = (b'{"name": "Ada"}', b'{"name": "Bo", "secret": true}')
    offers = (("m", message(body), Answer(b'{"result": "Ada"}'), CAREFUL) for body in bodies)
    files = keep(*offers, clients=[CAREFUL])
    (line,) = files.lines()
    assert json.loads(line["captureData"]["endpointInput"]["data"]) == {"name": 3}
    assert line["captureData"]["endpointOutput"]["data"] == "hidden"
    assert b"Ada" not in b"".join(files.values())


def test_what_a_client_that_redacts_cannot_is_not_kept_and_not_logged(
    dropped: Callable[[str], float], caplog: pytest.LogCaptureFixture
) -> None:
    files = keep(
        ("m", message(b'{"Ada": 1}'), Answer(b"{}"), CAREFUL),
        ("m", message(b"Ada", PNG), Answer(b"{}"), CAREFUL),
        ("m", message(b'{"inputs": []}'), Answer(b"{}"), None),  # past it
        clients=[PLAIN, CAREFUL],
    )
    assert (files, dropped("redact")) == ({}, 3)
    assert "Ada" not in str(caplog.messages)


def test_in_multi_model_mode_only_requests_for_clients_are_kept_and_no_other_client_is_loaded(
    dropped: Callable[[str], float],
) -> None:
    files = Files()
    capture = Capture(files.write, {}, pytest.fail, only_clients=True)
    capture.offer("m", message(b'{"inputs": []}'), Answer(b"{}"), None)
    capture.offer("m", message(b"{}"), Answer(b"{}"), PLAIN)
    capture.flush()
    assert (len(files.lines()), dropped("redact")) == (1, 1)


def test_what_is_too_large_or_has_no_room_is_counted(dropped: Callable[[str], float]) -> None:
    files = Files()
    capture = Capture(files.write, {}, tuple)
    capture.offer("m", message(b"x" * MAX_EVENT_BYTES), Answer(b"x"), None)
    large = message(bytes(MAX_EVENT_BYTES), PNG)
    for _ in range(10):
        capture.offer("m", large, Answer(b""), None)
    room = MAX_HELD_BYTES // MAX_EVENT_BYTES
    assert (dropped("size"), dropped("queue")) == (1, 10 - room)
    capture.flush()
    capture.offer("m", large, Answer(b""), None)
    capture.flush()
    assert len(files.lines()) == room + 1


def test_a_store_that_takes_its_time_delays_neither_callers_nor_the_stop_and_what_it_lost_is_counted(
    dropped: Callable[[str], float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trireme_extensions.observe.capture.CLOSE_TIMEOUT_S", 0.1)
    is_stored = threading.Event()
    capture = Capture(lambda *_: is_stored.wait(60), {}, tuple)
    capture.offer(*plain("m"))
    with ThreadPoolExecutor(2) as pool:
        flush = pool.submit(capture.flush)
        wait_until(lambda: not capture._events)
        capture.offer(*plain("m"))
        end = pool.submit(capture.close)
        futures.wait([end], 10)
        assert (end.done(), flush.done(), dropped("stop")) == (True, False, 2)
        is_stored.set()


def test_a_file_is_for_its_owner_alone_and_whole(tmp_path: Path) -> None:
    write_file(tmp_path / "new", "m/a.jsonl", b"{}\n")
    (file,) = (path for path in tmp_path.rglob("*") if path.is_file())
    assert (file.name, file.read_bytes(), file.stat().st_mode & 0o777) == ("a.jsonl", b"{}\n", 0o600)


def test_no_part_of_a_file_is_left_on_a_full_disk(tmp_path: Path) -> None:
    # The kernel's own full disk: a link to it in place of the staged file.
    (tmp_path / f"a.jsonl.{os.getpid()}").symlink_to("/dev/full")
    with pytest.raises(OSError) as caught:
        write_file(tmp_path, "a.jsonl", b"{}\n")
    assert caught.value.errno == errno.ENOSPC
    assert list(tmp_path.iterdir()) == []


def test_the_capture_is_off_by_default_and_in_the_control_plane(tmp_path: Path) -> None:
    box = Box("id", tmp_path, tmp_path, 1, 2, 3, "nginx", 0)
    for settings, clients in ((Settings(), tuple), (Settings(capture=str(tmp_path)), None)):
        observer = CaptureObserver()
        observer.open(ObservedProcess("1", settings, box, clients))
        observer.close()
        assert observer.hear is None
