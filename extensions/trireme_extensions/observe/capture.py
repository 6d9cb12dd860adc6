"""Keep samples of payloads and answers, in the layout of SageMaker's Data Capture.

An invocation only puts references to its bytes into a bounded queue. A thread of its own redacts, encodes and
stores them; what does not fit or cannot be stored is counted, and never waited for.
"""

from __future__ import annotations

import logging
import random
import threading
import time
import uuid
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import orjson
import pybase64

from sm import metrics
from sm.client.base import Client
from sm.client.results import dumps
from sm.http.media_types import kind_of
from sm.http.messages import JSON, JSON_LINES, Answer
from sm.http.s3 import SCHEME, S3Uri, open_client
from sm.polling import Poll
from sm.router.request_types import Message
from sm.run_state import write_atomically
from sm.settings import Settings

log = logging.getLogger(__name__)
#: Seconds between two files of a model: S3 has no appends, and many small objects are slow to read.
FLUSH_INTERVAL_S = 10.0
#: Bytes that one worker holds, and the largest invocation: SageMaker's own limit of a payload.
MAX_HELD_BYTES, MAX_EVENT_BYTES = 2**25, 25 * 10**6 // 4
#: Seconds for the last files of a worker that stops.
CLOSE_TIMEOUT_S = 3.0
#: Why an invocation of the sample is not stored.
REASONS = ("size", "queue", "redact", "stop")
ENCODINGS = {JSON: "JSON", JSON_LINES: "JSON", "text/csv": "CSV"}


class Event(NamedTuple):
    """An invocation to keep."""

    at: float
    model: str
    message: Message
    #: None for a streamed answer, which is not kept.
    result: bytes | None
    content_type: str
    #: None if the request is not for one client.
    client: Client | None

    @property
    def size(self) -> int:
        return len(self.message.body) + len(self.result or b"")


class Capture:
    """Stores samples of invocations.

    Args:
        write: Stores a file with a name such as ``resnet/AllTraffic/2026/11/24/10/…jsonl``.
        percents: Of the invocations of a model; of all others by the empty name.
        clients: Returns all clients, of which some may redact.
        only_clients: Keep only what is for a client: to ask all clients of archives would load them.
        chance: Returns a number from 0 to 1 for each invocation.
    """

    def __init__(
        self,
        write: Callable[[str, bytes], object],
        percents: Mapping[str, float],
        clients: Callable[[], Iterable[Client]],
        only_clients: bool = False,
        chance: Callable[[], float] = random.random,
    ) -> None:
        for reason in REASONS:
            metrics.CAPTURE_DROPPED.labels(reason)  # rate() loses the first count of a new series
        self._write, self._percents, self._clients, self._chance = write, percents, clients, chance
        self._only_clients = only_clients
        self._lock, self._flushing = threading.Lock(), threading.Lock()
        self._events: deque[Event] = deque()
        #: Encoded lines that are not stored yet, by folder.
        self._lines: dict[str, list[bytes]] = defaultdict(list)
        self._held = 0
        self._poll = Poll("capture", FLUSH_INTERVAL_S, self.flush)

    def start(self) -> None:
        self._poll.start()

    def offer(self, model: str, message: Message, answer: Answer, client: Client | None) -> None:
        """Keep a successful invocation, if it is in the sample and there is room."""
        if 100 * self._chance() >= self._percents.get(model, self._percents.get("", 100.0)):
            return
        if answer.status != 200:
            return
        result = answer.body if isinstance(answer.body, bytes) else None
        event = Event(time.time(), model, message, result, answer.content_type, client)
        if event.size > MAX_EVENT_BYTES:
            drop("size")
            return
        with self._lock:
            if self._held + event.size > MAX_HELD_BYTES:
                drop("queue")
                return
            self._held += event.size
            self._events.append(event)

    def flush(self) -> None:
        """Store what is held. What cannot be stored stays for the next time."""
        with self._flushing:
            while self._events:
                event = self._events.popleft()
                line = self._encode(event)
                with self._lock:
                    self._held += len(line) - event.size
                if line:
                    self._lines[folder_of(event)].append(line)
            for folder, lines in list(self._lines.items()):
                try:
                    self._write(f"{folder}/{uuid.uuid4()}.jsonl", b"".join(lines))
                except Exception as error:
                    # Its text may quote what S3 answered; its type says enough.
                    log.warning("captured payloads cannot be stored: %s", type(error).__name__)
                    return
                metrics.CAPTURED.inc(len(lines))
                del self._lines[folder]
                with self._lock:
                    self._held -= sum(map(len, lines))

    def close(self) -> None:
        """Store the captures that are left, within :data:`CLOSE_TIMEOUT_S`."""
        self._poll.stop()
        last = threading.Thread(target=self.flush, name="last-captures", daemon=True)
        last.start()
        last.join(CLOSE_TIMEOUT_S)
        if lost := len(self._events) + sum(map(len, list(self._lines.values()))):
            drop("stop", lost)
            log.warning("%d captured invocations were not stored before the stop", lost)

    def _encode(self, event: Event) -> bytes:
        """Return the line of an invocation; empty if it must not be kept."""
        body, result = event.message.body, event.result
        try:
            if event.client is not None and redacts(event.client):
                kept = event.client.redact(
                    parse(body, event.message.content_type),
                    None if result is None else parse(result, event.content_type),
                )
                if kept is None:
                    return b""
                body, result = encode(kept[0]), None if kept[1] is None else encode(kept[1])
            elif event.client is None and (self._only_clients or any(map(redacts, self._clients()))):
                # Lines may name any client, and Triton's protocol goes past all of them.
                drop("redact")
                return b""
            data = {"endpointInput": side("INPUT", event.message.content_type, body)}
            if result is not None:
                data["endpointOutput"] = side("OUTPUT", event.content_type, result)
        except Exception as error:  # a client's code, which must not stop the others
            log.warning("an invocation of %s was not captured: %s", event.model, type(error).__name__)
            drop("redact")
            return b""
        metadata = {
            "eventId": str(uuid.uuid4()),
            "inferenceId": event.message.request_id,
            "inferenceTime": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(event.at)),
        }
        return dumps({"captureData": data, "eventMetadata": metadata, "eventVersion": "0"}) + b"\n"


def drop(reason: str, number: int = 1) -> None:
    metrics.CAPTURE_DROPPED.labels(reason).inc(number)


def redacts(client: Client) -> bool:
    return type(client).redact is not Client.redact


def folder_of(event: Event) -> str:
    """Return the folder of an invocation's hour. The model stands for the endpoint."""
    return f"{quote(event.model, safe='')}/AllTraffic/{time.strftime('%Y/%m/%d/%H', time.gmtime(event.at))}"


def parse(body: bytes, content_type: str) -> Any:
    return orjson.loads(body) if kind_of(content_type) == JSON else body


def encode(part: Any) -> bytes:
    return part if isinstance(part, bytes) else dumps(part)


def side(mode: str, content_type: str, body: bytes) -> dict[str, str]:
    """Return a body as SageMaker writes it: text where the type is JSON or CSV, else base64."""
    encoding = ENCODINGS.get(kind_of(content_type), "BASE64")
    text = pybase64.b64encode_as_string(body) if encoding == "BASE64" else body.decode(errors="replace")
    return {"observedContentType": content_type, "mode": mode, "data": text, "encoding": encoding}


def write_file(folder: Path, name: str, content: bytes) -> None:
    """Store a file for its owner alone; a reader sees all of it or nothing."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, content, 0o600)


def open_capture(settings: Settings, clients: Callable[[], Iterable[Client]], multi_model: bool) -> Capture:
    """Start the capture that the settings want. Raises :class:`StartError` if boto3 is missing for S3."""
    percents = read_percents(settings.capture_percent)
    capture = Capture(writer(settings.capture), percents, clients, multi_model)
    capture.start()
    return capture


def writer(place: str) -> Callable[[str, bytes], object]:
    """Return what stores a file below ``place``. Raises :class:`StartError` if boto3 is missing for S3."""
    if not place.startswith(SCHEME):
        return lambda name, content: write_file(Path(place), name, content)
    uri, client = S3Uri.parse(place), open_client("TRIREME_CAPTURE", 1)

    def put(name: str, content: bytes) -> None:
        client.put_object(Bucket=uri.bucket, Key=uri.prefix + name, Body=content, ContentType=JSON_LINES)

    return put


def read_percents(entries: Sequence[str]) -> Mapping[str, float]:
    """Read ``10`` or ``resnet=50``, checked by the setting."""
    pairs = (entry.rpartition("=") for entry in entries)
    return {model: float(percent) for model, _, percent in pairs}
