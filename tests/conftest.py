"""Markers by folder, groups of tests that share a slow fixture, a short path, and CI's rules for skips and reruns."""

from __future__ import annotations

import contextlib
import os
import socket
import tempfile
from collections.abc import Generator, Iterable, Iterator
from functools import cache
from pathlib import Path, PurePosixPath

import pytest
from hypothesis import HealthCheck, settings

from tests.support.known_skips import unknown_skips

#: The markers of each folder's tests; a folder that is not here fails the collection.
FOLDER_MARKERS = {
    "cluster": ("cluster",),
    "contract": ("integration", "core"),
    "e2e": ("e2e",),
    "integration": ("integration",),
    "newcomer": ("integration",),
    "unit": ("unit",),
}
#: The groups that take over a minute. Processes take groups in the order of the tests, so a long one must not come last.
LONG_GROUPS = (
    "image",
    "gpu image",
    "deploy",
    "streaming",
    "browser",
    "push",
    "contract",
    "triton",
    "multi-model box",
    "tests/integration/server/test_fetch_at_start.py",
    "gateway",
    "demo box",
    "tests/integration/check/test_check_client.py",
    "tests/integration/box/test_hostile_archives.py",
    "tests/integration/models/test_downloads.py",
    "tests/integration/box/test_faults.py",
    "tests/integration/box/test_one_models_trouble.py",
    "tests/integration/models/test_on_demand.py",
    "tests/integration/s3/test_capture.py",
)
#: The order of the other groups' folders: the unit tests fill the end.
ORDER = ("e2e", "newcomer", "cluster", "integration", "contract", "unit")
#: GitHub sets it, and so does .ci/run.
IN_CI = os.environ.get("CI") == "true"
# Hypothesis fails an example that takes over 200 ms, and on a shared machine any example may. In CI the examples are
# the same in each run, so that a failure is the change's; on a developer's machine they are new ones.
settings.register_profile(
    "untimed",
    deadline=None,
    derandomize=IN_CI,
    database=None if IN_CI else settings.default.database,  # type: ignore[union-attr]
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("untimed")
#: In CI a failed test runs once more, as its machines are shared; a unit test does not. More reruns than this in a
#: run, over all its processes, fail it.
MAX_RERUNS = 3
#: What ran beside the test may have ended by then.
RERUN_DELAY_S = 10
#: What tests share that takes long to make (the image, a Triton, a box): their folders and files, without test_ and .py.
SHARED = {
    "access": ("integration/access",),
    "browser": ("e2e/browser",),
    "contract": ("contract",),
    "deploy": ("e2e/deploy",),
    "demo box": (
        *(f"integration/box/{name}" for name in ("answers", "many_records", "page_code", "pages", "readme")),
        "integration/invoke/invoke",
        *(f"integration/server/{name}" for name in ("selftest", "thread_worker")),
    ),
    "gateway": ("integration/gateway",),
    # Before "image": the first group that fits is a test's own.
    "gpu image": ("e2e/container/gpu_flavour",),
    "image": ("e2e/container",),
    "official boxes": tuple(f"integration/reference/official_{name}" for name in ("control", "repositories")),
    "push": ("e2e/push",),
    "multi-model box": ("integration/box/dashboard", "integration/box/multi_model"),
    "small box": tuple(
        f"integration/box/{name}"
        for name in (
            *("headers", "hostile_bodies", "http_conformance", "known_holes", "official_statuses"),
            *("sessions", "v2"),
        )
    ),
    "streaming": ("integration/streaming",),
    "team box": tuple(f"integration/box/{name}" for name in ("embeddings_api", "reload", "tasks")),
    "triton": tuple(
        f"integration/triton/{name}"
        for name in (
            *("client_calls", "deadlines", "doubted_answers", "onnx_cpu", "request_token"),
            *("streams", "sweep", "transport", "warmup"),
        )
    ),
}


@cache
def group_of(file: PurePosixPath) -> str:
    """What is run in one process: the tests of a file, or of those that share something."""
    inside = file.relative_to("tests")
    paths = {str(path) for path in (inside.with_name(inside.stem.removeprefix("test_")), *inside.parents)}
    return next((group for group, shared in SHARED.items() if not paths.isdisjoint(shared)), str(file))


def box_of(item: pytest.Item) -> str:
    """Which of the boxes of its group a test asks, if there are several: each may be in a process of its own."""
    callspec = getattr(item, "callspec", None)
    return str(callspec.params.get("container", "")) if callspec else ""


def place_in_order(item: pytest.Item) -> tuple[int, int]:
    """Return what the tests are sorted by: their group if it is a long one, then their folder."""
    file = PurePosixPath(item.nodeid.partition("::")[0])
    group = group_of(file)
    place = LONG_GROUPS.index(group) if group in LONG_GROUPS else len(LONG_GROUPS)
    return place, ORDER.index(file.parts[1])


def check_collection(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Fail a run of all tests if a test file on disk is not in it."""
    if config.args != config.getini("testpaths"):
        return
    ignored = [Path(path).resolve() for path in config.getoption("ignore") or ()]
    on_disk = {
        path
        for path in (config.rootpath / "tests").rglob("test_*.py")
        if not any(path.is_relative_to(folder) for folder in ignored)
    }
    if missing := on_disk - {item.path for item in items}:
        raise pytest.UsageError(f"pytest collects no test of {', '.join(sorted(map(str, missing)))}")


# First, as xdist reads the groups in the same hook.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    check_collection(config, items)
    items.sort(key=place_in_order)
    for item in items:
        file = PurePosixPath(item.nodeid.partition("::")[0])
        markers = FOLDER_MARKERS[file.parts[1]]
        for marker in markers:
            item.add_marker(marker)
        if IN_CI and "unit" not in markers:
            item.add_marker(pytest.mark.flaky(reruns=1, reruns_delay=RERUN_DELAY_S))
        item.add_marker(pytest.mark.xdist_group(f"{group_of(file)} {box_of(item)}".strip()))


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A folder for TMPDIR. That of ``tmp_path`` may be too long for a Unix socket below it."""
    with tempfile.TemporaryDirectory(prefix="t-", dir="/tmp") as folder:
        yield Path(folder)


class ReportReader:
    """Collects skips and reruns from the reports of all processes."""

    def __init__(self) -> None:
        self.skip_reasons: dict[str, str] = {}
        self.reruns: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped and isinstance(report.longrepr, tuple):
            self.skip_reasons[report.nodeid] = str(report.longrepr[2]).removeprefix("Skipped: ")
        if str(report.outcome) == "rerun":  # pytest-rerunfailures adds it to pytest's outcomes
            # A second try may fail by what the first left behind, and pytest shows the last try alone.
            crash = getattr(report.longrepr, "reprcrash", None)
            reason = crash.message.partition("\n")[0] if crash else ""
            self.reruns.append(f"{report.nodeid}: {reason}")

    def problems(self) -> list[str]:
        """What fails a run in CI whose tests passed: skips that hide a test, and too many reruns."""
        problems = [
            f"skipped, and not in tests/support/known_skips.py: {test}: {reason}"
            for test, reason in unknown_skips(self.skip_reasons).items()
        ]
        if len(self.reruns) > MAX_RERUNS:
            problems.append(f"{len(self.reruns)} reruns; a run of the tests may have {MAX_RERUNS}")
        return problems


READER = pytest.StashKey[ReportReader]()
PORTS = pytest.StashKey[list[socket.socket]]()
#: The defaults of a box, of its TLS and of Triton. A developer's ``make serve`` may have them.
DEFAULT_PORTS = (8080, 8443, 8000, 8001, 8002)


def take_ports(numbers: Iterable[int]) -> list[socket.socket]:
    """Take ports that nobody has, so that a test which needs one of them fails."""
    taken = []
    for port in numbers:
        with contextlib.suppress(OSError):
            taken.append(socket.create_server(("", port)))
    return taken


def pytest_configure(config: pytest.Config) -> None:
    # Only where the reports of all processes arrive.
    if IN_CI and not hasattr(config, "workerinput"):
        config.stash[READER] = ReportReader()
        config.pluginmanager.register(config.stash[READER])
        config.stash[PORTS] = take_ports(DEFAULT_PORTS)


def pytest_unconfigure(config: pytest.Config) -> None:
    for taken in config.stash.get(PORTS, []):
        taken.close()


# Last: pytest's own hook sets the status from the failures.
@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    reader = session.config.stash.get(READER, None)
    if reader and reader.problems() and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


# The outermost wrapper, so that this stands below pytest's own summary.
@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> Generator[None, None, None]:
    yield
    if reader := config.stash.get(READER, None):
        for problem in reader.problems():
            terminalreporter.line(problem, red=True)
        for test in reader.reruns:
            terminalreporter.line(f"ran again: {test}", yellow=True)
