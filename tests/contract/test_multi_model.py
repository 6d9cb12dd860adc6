"""Multi-model mode: ``/models``, by which the platform loads, lists, invokes and unloads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import PurePosixPath

import pytest
import requests

from .container import (
    JSON,
    PREFIX,
    UNKNOWN_MODEL,
    Archive,
    Container,
    ModelRequest,
    assert_refused,
    read_json,
)

pytestmark = pytest.mark.modes("mme")
#: The platform's limit for a load or an unload.
LOAD_TIMEOUT_S = 360
#: No archive is there, and nothing there may be read.
FORBIDDEN_URLS = ["/dev/shm", "/proc/self", "/sys/kernel", "/etc", "/", "relative/model", ""]


@pytest.fixture(scope="module", autouse=True)
def require_model_list(container: Container) -> Iterator[None]:
    """The container has the list of models, in the platform's form. In the end none of the archives is loaded."""
    response = container.request("GET", "/models")
    container.expect(response.status_code == 200, f"GET /models is {response.status_code}")
    container.expect("models" in response.json(), "GET /models lists no models")
    yield
    unload_all(container)


@pytest.fixture
def archive(container: Container) -> Archive:
    """An archive that is not loaded, nor is another."""
    unload_all(container)
    if not container.archives:
        container.cannot_tell("no archive is known: name a folder of them with --model-dir")
    return container.archives[0]


@pytest.fixture
def loaded(container: Container) -> Sequence[Archive]:
    """Every archive, loaded."""
    if not container.archives:
        container.cannot_tell("no archive is known: name a folder of them with --model-dir")
    found = listed(container)
    for archive in container.archives:
        if archive.name not in found:
            response = load(container, archive)
            assert response.status_code == 200, response.text[:500]
    return container.archives


def load(container: Container, archive: Archive, **headers: str) -> requests.Response:
    body = {"model_name": archive.name, "url": archive.url}
    return container.request("POST", "/models", json=body, headers=headers, timeout=LOAD_TIMEOUT_S)


def unload(container: Container, name: str) -> requests.Response:
    return container.request("DELETE", f"/models/{name}", timeout=LOAD_TIMEOUT_S)


def unload_all(container: Container) -> None:
    for name in {archive.name for archive in container.archives} & listed(container).keys():
        assert unload(container, name).status_code == 200


def listed(container: Container) -> dict[str, str]:
    """The folder of each loaded model, by its name."""
    models = container.request("GET", "/models").json()["models"]
    return {row["modelName"]: row["modelUrl"] for row in models}


def invoke(container: Container, name: str) -> requests.Response:
    return container.post(f"/models/{name}/invoke", container.accepted_request())


def test_a_container_without_a_model_is_ready_and_lists_none(container: Container) -> None:
    unload_all(container)
    assert container.request("GET", "/ping").status_code == 200
    assert listed(container) == {}


CALLS = [
    ("GET", "", b""),
    ("DELETE", "", b""),
    ("POST", "/invoke", b'{"inputs": []}'),
    ("POST", "/invoke", b"?"),
]


@pytest.mark.parametrize(("method", "path", "body"), CALLS)
def test_every_request_for_a_model_that_is_not_loaded_is_a_404(
    container: Container, method: str, path: str, body: bytes
) -> None:
    headers = {"Content-Type": JSON}
    response = container.request(method, f"/models/{UNKNOWN_MODEL}{path}", data=body, headers=headers)
    assert response.status_code == 404
    assert_refused(response)


@pytest.mark.parametrize("url", FORBIDDEN_URLS)
def test_a_url_outside_the_archives_is_refused(container: Container, url: str) -> None:
    assert_refused(container.request("POST", "/models", json={"model_name": "sly", "url": url}))
    assert "sly" not in listed(container)


def test_a_url_that_climbs_out_is_a_400(container: Container, archive: Archive) -> None:
    sly = Archive("sly", f"{archive.url}/../../../etc", archive.here)
    container.expect_refusal(load(container, sly), 400)


def test_an_archive_that_is_not_there_is_a_400_and_ping_stays_200(
    container: Container, archive: Archive
) -> None:
    home = PurePosixPath(archive.url).parent.parent
    nothing = Archive("nothing", f"{home}/nothing/model", archive.here)
    container.expect_refusal(load(container, nothing), 400)
    assert container.request("GET", "/ping").status_code == 200
    assert listed(container) == {}


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"{}", b'{"model_name": 7, "url": 8}'])
def test_a_load_without_name_and_url_is_refused(container: Container, body: bytes) -> None:
    assert_refused(container.request("POST", "/models", data=body, headers={"Content-Type": JSON}))
    assert container.request("GET", "/ping").status_code == 200


def test_of_four_loads_at_once_one_wins(container: Container, archive: Archive) -> None:
    with ThreadPoolExecutor(4) as callers:
        statuses = list(callers.map(lambda _: load(container, archive).status_code, range(4)))
    assert sorted(statuses) == [200, 409, 409, 409]
    assert invoke(container, archive.name).status_code == 200


def test_the_target_model_header_does_not_change_a_models_name(
    container: Container, archive: Archive
) -> None:
    headers = {f"{PREFIX}Target-Model": "folder/a-name_of.the-caller.tar.gz"}
    assert load(container, archive, **headers).status_code == 200
    request = container.accepted_request()
    response = container.post(f"/models/{archive.name}/invoke", request, headers=headers)
    assert response.status_code == 200, response.text[:500]
    assert [*listed(container)] == [archive.name]


def test_an_unloaded_model_is_gone_and_can_be_loaded_again(container: Container, archive: Archive) -> None:
    for _ in range(2):
        assert load(container, archive).status_code == 200
        assert unload(container, archive.name).status_code == 200
        assert listed(container) == {}
        assert invoke(container, archive.name).status_code == 404


def test_a_loaded_model_is_listed_and_described(container: Container, loaded: Sequence[Archive]) -> None:
    found = listed(container)
    assert found.keys() == {archive.name for archive in loaded}
    for name, url in found.items():
        description = read_json(container.request("GET", f"/models/{name}"))
        # Some servers answer with a list of one.
        described = description[0] if isinstance(description, list) else description
        assert described == {"modelName": name, "modelUrl": url}


def test_the_url_is_the_archive_s_folder(container: Container, loaded: Sequence[Archive]) -> None:
    found = listed(container)
    for archive in loaded:
        is_folder = found[archive.name] == str(PurePosixPath(archive.url).parent)
        layout = archive.layout or "of another server"
        container.expect(is_folder, f"layout {layout} has {found[archive.name]}")


def test_every_archive_can_be_invoked(container: Container, loaded: Sequence[Archive]) -> None:
    for archive in loaded:
        response = invoke(container, archive.name)
        assert response.status_code == 200, (archive.name, response.text[:500])


def test_loading_a_loaded_model_is_a_409(container: Container, loaded: Sequence[Archive]) -> None:
    assert load(container, loaded[0]).status_code == 409
    assert invoke(container, loaded[0].name).status_code == 200


@pytest.mark.parametrize("content_type", [JSON, "application/x-unknown"])
def test_a_bad_request_for_a_loaded_model_is_not_a_404(
    container: Container, loaded: Sequence[Archive], content_type: str
) -> None:
    """The platform takes a 404 as the order to load the model."""
    response = container.post(f"/models/{loaded[0].name}/invoke", ModelRequest(b"{}", content_type))
    assert_refused(response)
    assert response.status_code != 404


def test_a_long_list_has_pages(container: Container, loaded: Sequence[Archive]) -> None:
    if len(loaded) < 2:
        container.cannot_tell("this needs two archives")
    names, token = [], ""
    for _ in loaded:
        query = {"limit": 1, **({"next_page_token": token} if token else {})}
        page = container.request("GET", "/models", params=query).json()
        container.expect(len(page["models"]) == 1, "the list has no pages")
        names.append(page["models"][0]["modelName"])
        token = page.get("nextPageToken", "")
    assert token == ""
    assert sorted(names) == sorted(archive.name for archive in loaded)


def test_a_model_stays_invocable_while_another_is_loaded_and_unloaded(
    container: Container, loaded: Sequence[Archive]
) -> None:
    if len(loaded) < 2:
        container.cannot_tell("this needs two archives")
    changing, invoked = loaded[:2]

    def unload_and_load() -> None:
        for _ in range(2):
            assert unload(container, changing.name).status_code == 200
            assert load(container, changing).status_code == 200
            assert invoke(container, changing.name).status_code == 200

    with ThreadPoolExecutor(1) as callers:
        changes = callers.submit(unload_and_load)
        while not changes.done():
            assert invoke(container, invoked.name).status_code == 200
        changes.result()
