"""Python models that cannot start. Triton 2.51 waits for ever for a model whose process ends during an import."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sm.triton.server import MAX_STUCK_LOADS
from tests.support.box_fixture import Boxes
from tests.support.boxes import retry_until_ok
from tests.support.model_archives import multiplying_model
from tests.support.multi_model_endpoint import MultiModelEndpoint, running_endpoint

EXIT_AT_IMPORT = "import os\nos._exit(3)\n"
CRASH_AT_IMPORT = "import ctypes\nctypes.string_at(0)\n"
#: Long enough to load a good model beside those that hang, on a busy machine.
LOAD_TIMEOUT_S = 12
REASON = "cannot be loaded: the process of its model.py ended with exit code 3 while it was imported"


def write_model_starting_with(folder: Path, first: str = EXIT_AT_IMPORT) -> None:
    """Write a model whose ``model.py`` begins with ``first``."""
    multiplying_model().write(folder)
    script = folder / "1" / "model.py"
    script.write_text(first + script.read_text())


def write_archive_starting_with(endpoint: MultiModelEndpoint, name: str, first: str = "") -> str:
    """Write an archive whose ``model.py`` begins with ``first``. Returns its URL."""
    url = endpoint.platform.write_flat(name)
    script = Path(url) / "1" / "model.py"
    script.write_text(first + script.read_text())
    return url


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MultiModelEndpoint]:
    folder = tmp_path_factory.mktemp("endpoint")
    with running_endpoint(folder, SAGEMAKER_STARTUP_TIMEOUT=str(LOAD_TIMEOUT_S)) as endpoint:
        yield endpoint


def test_a_model_whose_process_ends_during_its_import_stops_the_start(boxes: Boxes, tmp_path: Path) -> None:
    write_model_starting_with(tmp_path / "repository" / "resnet")
    multiplying_model().write(tmp_path / "repository" / "good")
    assert f"the model 'resnet' {REASON}" in boxes.failed_start(tmp_path / "repository")


@pytest.mark.exhaustive
def test_three_hanging_loads_fail_without_delaying_others_and_free_their_names(
    endpoint: MultiModelEndpoint,
) -> None:
    hanging = {"first": EXIT_AT_IMPORT, "second": CRASH_AT_IMPORT, "third": EXIT_AT_IMPORT}
    urls = {name: write_archive_starting_with(endpoint, name, first) for name, first in hanging.items()}
    with ThreadPoolExecutor(3) as pool:
        loads = {name: pool.submit(endpoint.load, name, url) for name, url in urls.items()}
        assert endpoint.load("good", write_archive_starting_with(endpoint, "good")).status_code == 200
        assert endpoint.invoke("good").json()["outputs"][0]["data"] == [1.0, 2.0]
        responses = {name: load.result() for name, load in loads.items()}
    for name, ending in (
        ("first", "exit code 3"),
        ("second", "signal 11 (SIGSEGV)"),
        ("third", "exit code 3"),
    ):
        assert responses[name].status_code == 400, responses[name].text
        error = responses[name].json()["error"]
        assert f"the process of its model.py ended with {ending} while it was imported" in error
    assert endpoint.names() == ["good"]
    # A good model can then be loaded under each of these names.
    for name in hanging:
        assert endpoint.load(name, write_archive_starting_with(endpoint, name)).status_code == 200
        assert endpoint.invoke(name).json()["outputs"][0]["data"] == [1.0, 2.0]
    for name in (*hanging, "good"):
        assert endpoint.unload(name).status_code == 200


@pytest.mark.exhaustive
def test_a_load_that_takes_too_long_is_a_504_and_frees_its_name(endpoint: MultiModelEndpoint) -> None:
    response = endpoint.load(
        "slow", endpoint.platform.write_flat("slow", multiplying_model(seconds=3 * LOAD_TIMEOUT_S))
    )
    assert response.status_code == 504
    assert (
        f"Triton has not loaded 'slow' within {LOAD_TIMEOUT_S} s (SAGEMAKER_STARTUP_TIMEOUT"
        in response.json()["error"]
    )
    assert endpoint.names() == []
    assert endpoint.load("slow", endpoint.platform.write_flat("slow")).status_code == 200
    assert endpoint.invoke("slow").json()["outputs"][0]["data"] == [1.0, 2.0]
    endpoint.unload("slow")


@pytest.mark.exhaustive
def test_triton_is_restarted_when_too_many_loads_hang_and_keeps_its_models(
    endpoint: MultiModelEndpoint,
) -> None:
    assert endpoint.load("kept", write_archive_starting_with(endpoint, "kept")).status_code == 200
    names = [f"hanging{number}" for number in range(MAX_STUCK_LOADS)]
    with ThreadPoolExecutor(4) as pool:
        responses = list(
            pool.map(
                lambda name: endpoint.load(name, write_archive_starting_with(endpoint, name, EXIT_AT_IMPORT)),
                names,
            )
        )
    assert {response.status_code for response in responses} <= {400, 503, 504}
    endpoint.box.wait_for_log("loads do not end in Triton: it is started again")

    response = retry_until_ok(lambda: endpoint.invoke("kept"), 120)
    assert response.json()["outputs"][0]["data"] == [1.0, 2.0]
    assert endpoint.load("hanging0", write_archive_starting_with(endpoint, "hanging0")).status_code == 200
    assert endpoint.invoke("hanging0").status_code == 200
