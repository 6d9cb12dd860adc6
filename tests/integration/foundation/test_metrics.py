"""Metrics: a bounded number of series, disk space reserved at the start, and the counts of prometheus_client."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from prometheus_client.mmap_dict import MmapedDict

from sm.metrics import RESERVED_BYTES, Counters, remove_gauges, reserve, series_file
from tests.support.boxes import wait_until
from tests.support.disks import MOUNT_SMALL_DISK

pytestmark = pytest.mark.core


def test_the_disk_space_of_a_workers_series_is_reserved(tmp_path: Path) -> None:
    reserve(tmp_path, 7)
    for kind, size in RESERVED_BYTES.items():
        status = series_file(tmp_path, kind, 7).stat()
        assert status.st_size == size
        assert status.st_blocks * 512 >= size


def test_a_reader_never_finds_an_empty_file_of_series(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files_while_reserving: list[Path] = []
    allocate = os.posix_fallocate

    def look_and_allocate(*arguments: int) -> None:
        files_while_reserving.extend(path for path in tmp_path.glob("*.db") if not path.stat().st_size)
        allocate(*arguments)

    monkeypatch.setattr(os, "posix_fallocate", look_and_allocate)
    reserve(tmp_path, 7)
    assert not files_while_reserving
    assert not list(tmp_path.glob("*.new"))


OUR_METRICS = """
from functools import partial
from sm.metrics import BUCKETS, _gauge, duration, invocations
seconds = partial(duration, stage="total", status=200)
gauge = _gauge("g", "A gauge.")
"""
PROMETHEUS_CLIENT_METRICS = """
from prometheus_client import Counter, Gauge, Histogram
from sm.metrics import BUCKETS
count = Counter("trireme_invocations_total", "Responses by model and status.", ["model", "status"])
invocations = lambda model, status: count.labels(model, str(status))
durations = Histogram(
    "trireme_invocation_duration_seconds",
    "Time of an invocation and of its stages.",
    ["model", "stage", "status"],
    buckets=BUCKETS,
)
seconds = lambda model: durations.labels(model, "total", "2xx")
gauge = Gauge("g", "A gauge.", multiprocess_mode="livesum")
"""
COUNT_AND_PRINT = """
import os
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

invocations("m", 200).inc()
gauge.set(7)
child = os.fork()
for value in (0.0, *BUCKETS, 61.0):
    seconds("m").observe(value)
invocations("m", 200).inc()
gauge.inc()
gauge.inc(-1)
gauge.inc()
if child == 0:
    os._exit(0)
os.waitpid(child, 0)
registry = CollectorRegistry()
MultiProcessCollector(registry)
print(generate_latest(registry).decode())
"""


def variables(folder: Path) -> dict[str, str]:
    return {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(folder)}


def run_python(folder: Path, code: str, prefix: Sequence[str] = ()) -> str:
    """Run a program whose series are in ``folder``, and return what it prints.

    ``prefix``: a command that runs it.
    """
    folder.mkdir(exist_ok=True)
    return subprocess.run(
        [*prefix, sys.executable, "-c", code],
        env=variables(folder),
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    ).stdout


def test_counts_equal_those_of_prometheus_client_also_after_a_fork(tmp_path: Path) -> None:
    our_text, expected_text = (
        run_python(tmp_path / "ours", OUR_METRICS + COUNT_AND_PRINT),
        run_python(tmp_path / "theirs", PROMETHEUS_CLIENT_METRICS + COUNT_AND_PRINT),
    )
    lines = [line for line in expected_text.splitlines() if not line.startswith(("# ", "trireme_in_flight"))]
    assert 'trireme_invocations_total{model="m",status="200"} 3.0' in lines
    assert "g 9.0" in lines
    assert len([line for line in lines if "_seconds_" in line]) == 18
    assert set(expected_text.splitlines()) <= set(our_text.splitlines())


COUNT_WITHOUT_PAUSE = """
from sm.metrics import IN_FLIGHT
while True:
    IN_FLIGHT.set(1.0)
    IN_FLIGHT.set(2.0)
"""


def test_a_number_that_is_being_written_is_the_old_or_the_new_one(tmp_path: Path) -> None:
    script = [sys.executable, "-c", COUNT_WITHOUT_PAUSE]
    with subprocess.Popen(script, env=variables(tmp_path)) as process:
        path = series_file(tmp_path, "gauge_livesum", process.pid)
        try:
            wait_until(lambda: read_gauge(path) in (1.0, 2.0), description="the first number")
            values = {read_gauge(path) for _ in range(30_000)}
        finally:
            process.kill()
    assert values == {1.0, 2.0}


def read_gauge(path: Path) -> float | None:
    """Return the box's invocations in flight; None if they are not in the file yet."""
    if not path.exists() or not path.stat().st_size:
        return None
    entries = MmapedDict.read_all_values_from_file(str(path))  # type: ignore[no-untyped-call]
    return next((value for key, value, *_ in entries if '"trireme_in_flight"' in key), None)


CLIENT_METRIC = """
from prometheus_client import Counter
own = Counter("of_a_client_total", "A client's own.")
own.inc(5)
"""


def test_a_client_may_define_metrics_with_prometheus_client(tmp_path: Path) -> None:
    lines = run_python(tmp_path / "both", OUR_METRICS + CLIENT_METRIC + COUNT_AND_PRINT).splitlines()
    assert "of_a_client_total 5.0" in lines
    assert 'trireme_invocations_total{model="m",status="200"} 3.0' in lines


def test_the_gauges_of_an_ended_process_are_removed_and_its_counters_stay(
    tmp_path: Path,
) -> None:
    for kind in RESERVED_BYTES:
        series_file(tmp_path, kind, 7).touch()
    remove_gauges(tmp_path, 7)
    remaining = {series_file(tmp_path, kind, 7) for kind in ("counter", "histogram")}
    assert set(tmp_path.iterdir()) == remaining


def test_concurrent_threads_count_in_the_same_series() -> None:
    family = Counters("threads_total", "Of many threads.", ["number"])
    barrier = threading.Barrier(8)

    def count(_: int) -> None:
        for number in range(200):
            barrier.wait(10)
            family.labels(str(number)).inc()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(count, range(8)))
    assert {family.labels(str(number)).value for number in range(200)} == {8.0}


COUNT_MANY_SERIES = """
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector
from sm.metrics import FILES, INVOCATIONS

for start in range(2):
    for number in range(200):
        INVOCATIONS.labels(f"{number:09000}", "200").inc()
    if not start:
        # Like a process with the id of an earlier one: it finds that one's file and continues it.
        FILES._forget()
registry = CollectorRegistry()
MultiProcessCollector(registry)
print(generate_latest(registry).decode())
"""


def test_a_file_grows_and_a_later_process_with_the_same_id_continues_it(tmp_path: Path) -> None:
    exposition = run_python(tmp_path, COUNT_MANY_SERIES)
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) > 2**21
    assert exposition.count('status="200"} 2.0') == 200


def test_the_series_of_200_models_fit_the_reserved_disk_space(tmp_path: Path) -> None:
    """With every status that callers and models can cause."""
    script = (
        "from sm.metrics import duration, invocations\n"
        "for number in range(200):\n"
        "    model = f'{number:064}'\n"
        "    for status in (200, 400, 404, 413, 415, 422, 429, 499, 500, 503, 504):\n"
        "        invocations(model, status)\n"
        "        duration(model, 'total', status)\n"
        "    for stage in ('queue', 'decode', 'preprocess', 'infer', 'postprocess'):\n"
        "        duration(model, stage, 200)\n"
        "    duration(model, 'queue', 499)\n"
        "    duration(model, 'decode', 422)\n"
        "    duration(model, 'infer', 503)\n"
    )
    run_python(tmp_path, script)
    files = list(tmp_path.iterdir())
    assert files
    for file in files:
        kind = file.name.rpartition("_")[0]
        assert int.from_bytes(file.read_bytes()[:4], sys.byteorder) <= RESERVED_BYTES[kind], kind


OWN_METRICS = """
import os
from pathlib import Path
from types import SimpleNamespace
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector
from sm.client.own_metrics import MODES, Metrics, setting_up

def make(**makers):
    client = SimpleNamespace(name="m")
    client.metrics = Metrics(client)
    with setting_up(client):
        return {name: maker(client.metrics) for name, maker in makers.items()}

def show():
    registry = CollectorRegistry()
    MultiProcessCollector(registry)
    print(generate_latest(registry).decode())
"""
IN_THREE_PROCESSES = """
def gauge(mode):
    return lambda metrics: metrics.gauge(f"g_{mode}", "x", multiprocess_mode=mode)

def child(value):
    if os.fork():
        os.wait()
        return
    made = make(
        found=lambda metrics: metrics.counter("found", "x", {"animal": ("cat",)}),
        size=lambda metrics: metrics.histogram("size", "x", buckets=(1, 10)),
        **{mode: gauge(mode) for mode in MODES},
    )
    if value is not None:
        made["found"].labels("cat").inc(value)
        made["found"].labels("dog").inc()
        made["size"].observe(value)
        for mode in MODES:
            made[mode].set(value)
    os._exit(0)

for value in (7, 5, None):
    child(value)
show()
"""


def test_a_clients_own_metrics_are_summed_over_workers_and_gauges_as_their_mode_says(tmp_path: Path) -> None:
    """One of the three processes has set nothing: its zero is not the lowest value, or the last."""
    lines = run_python(tmp_path, OWN_METRICS + IN_THREE_PROCESSES).splitlines()
    assert {line.replace("trireme_client_", "") for line in lines if not line.startswith("#")} >= {
        'found_total{animal="cat",model="m"} 12.0',
        'found_total{animal="others",model="m"} 2.0',
        'size_bucket{le="10.0",model="m"} 2.0',
        'size_sum{model="m"} 12.0',
        'g_livesum{model="m"} 12.0',
        'g_livemin{model="m"} 5.0',
        'g_livemax{model="m"} 7.0',
        'g_livemostrecent{model="m"} 5.0',
    }
    gauges = list(tmp_path.glob("gauge_*"))
    assert gauges
    for path in gauges:
        remove_gauges(tmp_path, int(path.name.removesuffix("-trireme.db").rpartition("_")[2]))
    assert not list(tmp_path.glob("gauge_*"))


GROWING = """
made = {}
for number in range(8):
    made |= make(**{f"c{number}": lambda metrics, number=number: metrics.counter(
        f"c{number}", "x", {"number": range(400)})})
    for counter in made.values():
        counter.labels("7").inc()
show()
(path,) = Path(os.environ["PROMETHEUS_MULTIPROC_DIR"]).glob("counter_clients_*")
print("SPACE", path.stat().st_size, path.stat().st_blocks * 512)
"""


def test_the_file_of_clients_series_grows_with_its_disk_space_and_keeps_the_counts(tmp_path: Path) -> None:
    lines = run_python(tmp_path, OWN_METRICS + GROWING).splitlines()
    counts = [line for line in lines if 'number="7"' in line]
    assert [float(line.rpartition(" ")[2]) for line in counts] == [8, 7, 6, 5, 4, 3, 2, 1]
    size, space = map(int, lines[-1].split()[1:])
    assert size > 2**18
    assert space >= size


FULL = """
from contextlib import suppress
first = make(first=lambda metrics: metrics.counter("first", "x"))["first"]
with suppress(OSError), open(Path(os.environ["PROMETHEUS_MULTIPROC_DIR"], "fill"), "wb", buffering=0) as file:
    while True:
        file.write(bytes(4096))
second = make(second=lambda metrics: metrics.counter("second", "x", {"number": range(900)}))["second"]
first.inc()
second.labels("7").inc()
show()
"""


def test_metrics_without_disk_space_are_left_out_and_the_others_count(tmp_path: Path) -> None:
    disk = shlex.split(MOUNT_SMALL_DISK.format(size=1, folder=tmp_path))
    text = run_python(tmp_path, OWN_METRICS + FULL, disk)
    assert 'trireme_client_first_total{model="m"} 1.0' in text
    assert "second" not in text
