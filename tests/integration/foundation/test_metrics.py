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

from sm.metrics.files import RESERVED_BYTES, reserve
from tests.support.disks import MOUNT_SMALL_DISK


def has_its_space(path: Path) -> bool:
    status = path.stat()
    return status.st_blocks * 512 >= status.st_size


def test_the_disk_space_of_a_workers_series_is_reserved(tmp_path: Path) -> None:
    reserve(tmp_path, 7)
    assert {path.name: path.stat().st_size for path in tmp_path.iterdir()} == {
        f"{kind}_7.db": size for kind, size in RESERVED_BYTES.items()
    }
    assert all(map(has_its_space, tmp_path.iterdir()))


def run_python(folder: Path, code: str, prefix: Sequence[str] = ()) -> dict[str, float]:
    """Run a program whose series are in ``folder``, and return the series that it prints.

    ``prefix``: a command that runs it.
    """
    text = subprocess.run(
        [*prefix, sys.executable, "-c", PREPARE + code],
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
from pathlib import Path
from types import SimpleNamespace
from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.multiprocess import mark_process_dead
from sm import metrics
from sm.client.own_metrics import MODES, Metrics, setting_up
from sm.control.series import read_families

folder = Path(os.environ["PROMETHEUS_MULTIPROC_DIR"])

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
    mark_process_dead(child, str(folder))
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
"""


def test_the_series_of_200_models_fit_the_reserved_disk_space(tmp_path: Path) -> None:
    """With every status that callers and models can cause."""
    run_python(tmp_path, SERIES_OF_200_MODELS)
    used_bytes = {
        path.name.rpartition("_")[0]: int.from_bytes(path.read_bytes()[:4], sys.byteorder)
        for path in tmp_path.iterdir()
    }
    assert used_bytes.keys() == RESERVED_BYTES.keys()
    assert [kind for kind, used in used_bytes.items() if used > RESERVED_BYTES[kind]] == []


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
            made[mode].set(value - 1)
            made[mode].inc()
    os._exit(0)
show()
"""


def test_a_clients_own_metrics_are_summed_over_workers_and_gauges_as_their_mode_says(tmp_path: Path) -> None:
    """One of the three processes has set nothing: its zero is not the lowest value, or the last."""
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
                ("g_livemin,m", 5),
                ("g_livemax,m", 7),
                ("g_livemostrecent,m", 5),
            )
        }.items()
    )


ON_A_FULL_DISK = """
from contextlib import suppress
first = make(first=lambda metrics: metrics.counter("first", "x"))["first"]
metrics.REJECTED.labels("early").inc()
with suppress(OSError), open(folder / "fill", "wb", buffering=0) as file:
    while True:
        file.write(bytes(4096))
second = make(second=lambda metrics: metrics.counter("second", "x", {"number": range(900)}))["second"]
first.inc()
second.labels("7").inc()
for number in range(1000):
    metrics.REJECTED.labels(f"late-{number}").inc()
metrics.REJECTED.labels("early").inc()
if os.fork():
    os.wait()
    show()
else:
    metrics.REJECTED.labels("early").inc()
"""


def test_what_has_no_disk_space_is_left_out_and_the_rest_counts_on(tmp_path: Path) -> None:
    """No process ends: neither one whose series grow, nor one that starts on the full disk."""
    disk = shlex.split(MOUNT_SMALL_DISK.format(size=1, folder=tmp_path))
    series = run_python(tmp_path, ON_A_FULL_DISK, disk)
    assert series["client_first_total,m"] == 1
    assert series["model_rejected_total,early"] == 2
    assert series["model_rejected_total,late-0"] == 1
    assert "model_rejected_total,late-999" not in series
    assert not [name for name in series if "second" in name]
