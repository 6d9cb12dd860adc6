"""Options, the container under test, and the table at the end. Copy the folder to test any container."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import requests

from .container import JSON, Container, ModelRequest, find_archives
from .table import PROPERTY, Table, row_of

MODES = ("single", "mme", "batch")
TABLE = pytest.StashKey[Table]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("contract", "SageMaker's container contract")
    group.addoption("--url", help="the container to test; Trireme's own boxes, started here, if not given")
    group.addoption("--mode", choices=MODES, default="single", help="how that container was started")
    group.addoption("--model", default="", help="the model for v2 requests; the first that is ready")
    group.addoption("--body", type=Path, help="the body of a request that must get a 200")
    group.addoption("--content-type", default=JSON, help=f"its content type ({JSON})")
    group.addoption(
        "--model-dir",
        metavar="HERE[:THERE]",
        help="mme: a folder with NAME/model for each archive, here and as the container sees it",
    )
    group.addoption("--contract-json", type=Path, metavar="FILE", help="write the table to this file too")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[TABLE] = Table()
    config.pluginmanager.register(config.stash[TABLE])
    config.addinivalue_line("markers", "modes(*names): the modes of a container that a promise is for")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test in each of its modes."""
    if "container" in metafunc.fixturenames:
        marker = metafunc.definition.get_closest_marker("modes")
        metafunc.parametrize("container", marker.args if marker else MODES, indirect=True, scope="session")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Each mode's tests after each other, for one box of each; with --url those of the container's mode alone."""
    places = [place for place, item in enumerate(items) if mode_of(item)]
    tests = sorted((items[place] for place in places), key=lambda item: MODES.index(mode_of(item)))
    for place, item in zip(places, tests, strict=True):
        items[place] = item
    if config.getoption("--url", default=None):
        deselected = [item for item in items if mode_of(item) not in ("", config.getoption("--mode"))]
        items[:] = [item for item in items if item not in deselected]
        config.hook.pytest_deselected(items=deselected)


def mode_of(item: pytest.Item) -> str:
    """The mode that a test runs in; empty for a test without a container."""
    parameters = getattr(item, "callspec", None)
    return str(parameters.params.get("container", "")) if parameters else ""


@pytest.fixture(scope="session")
def container(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Container]:
    """The container in the test's mode."""
    mode, config = request.param, request.config
    if config.getoption("--url", default=None):
        yield container_from_options(config, mode)
        return
    try:
        from . import own
    except ImportError as error:
        pytest.fail(f"give the container's address with --url: there is no box here to start ({error})")
    with own.start_box(mode, tmp_path_factory.mktemp(mode)) as box:
        yield box


def container_from_options(config: pytest.Config, mode: str) -> Container:
    """The container given with --url, and what the other options say of it."""
    container = Container(config.getoption("--url").rstrip("/"), mode, model=config.getoption("--model"))
    try:
        container.request("GET", "/ping")
    except requests.RequestException as error:
        pytest.exit(f"no response from {container.url}: {error}", returncode=4)
    body = config.getoption("--body")
    if body:
        container.given_request = ModelRequest(body.read_bytes(), config.getoption("--content-type"))
    container.archives = tuple(find_archives(config.getoption("--model-dir") or ""))
    return container


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[Any]) -> Any:
    """Put the row into the report, as the test may run in another process than the one with the table."""
    report: pytest.TestReport = yield
    if (report.when == "call" or not report.passed) and mode_of(item):
        report.user_properties.append((PROPERTY, asdict(row_of(item, report, mode_of(item)))))
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    table = config.stash[TABLE]
    if not table.rows:
        return
    url = config.getoption("--url", default=None) or "Trireme's own box"
    terminalreporter.section(f"the contract of {url}")
    for line in table.lines():
        terminalreporter.line(line)
    other_modes = ", ".join(mode for mode in MODES if mode not in {row.mode for row in table.rows})
    if other_modes:
        terminalreporter.line(
            f"for {other_modes}: start the container in that mode, and run again with --mode"
        )
    file = config.getoption("--contract-json", default=None)
    if file:
        table.write(file, url)
