"""Python models that cannot start. Triton 2.51 waits for ever for one whose process ends at an import."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sm.triton.server import MAX_STUCK_LOADS
from tests.support.boxes import retry_until_ok, running_box, wait_until
from tests.support.model_archives import ArchiveFolder, multiplying_model
from tests.support.multi_model_endpoint import Endpoint

EXIT = "import os\nos._exit(3)\n"
CRASH = "import ctypes\nctypes.string_at(0)\n"
#: Seconds that a load may take here: long enough for a good model beside those that hang, on a busy machine.
LIMIT = 25
ENDED = "cannot be loaded: the process of its model.py ended with exit code 3 while it was imported"


def write_ending(folder: Path, first: str = EXIT) -> None:
    """A model whose ``model.py`` begins with these lines."""
    multiplying_model().write(folder)
    script = folder / "1" / "model.py"
    script.write_text(first + script.read_text())


def flat(endpoint: Endpoint, name: str, first: str = "") -> str:
    """The url of an archive whose ``model.py`` begins with these lines."""
    url = endpoint.platform.flat(name)
    script = Path(url) / "1" / "model.py"
    script.write_text(first + script.read_text())
    return url


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    folder = tmp_path_factory.mktemp("endpoint")
    platform = ArchiveFolder(folder / "archives")
    with running_box(
        folder,
        None,
        SAGEMAKER_MULTI_MODEL="true",
        TRIREME_MODEL_ARCHIVES=str(platform.home),
        TRIREME_LOAD_TIMEOUT=str(LIMIT),
    ) as started:
        yield Endpoint(started, platform)


def test_a_repository_with_a_model_that_ends_while_it_is_imported_stops_the_start(tmp_path: Path) -> None:
    write_ending(tmp_path / "repository" / "resnet")
    multiplying_model().write(tmp_path / "repository" / "good")
    with running_box(tmp_path, tmp_path / "repository", wait_until_ready=False) as box:
        wait_until(lambda: ENDED in box.ping()[1] or box.process.poll() is not None, description="the reason")
        assert box.process.wait(60) == 1
    assert f"the model 'resnet' {ENDED}" in box.log.read_text()


def test_three_loads_that_hang_hold_up_nobody_and_their_names_are_free(endpoint: Endpoint) -> None:
    bad = {"first": EXIT, "second": CRASH, "third": EXIT}
    urls = {name: flat(endpoint, name, first) for name, first in bad.items()}
    with ThreadPoolExecutor(3) as pool:
        loads = {name: pool.submit(endpoint.load, name, url) for name, url in urls.items()}
        assert endpoint.load("good", flat(endpoint, "good")).status_code == 200
        assert endpoint.invoke("good").json()["outputs"][0]["data"] == [1.0, 2.0]
        answers = {name: load.result() for name, load in loads.items()}
    for name, ending in (
        ("first", "exit code 3"),
        ("second", "signal 11 (SIGSEGV)"),
        ("third", "exit code 3"),
    ):
        assert answers[name].status_code == 400, answers[name].text
        error = answers[name].json()["error"]
        assert f"the process of its model.py ended with {ending} while it was imported" in error
    assert endpoint.names() == ["good"]
    # The same name again, with a good model.
    for name in bad:
        assert endpoint.load(name, flat(endpoint, name)).status_code == 200
        assert endpoint.invoke(name).json()["outputs"][0]["data"] == [1.0, 2.0]
    for name in (*bad, "good"):
        assert endpoint.unload(name).status_code == 200


def test_an_archive_without_model_py_is_refused_before_triton_is_asked(endpoint: Endpoint) -> None:
    url = Path(flat(endpoint, "empty"))
    (url / "1" / "model.py").rename(url / "1" / "other.py")
    response = endpoint.load("empty", str(url))
    assert response.status_code == 400
    assert "1 has no model.py, which the python backend wants" in response.json()["error"]


def test_a_load_that_takes_too_long_is_a_504_and_its_name_is_free(endpoint: Endpoint) -> None:
    response = endpoint.load("slow", endpoint.platform.flat("slow", multiplying_model(seconds=3 * LIMIT)))
    assert response.status_code == 504
    assert (
        f"Triton has not loaded 'slow' within {LIMIT} s (set by TRIREME_LOAD_TIMEOUT)"
        in response.json()["error"]
    )
    assert endpoint.names() == []
    assert endpoint.load("slow", endpoint.platform.flat("slow")).status_code == 200
    assert endpoint.invoke("slow").json()["outputs"][0]["data"] == [1.0, 2.0]
    endpoint.unload("slow")


def test_a_triton_full_of_loads_that_hang_is_replaced_and_keeps_its_models(endpoint: Endpoint) -> None:
    assert endpoint.load("kept", flat(endpoint, "kept")).status_code == 200
    names = [f"hanging{number}" for number in range(MAX_STUCK_LOADS)]
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda name: endpoint.load(name, flat(endpoint, name, EXIT)), names))
    assert {response.status_code for response in answers} <= {400, 503, 504}
    endpoint.box.wait_for_log("loads do not end in Triton: it is started again")

    response = retry_until_ok(lambda: endpoint.invoke("kept"), 120)
    assert response.json()["outputs"][0]["data"] == [1.0, 2.0]
    assert endpoint.load("hanging0", flat(endpoint, "hanging0")).status_code == 200
    assert endpoint.invoke("hanging0").status_code == 200
