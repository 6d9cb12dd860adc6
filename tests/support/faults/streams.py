"""Attack streams and WebSockets: callers who read nothing or slowly, hang up, or break the protocol.

Other callers use the box meanwhile. They get right answers and nothing else.
"""

from __future__ import annotations

import contextlib
import json
import random
import selectors
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from tests.support import boxes
from tests.support.boxes import RunningBox, memory_field, wait_until
from tests.support.faults import report
from tests.support.faults.callers import RIGHT, Callers
from tests.support.faults.inputs import Sample, echo_samples, with_golden_answers
from tests.support.streaming_box import StartBox
from tests.support.tritons import MODELS
from tests.support.websocket_frames import CASES, CLOSE, PONG, Case, close_code, frame, play

STALL_S = 3.0
#: Seconds that a stream would take whose caller reads nothing: much longer than an attack waits.
ENDLESS_S = 300.0
#: Slots of a model.
THREADS = 4
SLOW_READERS, SLOW_READS_S = 100, 20.0
#: What an attack may add to the memory of Triton and the worker, beside the models' own.
MEMORY_BYTES = 300 * 2**20
CALLERS = 4
COLUMNS = ("attack", "times", "memory", "answers to other callers", "slowest")
END_OF_STREAM = b"\r\n0\r\n\r\n"


def stalling_box(folder: Path) -> StartBox:
    """Return a function that starts a box with models and a client that stream as fast as they can."""
    (folder / "notes").mkdir()
    for name in ("torrent", "stubborn", "echo"):
        MODELS[name].write(folder / "repository" / name)
    return partial(
        boxes.running_box,
        folder,
        folder / "repository",
        clients=(boxes.CLIENT_FOLDERS / "torrents",),
        SAGEMAKER_MODEL_SERVER_WORKERS="1",
        TRIREME_STREAM_STALL_SECONDS=str(STALL_S),
    )


def request_stream(
    box: RunningBox, seconds: float = ENDLESS_S, model: str = "torrent", direct: bool = False
) -> socket.socket:
    """Ask for a stream. ``direct``: of Triton's own route."""
    wanted = {"seconds": seconds, "size": 100_000}
    path, body = f"/v2/models/{model}/generate_stream", json.dumps(wanted)
    if not direct:
        path, body = (
            "/invocations",
            json.dumps({"modelname": "torrent", "payload": {**wanted, "model": model}}),
        )
    connection = socket.create_connection(("127.0.0.1", box.port), timeout=60)
    connection.sendall(
        f"POST {path} HTTP/1.1\r\nHost: box\r\nAccept: text/event-stream\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n{body}".encode()
    )
    return connection


def ask(
    box: RunningBox, seconds: float = ENDLESS_S, model: str = "torrent", direct: bool = False
) -> socket.socket:
    """Ask for a stream and read its first bytes only."""
    connection = request_stream(box, seconds, model, direct)
    head = connection.recv(15)
    assert head == b"HTTP/1.1 200 OK", head
    return connection


def open_websocket(box: RunningBox) -> socket.socket:
    """Open a WebSocket and return its socket. Each message gets one answer: an error, as it names no model."""
    connection = socket.create_connection(("127.0.0.1", box.port), timeout=20)
    connection.sendall(
        b"GET /invocations-bidirectional-stream HTTP/1.1\r\nHost: box\r\nUpgrade: websocket\r\n"
        b"Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: c2l4dGVlbiBieXRlcyEhIQ==\r\n\r\n"
    )
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += connection.recv(1)
    assert head.startswith(b"HTTP/1.1 101"), head
    return connection


def box_bytes(box: RunningBox) -> int:
    """Memory of Triton and the workers."""
    return sum(memory_field(pid, "Pss:") for pid in (box.child("triton")["pid"], *box.workers()))


def lost_streams(box: RunningBox) -> float:
    return sum(
        box.metric("trireme_invocations_total", model=name, status="408") for name in ("torrent", "stubborn")
    )


def wait_until_idle(box: RunningBox) -> None:
    wait_until(lambda: box.metric("trireme_in_flight") == 0, description="the end of all streams")


def read_nothing(box: RunningBox, direct: bool = False) -> None:
    """Ask for a stream and read nothing of it, until the box ends it."""
    lost = lost_streams(box)
    with ask(box, direct=direct):
        wait_until(lambda: lost_streams(box) == lost + 1, description="the end of the unread stream")


def hold_all_slots(box: RunningBox) -> None:
    """Read nothing on all slots of a model. The next caller gets one after the stall time."""
    with ExitStack() as stack:
        began = time.monotonic()
        for _ in range(THREADS):
            stack.enter_context(ask(box))
        with ask(box, seconds=0.1) as connection:
            # It waited for a slot.
            assert connection.recv(1)
        assert time.monotonic() - began < STALL_S + 15


def read_slowly(box: RunningBox) -> None:
    """Read about 2 MB a second of some 50 that the model makes: the last event is the error."""
    received, began = b"", time.monotonic()
    with ask(box) as connection:
        while (more := connection.recv(2**16)) and time.monotonic() - began < 60:
            received = received[-2000:] + more
            if received.endswith(END_OF_STREAM):
                break
            time.sleep(0.03)
    assert received.endswith(END_OF_STREAM)
    assert b'event: error\ndata: {"error":' in received
    assert b'"code":"stream_stalled"' in received


def read_slowly_by_the_hundred(box: RunningBox) -> None:
    """Read 10 kB a second of each of 100 streams, of which the box serves a few and refuses the others."""
    heads: Counter[bytes] = Counter()
    with selectors.DefaultSelector() as selector, ExitStack() as stack:
        for number in range(SLOW_READERS):
            reader = stack.enter_context(request_stream(box, direct=bool(number % 2)))
            selector.register(reader, selectors.EVENT_READ, data=True)
        end = time.monotonic() + SLOW_READS_S
        while time.monotonic() < end and selector.get_map():
            for key, _ in selector.select(1.0):
                connection = key.fileobj
                assert isinstance(connection, socket.socket)
                try:
                    received = connection.recv(1000)
                except ConnectionResetError:
                    received = b""
                if key.data:
                    heads[received[:12]] += 1
                    selector.modify(connection, selectors.EVENT_READ, data=False)
                if not received:
                    selector.unregister(connection)
            time.sleep(0.1)
    assert set(heads) <= {b"HTTP/1.1 200", b"HTTP/1.1 429"}, heads
    assert heads[b"HTTP/1.1 200"] >= THREADS, heads


def hang_up(box: RunningBox) -> None:
    """Ask for 20 streams, read their first bytes and hang up."""
    for number in range(20):
        ask(box, direct=bool(number % 2)).close()


def failed_cases(box: RunningBox, cases: Sequence[Case] = CASES) -> list[object]:
    """Send each case's frames; return the cases that were not answered as the protocol says."""
    failed: list[object] = []
    for case in cases:
        with open_websocket(box) as connection:
            frames = play(connection, case)
        expected = [*(opcode == PONG for opcode, _ in case.replies), False]
        if (
            not frames
            or [opcode == PONG for opcode, _ in frames] != expected
            or (frames[-1][0] != CLOSE or close_code(frames[-1][1]) != case.close)
        ):
            failed.append((case.name, [(opcode, payload[:50]) for opcode, payload in frames]))
    return failed


def break_the_protocol(box: RunningBox) -> None:
    """Send the cases of the Autobahn suite: each closes with its code."""
    failed = failed_cases(box)
    assert not failed, failed


def flood(box: RunningBox) -> None:
    """Flood a WebSocket for 3 s after a broken frame, with each of three kinds."""
    message = frame(2, bytes(2**20), fin=False)
    for broken in (frame(1, b"\xff"), frame(1, b"x", masked=False), frame(1, b"x", rsv=4)):
        with open_websocket(box) as connection, contextlib.suppress(OSError):
            connection.sendall(broken)
            end = time.monotonic() + 3
            while time.monotonic() < end:
                connection.sendall(message)


#: The attacks by their names in the report.
ATTACKS: dict[str, Callable[[RunningBox], None]] = {
    "reads nothing": read_nothing,
    "reads nothing of Triton's own stream": partial(read_nothing, direct=True),
    "holds all slots and reads nothing": hold_all_slots,
    "reads 2 of 50 MB a second": read_slowly,
    f"{SLOW_READERS} who read 10 kB a second": read_slowly_by_the_hundred,
    "hangs up, 20 times": hang_up,
    f"breaks the WebSocket protocol in {len(CASES)} ways": break_the_protocol,
    "floods a WebSocket after a broken frame": flood,
}


@dataclass
class AttackRow:
    """What an attack did to the box and its other callers."""

    name: str
    times: int = 0
    more_bytes: int = 0
    answers: Counter[str] = field(default_factory=Counter)
    slowest_s: float = 0.0
    details: list[str] = field(default_factory=list)

    def misses(self) -> list[str]:
        """Return a sentence for each goal that is missed."""
        missed = list(self.details)
        if others := sum(self.answers.values()) - self.answers[RIGHT]:
            missed.append(f"{self.name}: {others} answers to other callers were not right")
        if not self.answers[RIGHT]:
            missed.append(f"{self.name}: no other caller was served")
        if self.more_bytes > MEMORY_BYTES:
            missed.append(f"{self.name}: {self.more_bytes >> 20} MB more memory")
        return missed

    def cells(self) -> list[str]:
        answers = ", ".join(f"{count} × {outcome}" for outcome, count in sorted(self.answers.items()))
        memory = f"{self.more_bytes >> 20} MB more"
        return [self.name, str(self.times), memory, answers, f"{self.slowest_s:.1f} s"]


def attack_streams(
    folder: Path, times: int, seed: int, say: Callable[[str], None] = lambda _: None
) -> list[AttackRow]:
    """Make each attack ``times`` times, in an order drawn from ``seed``, while other callers use the box."""
    rows = {name: AttackRow(name) for name in ATTACKS}
    order = [name for name in ATTACKS for _ in range(times)]
    random.Random(seed).shuffle(order)
    with stalling_box(folder)(TRIREME_THREADS=str(THREADS)) as box:
        samples = learn_samples(box)
        for name in order:
            attack_once(box, rows[name], samples, seed)
            say(" | ".join(rows[name].cells()))
    return list(rows.values())


def learn_samples(box: RunningBox) -> list[Sample]:
    """Return the requests of the other callers with their answers."""
    return with_golden_answers([*echo_samples("echo")], box.port)


def attack_once(box: RunningBox, row: AttackRow, samples: Sequence[Sample], seed: int) -> None:
    """Make an attack, and note what it did."""
    row.times += 1
    workers, triton = box.workers(), box.child("triton")["pid"]
    callers = Callers(box.port, samples, CALLERS, seed=seed).start()
    try:
        with peak_of(partial(box_bytes, box)) as peak:
            ATTACKS[row.name](box)
            wait_until_idle(box)
    except AssertionError as error:
        row.details.append(f"{row.name}: {error}")
    finally:
        callers.stop()
    if (box.workers(), box.child("triton")["pid"]) != (workers, triton):
        row.details.append(f"{row.name}: a process was replaced")
    row.more_bytes = max(row.more_bytes, peak[-1] - peak[0])
    row.answers += callers.outcomes()
    row.slowest_s = max(row.slowest_s, *(reply.ended - reply.started for reply in callers.snapshot()))


@contextmanager
def peak_of(measure: Callable[[], int]) -> Iterator[list[int]]:
    """Yield a list that has the value before the block, and after the block its peak."""
    values, done = [measure()], threading.Event()
    peak = values[0]

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.2):
            with contextlib.suppress(OSError, ProcessLookupError):
                peak = max(peak, measure())

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield values
    finally:
        done.set()
        thread.join()
        values.append(peak)


def markdown(rows: Sequence[AttackRow]) -> str:
    return report.table(COLUMNS, [row.cells() for row in rows])
