"""What contestants of a benchmark share, a short run, and the load generators, which check every response."""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from werkzeug import Request as HttpRequest
from werkzeug import Response

from bench import driver, files
from bench.__main__ import measure_draw
from bench.driver import Load, Request
from bench.measuring import Measurements
from bench.open_loop import plan_request
from bench.results import Results
from bench.samples import sample
from bench.work import WORKS
from sm.settings import HERE, Settings
from tests.support.http_server import server_with_fixed_response, serving
from trireme_tools.prepare.demo import prepare

REQUIREMENTS = HERE / "bench" / "contestants"
#: The libraries that do the work in every peer.
COMMON_LIBRARIES = ("onnxruntime", "numpy", "opencv-python-headless", "pillow", "tokenizers")
NEEDS_WRK = pytest.mark.skipif(shutil.which("wrk") is None, reason="there is no wrk: apt-get install wrk")


@pytest.fixture(scope="module")
def contestant_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files that all contestants use."""
    settings, folder = Settings.read({}), tmp_path_factory.mktemp("files")
    prepare(settings)
    files.prepare(folder, settings)
    return folder


@pytest.mark.parametrize("name", [path.stem for path in REQUIREMENTS.glob("*.txt")])
def test_each_peer_uses_the_same_library_versions_as_the_box(name: str) -> None:
    assert pinned_versions(REQUIREMENTS / f"{name}.txt") == pinned_versions(HERE / "locks/requirements.lock")


def pinned_versions(requirements: Path) -> set[str]:
    """The lines that pin :data:`COMMON_LIBRARIES`, with their Python version markers, here or in included files."""
    lines = requirements.read_text().splitlines()
    included = (requirements.parent / line.removeprefix("-r ") for line in lines if line.startswith("-r "))
    lines += [line for file in included for line in file.read_text().splitlines()]
    return {line.removesuffix(" \\") for line in lines if line.split("==")[0] in COMMON_LIBRARIES}


@pytest.mark.parametrize("model", list(WORKS))
def test_the_work_that_contestants_share_gives_the_expected_result(
    model: str, contestant_files: Path
) -> None:
    result = WORKS[model](contestant_files, "instant")(sample(model).content)
    assert sample(model).expected in json.dumps(result).encode()


@pytest.mark.exhaustive
@NEEDS_WRK
def test_a_run_records_speed_errors_and_memory_of_the_box(contestant_files: Path) -> None:
    results = Results({}, {}, {"trireme": "this box"})
    measurements = Measurements(["bert_base"], ["json"], [2], 1.0)
    measure_draw(results, "trireme", "instant", 0, measurements, contestant_files)
    assert not results.missing
    (record,) = results.records
    assert record.answers > 10
    assert record.wrong == record.lost == 0
    assert record.cost > 0
    assert record.memory > record.own_memory > 0


@NEEDS_WRK
def test_wrk_checks_every_response(tmp_path: Path) -> None:
    count = itertools.count()

    def unreliable(request: HttpRequest) -> Response:
        """One response of three is right, one has other content, one another status."""
        content, kind = request.get_data(), next(count) % 3
        return Response(b"cat" if kind == 1 else b"a dog, " + content, 500 if kind == 2 else 200)

    request = Request("/", {"Content-Type": "text/plain"}, b"and\x00a bone\xff" * 1000, b"a bone")
    with serving(unreliable) as url:
        command = driver.wrk(request, int(url.rpartition(":")[2]), 1, 3.0, tmp_path)
        output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    load = Load.read(output)
    assert load.answers > 3
    assert abs(load.wrong - 2 * load.answers) <= 2
    assert load.lost == 0
    assert 0 < load.p50 <= load.p99 <= load.max


@pytest.mark.parametrize(
    ("plan", "status", "document", "counted"),
    [
        ({"rates": {"a": 40}}, 200, "wrong", "failed"),
        ({"rates": {"a": 40}}, 429, "right", "refused"),
        # One function counts for all plans.
        ({"flood": {"a": 2}}, 500, "no", "failed"),
        ({"mix": 2, "shares": {"a": 1}}, 200, "right", "seconds"),
    ],
)
def test_the_open_loop_counts_each_response_by_its_outcome(
    tmp_path: Path, status: int, document: str, counted: str, plan: dict[str, object]
) -> None:
    request = plan_request(Request("/x", {"Content-Type": "application/json"}, b'{"text":"a"}', b"right"))
    with server_with_fixed_response(status, document) as server:
        common = {"port": urlsplit(server.url).port, "seconds": 0.5, "seed": 1, "requests": {"a": request}}
        (tmp_path / "plan.json").write_text(json.dumps({**common, **plan}))
        command = (sys.executable, "-m", "bench.open_loop", str(tmp_path / "plan.json"))
        printed = subprocess.run(command, cwd=HERE, capture_output=True, timeout=60, check=True).stdout
        sent = len(server.request_bodies)
    counts = json.loads(printed)["a"]
    counts["seconds"], in_time = len(counts["seconds"]), counts.pop("in_time")
    assert counts[counted] == sum(counts.values()) == sent > 0
    assert in_time <= counts["seconds"]
