"""Many mixed requests: whether memory, descriptors and files in shared memory come to rest."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.boxes import RunningBox, command_line, memory_field
from tests.support.faults import report
from tests.support.faults.boxes import DEADLINE_S, HANG_MARGIN_S, everything
from tests.support.faults.callers import RIGHT, Callers, PingWatcher
from tests.support.faults.inputs import Sample

CALLERS = 8
#: When it is looked: once every process has its working memory, late, and at the end. As parts of all requests.
MOMENTS = (("start", 0.1), ("third quarter", 0.75), ("end", 1.0))
LOOK_INTERVAL_S, PROGRESS_INTERVAL_S = 0.2, 30.0
#: What the box may have more at the end than after three quarters, all processes together.
MAX_GROWTH_BYTES, MAX_GROWTH_DESCRIPTORS, MAX_GROWTH_FILES = 64 * 2**20, 16, 4


@dataclass(frozen=True)
class Usage:
    """What one kind of process holds, all of its processes together."""

    bytes: int
    descriptors: int


@dataclass(frozen=True)
class Soak:
    outcomes: Counter[str]
    seconds: float
    ping: str
    #: For each moment, what each kind of process held.
    usage: dict[str, dict[str, Usage]]
    #: For each moment, the box's files in /dev/shm.
    files: dict[str, int]
    details: tuple[str, ...]

    def misses(self) -> list[str]:
        """Where the box misses the goal, in words."""
        missed = []
        if set(self.outcomes) - {RIGHT}:
            missed.append(f"answers: {dict(self.outcomes)}")
        late, end = (self.usage[name].values() for name in ("third quarter", "end"))
        grown = sum(one.bytes for one in end) - sum(one.bytes for one in late)
        if grown > MAX_GROWTH_BYTES:
            missed.append(f"{grown >> 20} MiB more at the end than after three quarters")
        opened = sum(one.descriptors for one in end) - sum(one.descriptors for one in late)
        if opened > MAX_GROWTH_DESCRIPTORS:
            missed.append(f"{opened} descriptors more at the end than after three quarters")
        if self.files["end"] - self.files["third quarter"] > MAX_GROWTH_FILES:
            missed.append(f"files in /dev/shm: {self.files}")
        return missed

    def markdown(self) -> str:
        moments = [name for name, _ in MOMENTS]
        kinds = sorted({kind for usage in self.usage.values() for kind in usage})
        empty = Usage(0, 0)
        rows = [
            [
                kind,
                *(f"{self.usage[moment].get(kind, empty).bytes >> 20}" for moment in moments),
                *(f"{self.usage[moment].get(kind, empty).descriptors}" for moment in moments),
            ]
            for kind in kinds
        ]
        columns = [
            "process",
            *(f"MiB, {moment}" for moment in moments),
            *(f"descriptors, {moment}" for moment in moments),
        ]
        total = sum(self.outcomes.values())
        answers = ", ".join(f"{count} × {outcome}" for outcome, count in self.outcomes.items())
        return (
            f"{report.table(columns, rows)}\n\n{total} requests in {self.seconds:.0f} s: {answers}. /ping: {self.ping}. "
            f"Files in /dev/shm: {', '.join(f'{count} ({moment})' for moment, count in self.files.items())}."
        )


def soak(
    box: RunningBox,
    samples: Sequence[Sample],
    requests: int,
    seed: int,
    tell: Callable[[str], None] = lambda line: None,
) -> Soak:
    """Send ``requests`` in the usual mix, each answer compared."""
    usage: dict[str, dict[str, Usage]] = {}
    files: dict[str, int] = {}
    began = time.monotonic()
    watcher = PingWatcher(box.port).start()
    load = Callers(
        box.port, samples, CALLERS, hang_after_s=DEADLINE_S + HANG_MARGIN_S, seed=seed, limit=requests
    ).start()
    told = began
    for moment, part in MOMENTS:
        while load.running and len(load.replies) < part * requests:
            time.sleep(LOOK_INTERVAL_S)
            if time.monotonic() > told + PROGRESS_INTERVAL_S:
                told = time.monotonic()
                tell(f"{len(load.replies)} of {requests} requests: {dict(load.outcomes())}")
        usage[moment] = dict(measure(box))
        files[moment] = len(box.shared_memory_files())
    load.join()
    watcher.stop()
    return Soak(
        load.outcomes(),
        time.monotonic() - began,
        report.summarize_pings(watcher.pings, began),
        usage,
        files,
        tuple(load.details),
    )


def measure(box: RunningBox) -> Iterator[tuple[str, Usage]]:
    """By kind of process; shared pages are counted once, among those who share them."""
    kinds: dict[str, list[int]] = defaultdict(list)
    for pid in everything(box):
        kinds[kind_of(pid)].append(pid)
    for kind, pids in kinds.items():
        yield (
            kind,
            Usage(
                sum(memory_field(pid, "Pss:") for pid in pids),
                sum(len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in pids),
            ),
        )


def kind_of(pid: int) -> str:
    command = command_line(pid)
    if "triton_python_backend_stub" in command:
        return f"stubs of {Path(command.split()[1]).parent.parent.name}"
    kinds = {
        "sm.server.worker data": "data plane",
        "sm.server.worker control": "control plane",
        "tritonserver --": "Triton",
        "nginx: ": "nginx",
    }
    return next((kind for words, kind in kinds.items() if words in command), "supervisor and guard")
