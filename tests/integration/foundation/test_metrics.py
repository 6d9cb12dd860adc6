"""The series of several processes: their disk space, their sums, and those that clients make."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from sm.metrics.files import CLIENT_BYTES, PROCESS_BYTES, WORKER_BYTES, reserve
from tests.support.disks import MOUNT_SMALL_DISK


def has_its_space(path: Path) -> bool:
    status = path.stat()
    return status.st_blocks * 512 >= status.st_size


def test_the_space_of_the_workers_series_is_reserved_once(tmp_path: Path) -> None:
    reserve(tmp_path, 1)
    (tmp_path / "counter_new-0.db").rename(tmp_path / f"counter_{os.getpid()}.db")
    for _ in range(2):
        reserve(tmp_path, 2)
    sizes = {path.name: path.stat().st_size for path in tmp_path.iterdir()}
    assert sizes == {
        f"{kind}_{process}.db": size
        for kind, size in WORKER_BYTES.items()
        for process in ("new-0", str(os.getpid()) if kind == "counter" else "new-0")
    }
    assert all(map(has_its_space, tmp_path.iterdir()))


def run_python(folder: Path, code: str, prefix: Sequence[str] = ()) -> dict[str, float]:
    """Run a program whose series are in ``folder``, and return the series that it prints.

    ``prefix``: a command that runs it.
    """
    text = subprocess.run(
        [*prefix, sys.executable, "-c", PREPARE.replace("FOLDER", repr(str(folder))) + code],
        env={**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(folder)},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        timeout=60,
    ).stdout
    return {
        ",".join((sample.name.removeprefix("trireme_"), *sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


PREPARE = """
import os
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from sm import metrics
from prometheus_client import Counter, generate_latest
from sm.client.own_metrics import Metrics, setting_up
from sm.metrics.series import read_families
from sm.metrics.files import PROCESS_BYTES, WORKER_BYTES, forget_gauges, reserve, take_over

MODES = "livesum", "livemin", "livemax", "livemostrecent"
folder = Path(FOLDER)

def make(**makers):
    client = SimpleNamespace(name="m")
    client.metrics = Metrics(client)
    with setting_up(client):
        return {name: maker(client.metrics) for name, maker in makers.items()}

def show():
    print(generate_latest(SimpleNamespace(collect=lambda: read_families(folder))).decode())
"""
COUNT_IN_TWO = """
other = Counter("of_a_team_total", "A client may count with the library itself.")
metrics.IN_FLIGHT.inc(7)
child = os.fork()
for value in (0.0, *metrics.BUCKETS, 61.0):
    metrics.duration("m", "total", 200).observe(value)
metrics.invocations("m", 200).inc(2)
metrics.IN_FLIGHT.inc(3)
other.inc()
if child == 0:
    os._exit(0)
os.waitpid(child, 0)
if DIES:
    forget_gauges(folder)
show()
"""


@pytest.mark.parametrize(("dies", "in_flight"), [(False, 13), (True, 10)])
def test_counts_are_sums_over_processes_and_only_the_gauges_of_an_ended_one_go(
    tmp_path: Path, dies: bool, in_flight: int
) -> None:
    series = run_python(tmp_path, COUNT_IN_TWO.replace("DIES", str(dies)))
    assert series["invocations_total,m,200"] == 4
    assert series["invocation_duration_seconds_count,m,total,2xx"] == 2 * 17
    assert series["in_flight"] == in_flight
    assert series["of_a_team_total"] == 2


SERIES_OF_200_MODELS = """
if os.fork():
    os._exit(os.wait()[1])
take_over(folder, WORKER_BYTES)
for number in range(200):
    model = f"{number:064}"
    for status in (200, 400, 404, 413, 415, 422, 429, 499, 500, 503, 504):
        metrics.invocations(model, status)
        metrics.duration(model, "total", status)
    for stage in ("queue", "decode", "preprocess", "infer", "postprocess"):
        metrics.duration(model, stage, 200)
    metrics.duration(model, "queue", 499)
    metrics.duration(model, "decode", 422)
    metrics.duration(model, "infer", 503)
    metrics.served(model)
    metrics.REPEATS.labels(metrics.MODELS.of(model))
"""


def test_the_series_of_200_models_fit_the_reserved_space_beside_those_of_the_clients(tmp_path: Path) -> None:
    """With every status that callers and models can cause."""
    run_python(tmp_path, SERIES_OF_200_MODELS)
    used = {
        path.name.rpartition("_")[0]: int.from_bytes(path.read_bytes()[:4], sys.byteorder)
        for path in tmp_path.iterdir()
        if path.stat().st_size in WORKER_BYTES.values()
    }
    for kind in ("counter", "histogram", "gauge_livesum"):
        assert 0 < used[kind] <= WORKER_BYTES[kind] - CLIENT_BYTES[kind], kind


SERIES_OF_THE_CONTROL_PLANE = """
if os.fork():
    os._exit(os.wait()[1])
take_over(folder, PROCESS_BYTES)
for number in range(200):
    model = metrics.MODELS.of(f"{number:064}")
    for events in (metrics.RELOADS, metrics.HANGS, metrics.REPEATS, metrics.EVICTIONS, metrics.FETCHED_BYTES):
        events.labels(model).inc()
    for part in ("fetch", "load", "wait"):
        metrics.LOAD_SECONDS.labels(model, part).inc()
    for outcome in ("loaded", "failed"):
        metrics.LOADS.labels(model, outcome).inc()
show()
print("# SIZE", (folder / f"counter_{os.getpid()}.db").stat().st_size)
"""


def test_the_series_of_200_models_that_the_control_plane_loads_fit_its_file(tmp_path: Path) -> None:
    series = run_python(tmp_path, SERIES_OF_THE_CONTROL_PLANE)
    assert series["model_evictions_total,others"] == 200 - 64
    assert {path.stat().st_size for path in tmp_path.glob("counter_*")} == {PROCESS_BYTES["counter"]}


GENERATIONS = """
for generation in range(8):
    if os.fork():
        assert os.wait()[1] == 0
        continue
    metrics.count_on(folder, WORKER_BYTES)
    for number in range(64):
        model = f"{generation}-{number:062}"
        for status in (200, 400, 404, 413, 415, 422, 429, 499, 500, 503, 504):
            metrics.invocations(model, status).inc()
            metrics.duration(model, "total", status).observe(1)
        for stage in range(20):
            metrics.duration(model, f"{generation}-{stage}", 200).observe(1)
    own = make(
        same=lambda made: made.counter("same", "x", {"number": range(400)}),
        other=lambda made: made.counter(f"other_{generation}", "x", {"number": range(400)}),
    )
    for number in range(400):
        own["same"].labels(number).inc()
        own["other"].labels(number).inc()
    os._exit(0)
show()
"""


def test_workers_with_other_models_each_time_never_outgrow_the_files_that_they_take_over(
    tmp_path: Path,
) -> None:
    """The first 64 models and the first metrics that have room count by name, whoever counted them."""
    series = run_python(tmp_path, GENERATIONS)
    sizes = {
        (path.name.split("_")[0], path.stat().st_size) for path in tmp_path.glob("[ch]*.db")
    }  # and those of the process that starts them
    kept = {(kind, WORKER_BYTES[kind]) for kind in ("counter", "histogram")}
    assert sizes == {*kept, ("counter", PROCESS_BYTES["counter"])}
    assert sum(value for name, value in series.items() if name.startswith("invocations_total")) == 8 * 64 * 11
    assert series["invocations_total,others,200"] == 7 * 64
    assert series["client_same_total,others,7"] == 8


OWN_NUMBER = """
reserve(folder, 2)
for number in range(3):
    if os.fork():
        os.wait()
        continue
    if number:  # the number of the process that ended is used again
        for file in folder.glob("*.db"):
            kind, _, process = file.stem.rpartition("_")
            if kind == "counter" and "new" not in process and file.stat().st_size == WORKER_BYTES["counter"]:
                for kind in WORKER_BYTES:
                    (folder / f"{kind}_{process}.db").rename(folder / f"{kind}_{os.getpid()}.db")
                break
    metrics.count_on(folder, (WORKER_BYTES, PROCESS_BYTES, WORKER_BYTES)[number])
    metrics.invocations("m", 200).inc()
    metrics.IN_FLIGHT.inc()
    if number == 2:
        show()
    os._exit(0)
"""


def test_a_process_with_the_number_of_one_that_ended_counts_on_in_its_files(tmp_path: Path) -> None:
    series = run_python(tmp_path, OWN_NUMBER)
    assert (series["invocations_total,m,200"], series["in_flight"]) == (3, 1)


OWN_IN_THREE_PROCESSES = """
for value in (7, 5, None):
    if os.fork():
        os.wait()
        continue
    made = make(
        found=lambda metrics: metrics.counter("found", "x", {"animal": ("cat",)}),
        size=lambda metrics: metrics.histogram("size", "x", buckets=(1, 10)),
        **{mode: lambda metrics, mode=mode: metrics.gauge(f"g_{mode}", "x", multiprocess_mode=mode)
           for mode in MODES},
    )
    if value is not None:
        made["found"].labels("cat").inc(value)
        made["found"].labels("dog").inc()
        made["size"].observe(value)
        for mode in MODES:
            made[mode].set(value)
    os._exit(0)
show()
"""


def test_a_clients_own_metrics_are_summed_over_workers_and_gauges_as_their_mode_says(tmp_path: Path) -> None:
    """One of the three processes has set nothing: its zero is the lowest value, and not the last."""
    series = run_python(tmp_path, OWN_IN_THREE_PROCESSES)
    assert (
        series.items()
        >= {
            f"client_{name}": number
            for name, number in (
                ("found_total,cat,m", 12),
                ("found_total,others,m", 2),
                ("size_count,m", 2),
                ("size_sum,m", 12),
                ("g_livesum,m", 12),
                ("g_livemin,m", 0),
                ("g_livemax,m", 7),
                ("g_livemostrecent,m", 5),
            )
        }.items()
    )


IN_FULL_MEMORY = """
reserve(folder, 2)

def count(name, model):
    take_over(folder, WORKER_BYTES)
    metrics.IN_FLIGHT.inc()
    for number in range(200):
        metrics.invocations(f"{model}-{number}", 200).inc()
        metrics.duration(f"{model}-{number}", "total", 200).observe(1)
    make(**{name: lambda made: made.counter(name, "x", {"number": range(400)})})[name].labels("7").inc()

def run(*arguments):
    if os.fork() == 0:
        count(*arguments)
        os._exit(0)
    assert os.wait()[1] == 0

run("first", "a")
with suppress(OSError), open(folder / "fill", "wb", buffering=0) as file:
    while True:
        file.write(bytes(4096))
for _ in range(4):
    run("first", "b")
run("second", "b")
forget_gauges(folder)
show()
"""


def test_in_full_memory_no_process_ends_and_a_new_one_counts_on_in_the_files_of_one_that_ended(
    tmp_path: Path,
) -> None:
    size = 2 + 2 * sum(WORKER_BYTES.values()) // 2**20
    disk = shlex.split(MOUNT_SMALL_DISK.format(size=size, folder=tmp_path))
    series = run_python(tmp_path, IN_FULL_MEMORY, disk)
    assert series["client_first_total,others,7"] == 5
    assert series["client_second_total,others,7"] == 1
    assert series["invocations_total,a-0,200"] == 1
    assert series["invocations_total,b-0,200"] == 5
    assert sum(value for name, value in series.items() if name.startswith("invocations_total,")) == 6 * 200
    assert series["invocation_duration_seconds_count,others,total,2xx"] == 6 * (200 - 64)
    assert series.get("in_flight", 0) == 0


def test_a_process_that_starts_in_full_memory_counts_for_itself(tmp_path: Path) -> None:
    disk = shlex.split(MOUNT_SMALL_DISK.format(size=1, folder=tmp_path))
    fill = f"sh -c 'cat /dev/zero > {tmp_path}/fill 2>&-; exec \"$@\"' sh"
    series = run_python(tmp_path, "metrics.invocations('m', 200).inc()\nshow()", [*disk, *shlex.split(fill)])
    assert series == {}


IN_MEMORY_THAT_WAS_NEVER_RESERVED = """
reserve(folder, 1)
with suppress(OSError), open(folder / "fill", "wb", buffering=0) as file:
    while True:
        file.write(bytes(4096))
if os.fork() == 0:
    metrics.count_on(folder, WORKER_BYTES)
    for number in range(200):
        metrics.invocations(f"m-{number}", 200).inc()
        metrics.duration(f"m-{number}", "total", 200).observe(1)
    own = make(own=lambda made: made.counter("own", "x"))["own"]
    own.inc()
    assert own._value.get() == 1
    os._exit(0)
assert os.wait()[1] == 0
show()
"""


OF_THE_WORKER = {"invocations_total,m-0,200", "client_own_total,m"}


def test_a_worker_without_reserved_space_counts_in_its_own_memory(tmp_path: Path) -> None:
    disk = shlex.split(MOUNT_SMALL_DISK.format(size=2, folder=tmp_path))
    assert run_python(tmp_path, IN_MEMORY_THAT_WAS_NEVER_RESERVED, disk).keys() & OF_THE_WORKER == set()
