"""Send many mixed requests, and check that memory, descriptors and shared-memory files stop growing."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.boxes import RunningBox, command_line, memory_field
from tests.support.faults import report
from tests.support.faults.boxes import DEADLINE_S, HANG_MARGIN_S, all_processes
from tests.support.faults.callers import RIGHT, Callers, PingWatcher
from tests.support.faults.inputs import Sample

CALLERS = 8
#: When to measure, as a share of all requests: once every process has its working memory, late, and at the end.
MOMENTS = (("start", 0.1), ("third quarter", 0.75), ("end", 1.0))
POLL_INTERVAL_S, PROGRESS_INTERVAL_S = 0.2, 30.0
#: Limits for the growth in the last quarter, all processes together.
MAX_GROWTH_BYTES, MAX_GROWTH_DESCRIPTORS, MAX_GROWTH_FILES = 64 * 2**20, 16, 4


@dataclass(frozen=True)
class Usage:
    """The resources of all processes of one kind."""

    bytes: int
    descriptors: int


@dataclass(frozen=True)
class Soak:
    outcomes: Counter[str]
    seconds: float
    ping: str
    #: By moment, then by kind of process.
    usage: dict[str, dict[str, Usage]]
    #: The number of the box's files in /dev/shm, by moment.
    files: dict[str, int]
    details: tuple[str, ...]

    def misses(self) -> list[str]:
        """Return a sentence for each goal that the box misses."""
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
    report_progress: Callable[[str], None] = lambda line: None,
) -> Soak:
    """Send so many requests, check every answer, and measure the box in between."""
    usage: dict[str, dict[str, Usage]] = {}
    files: dict[str, int] = {}
    began = time.monotonic()
    watcher = PingWatcher(box.port).start()
    load = Callers(
        box.port, samples, CALLERS, hang_after_s=DEADLINE_S + HANG_MARGIN_S, seed=seed, limit=requests
    ).start()
    last_progress = began
    for moment, share in MOMENTS:
        while load.running and len(load.replies) < share * requests:
            time.sleep(POLL_INTERVAL_S)
            if time.monotonic() > last_progress + PROGRESS_INTERVAL_S:
                last_progress = time.monotonic()
                report_progress(f"{len(load.replies)} of {requests} requests: {dict(load.outcomes())}")
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
    """Yield the usage of each kind of process. Shared pages are split among the processes that share them (PSS)."""
    kinds: dict[str, list[int]] = defaultdict(list)
    for pid in all_processes(box):
        kinds[process_kind(pid)].append(pid)
    for kind, pids in kinds.items():
        yield (
            kind,
            Usage(
                sum(memory_field(pid, "Pss:") for pid in pids),
                sum(len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in pids),
            ),
        )


def process_kind(pid: int) -> str:
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
