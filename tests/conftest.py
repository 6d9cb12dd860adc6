"""Markers by folder, groups of tests that share a slow fixture, a short path, and the skips that are known."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import pytest
from hypothesis import HealthCheck, settings

from tests.support.fresh_fixtures import FreshFixtures
from tests.support.known_skips import unknown_skips

# Hypothesis fails an example that takes over 200 ms, and on a shared machine any example may.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")

KINDS = ("unit", "integration", "e2e")
#: Folders whose tests share something that takes long to make (the image, a Triton, a box in each mode).
SHARED = {
    "e2e/browser": "browser",
    "e2e/container": "image",
    "e2e/push": "image",
    "contract": "contract",
    "integration/access": "access",
    "integration/gateway": "gateway",
    "integration/triton": "triton",
}


#: The files and folders of ``make test``, beside the unit tests: what callers send, and the parts under it.
CORE = (
    "contract",
    "integration/access/test_api_keys.py",
    "integration/access/test_headers.py",
    "integration/box/test_admission.py",
    "integration/box/test_answers.py",
    "integration/box/test_bad_input.py",
    "integration/box/test_headers.py",
    "integration/box/test_v2.py",
    "integration/foundation",
    "integration/inspection",
    "integration/multimodel/test_clients.py",
    "integration/multimodel/test_copying.py",
    "integration/project/test_docs.py",
    "integration/reference/test_article_requests.py",
    "integration/reference/test_table.py",
    "integration/s3/test_box.py",
    "integration/server/test_error_responses.py",
    "integration/server/test_start_imports.py",
    "integration/server/test_thread_worker.py",
    "integration/server/test_worker_against_gthread.py",
    "integration/sessions",
    "integration/supervisor/test_front.py",
    "integration/supervisor/test_supervisor.py",
    "integration/supervisor/test_unavailable_responder.py",
    "integration/triton/test_deadlines.py",
    "integration/triton/test_pooled_grpc.py",
    "integration/triton/test_pooled_http.py",
    "integration/triton/test_server.py",
    "integration/triton/test_streams.py",
    "integration/triton/test_transport.py",
    "integration/triton/test_wire.py",
    "integration/triton/test_wire_against_h2.py",
)


def group_of(file: PurePosixPath) -> str:
    """What is run in one process: the tests of a file, or of a folder above."""
    folders = {str(folder) for folder in file.relative_to("tests").parents}
    return next((group for folder, group in SHARED.items() if folder in folders), str(file))


def is_core(file: PurePosixPath) -> bool:
    """Whether ``make test`` runs it, beside the unit tests."""
    return any(file.is_relative_to(PurePosixPath("tests", part)) for part in CORE)


# First, as xdist reads the groups in the same hook.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        file = PurePosixPath(item.nodeid.partition("::")[0])
        kind = file.parts[1] if file.parts[0] == "tests" and file.parts[1] in KINDS else "integration"
        item.add_marker(kind)
        if is_core(file):
            item.add_marker("core")
        item.add_marker(pytest.mark.xdist_group(group_of(file)))


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A folder for TMPDIR. That of ``tmp_path`` may be too long for a Unix socket below it."""
    with tempfile.TemporaryDirectory(prefix="t-", dir="/tmp") as folder:
        yield Path(folder)


class SkipReader:
    """Collects the reasons of skipped tests, from the reports of all processes."""

    def __init__(self) -> None:
        self.reasons: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped and isinstance(report.longrepr, tuple):
            self.reasons[report.nodeid] = str(report.longrepr[2]).removeprefix("Skipped: ")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(SkipReader(), SkipReader.__name__)
    config.pluginmanager.register(FreshFixtures(), FreshFixtures.__name__)


# Last: pytest's own hook sets the status from the failures.
@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """In CI a skip that nobody has listed fails the run: it hides a test."""
    if unlisted(session.config) and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for test, reason in unlisted(config).items():
        terminalreporter.line(f"skipped, and not in tests/support/known_skips.py: {test}: {reason}", red=True)


def unlisted(config: pytest.Config) -> dict[str, str]:
    """The skips that fail this run; none outside CI, and none in the processes of xdist."""
    reader = config.pluginmanager.get_plugin(SkipReader.__name__)
    if reader is None or os.environ.get("CI") != "true" or hasattr(config, "workerinput"):
        return {}
    return unknown_skips(reader.reasons)
