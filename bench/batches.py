"""Whether a record costs the same in a large batch as in a small one, and a request beside many connections.

Batch transform sends up to 100 MB of JSON lines; a request may have a list of records; a balancer keeps
hundreds of connections open. Time is the processor's, of all of the box: other work is not in it.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from http.client import HTTPConnection
from pathlib import Path

from bench import tree
from bench.contestants.trireme import One, Trireme, ask
from bench.driver import ANSWER_TIMEOUT_S, Request
from bench.endurance import OWN, SETTLE_S
from bench.large import NGINX, WORKER, resident_bytes, send, touched_bytes
from bench.many import MEASURED_MODEL, SECONDS
from bench.measuring import WARM_CALLERS, drive
from sm.errors import CommandError

#: Bytes of bodies with lines, and records of lists. The last of each is compared with the first.
LINES_BYTES = (10 * 10**6, 100 * 10**6)
LIST_RECORDS = (100, 1000)
#: The largest cost of a record in the larger body relative to the smaller, and of a body's memory in copies.
MAX_RATIO, MAX_COPIES = 1.15, 3
#: Idle connections, and the most memory that each may take in the box.
CONNECTIONS, MAX_CONNECTION_BYTES = 500, 2**16
#: Measurements of each, in turns.
TURNS = 3


class Batch(One):
    """One worker, as batch transform starts the box."""

    name = "trireme_batch"
    about = "this box with one worker in batch transform, SAGEMAKER_BATCH=true"

    def environment(self) -> dict[str, str]:
        return {**super().environment(), "SAGEMAKER_BATCH": "true"}


@dataclass(frozen=True)
class Cost:
    """The cost of one body of ``records``: processor seconds, and bytes of memory touched."""

    records: int
    size: int
    seconds: float
    memory: int

    @property
    def milliseconds(self) -> float:
        """Milliseconds of processor time for a record."""
        return self.seconds / self.records * 1e3


def lines(size: int) -> tuple[int, Request]:
    """Return a body of JSON lines with as many pictures as fit, and their number."""
    line = ask("resnet", "json").body.replace(b"\n", b" ") + b"\n"
    count = size // len(line)
    return count, replace(
        ask("resnet", "json"), body=line * count, headers={"Content-Type": "application/jsonlines"}
    )


def records(count: int) -> tuple[int, Request]:
    """Return a request with a list of ``count`` texts, and their number."""
    small = ask("bert_base", "json")
    document = json.loads(small.body)
    document["payload"] = [document["payload"]] * count
    return count, replace(small, body=json.dumps(document).encode())


def costs(
    box: Batch, root: int, requests: Sequence[tuple[int, Request]], pause: float = SETTLE_S
) -> list[list[Cost]]:
    """Measure each body several times; the first round does not count."""
    costs_by_body: list[list[Cost]] = [[] for _ in requests]
    for number in range(TURNS + 1):
        for place, (count, request) in enumerate(requests):
            time.sleep(pause)
            cost = measure(box, root, count, request)
            if number:
                costs_by_body[place].append(cost)
    return costs_by_body


def measure(box: Trireme, root: int, count: int, request: Request) -> Cost:
    before = {**resident_bytes(root, WORKER), **resident_bytes(root, NGINX)}
    for pid in before:
        Path(f"/proc/{pid}/clear_refs").write_text("5")
    began = tree.processor_seconds(root)
    send(box.port, request)
    return Cost(count, len(request.body), tree.processor_seconds(root) - began, touched_bytes(before))


def ratio(few: Sequence[Cost], many: Sequence[Cost]) -> float:
    """Return the median of the turns' ratios of the time for one record."""
    return statistics.median(
        more.milliseconds / less.milliseconds for less, more in zip(few, many, strict=True)
    )


@dataclass(frozen=True)
class Beside:
    """Processor time of an answer beside idle connections relative to none, and a connection's bytes."""

    ratio: float
    bytes_each: float


def beside_connections(box: Trireme, root: int) -> Beside:
    """Measure without and with the connections, in turns."""
    seconds_per_answer(box, root)
    ratios, sizes = [], []
    for _ in range(TURNS):
        alone = seconds_per_answer(box, root)
        before, _ = tree.memory([root], OWN)
        with connections(box.port):
            after, _ = tree.memory([root], OWN)
            ratios.append(seconds_per_answer(box, root) / alone)
        sizes.append((after - before) / CONNECTIONS)
    return Beside(statistics.median(ratios), statistics.median(sizes))


def seconds_per_answer(box: Trireme, root: int) -> float:
    """Return the processor seconds of one answer, with 8 callers."""
    began = tree.processor_seconds(root)
    load, _ = drive(box, root, MEASURED_MODEL, "json", WARM_CALLERS, SECONDS)
    if load.wrong or load.lost:
        raise CommandError(f"{box.name}: {load.wrong} answers were wrong, {load.lost} were lost")
    return (tree.processor_seconds(root) - began) / load.answers


@contextmanager
def connections(port: int) -> Iterator[None]:
    """Open connections that have had an answer and stay open; raise if one is closed."""
    with ExitStack() as stack:
        opened = []
        for _ in range(CONNECTIONS):
            connection = HTTPConnection("127.0.0.1", port, timeout=ANSWER_TIMEOUT_S)
            stack.callback(connection.close)
            connection.connect()
            # It must not reconnect by itself.
            connection.auto_open = 0
            opened.append(connection)
            ping(connection)
        yield
        for connection in opened:
            ping(connection)


def ping(connection: HTTPConnection) -> None:
    connection.request("GET", "/ping")
    connection.getresponse().read()
