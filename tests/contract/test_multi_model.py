"""Multi-model mode: ``/models``, by which the platform loads, lists, invokes and unloads."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import PurePosixPath
from typing import Any

import pytest
import requests

from .container import JSON, PREFIX, Archive, Container, Question, json_of, refused

pytestmark = pytest.mark.modes("mme")
NOBODY = "there-is-no-such-model"
#: Seconds that the platform gives a load or an unload.
LONG = 360
#: No archive is there, and what is may not be looked at.
FORBIDDEN = ["/dev/shm", "/proc/self", "/sys/kernel", "/etc", "/", "relative/model", ""]


@pytest.fixture(autouse=True)
def listing(container: Container) -> None:
    """The list is there, as the platform reads it."""
    answer = container.ask("GET", "/models")
    container.expects(answer.status_code == 200, f"GET /models is {answer.status_code}")
    container.expects("models" in answer.json(), "GET /models lists no models")


@pytest.fixture
def archive(container: Container) -> Archive:
    if not container.archives:
        container.unasked("no archive is known: name a folder of them with --model-dir")
    return container.archives[0]


def load(container: Container, archive: Archive, **headers: str) -> requests.Response:
    body = {"model_name": archive.name, "url": archive.url}
    return container.ask("POST", "/models", json=body, headers=headers, timeout=LONG)


def unload(container: Container, name: str) -> requests.Response:
    return container.ask("DELETE", f"/models/{name}", timeout=LONG)


@contextmanager
def loaded(container: Container, *archives: Archive, **headers: str) -> Iterator[None]:
    """These archives are loaded; afterwards none is."""
    try:
        for archive in archives:
            answer = load(container, archive, **headers)
            assert answer.status_code == 200, answer.text[:500]
        yield
    finally:
        for archive in archives:
            unload(container, archive.name)


def rows(container: Container, **query: Any) -> list[dict[str, str]]:
    found: list[dict[str, str]] = container.ask("GET", "/models", params=query).json()["models"]
    return found


def invoke(container: Container, name: str) -> requests.Response:
    return container.post(f"/models/{name}/invoke", container.good())


def test_a_container_without_a_model_is_ready_and_lists_none(container: Container) -> None:
    assert container.ask("GET", "/ping").status_code == 200
    assert rows(container) == []


def test_what_is_loaded_is_listed_and_found(container: Container, archive: Archive) -> None:
    with loaded(container, archive):
        listed = rows(container)
        assert [row["modelName"] for row in listed] == [archive.name]
        assert set(listed[0]) == {"modelName", "modelUrl"}
        found = json_of(container.ask("GET", f"/models/{archive.name}"))
        # Some servers answer with a list of one.
        assert (found[0] if isinstance(found, list) else found) == listed[0]


def test_the_url_is_the_archive_s_folder(container: Container, archive: Archive) -> None:
    for each in container.archives:
        with loaded(container, each):
            found = rows(container)[0]["modelUrl"]
            folder = str(PurePosixPath(each.url).parent)
            container.expects(found == folder, f"layout {each.layout or 'of another server'} has {found}")


def test_every_archive_can_be_invoked(container: Container, archive: Archive) -> None:
    with loaded(container, *container.archives):
        assert len(rows(container)) == len(container.archives)
        for each in container.archives:
            answer = invoke(container, each.name)
            assert answer.status_code == 200, (each.name, answer.text[:500])


def test_the_caller_s_name_of_a_model_is_taken(container: Container, archive: Archive) -> None:
    target = "folder/a-name_of.the-caller.tar.gz"
    with loaded(container, archive, **{f"{PREFIX}Target-Model": target}):
        answer = container.post(
            f"/models/{archive.name}/invoke", container.good(), headers={f"{PREFIX}Target-Model": target}
        )
        assert answer.status_code == 200, answer.text[:500]
        assert [row["modelName"] for row in rows(container)] == [archive.name]


def test_a_model_that_is_loaded_already_is_a_409(container: Container, archive: Archive) -> None:
    with loaded(container, archive):
        assert load(container, archive).status_code == 409
        assert invoke(container, archive.name).status_code == 200


def test_of_two_loads_at_once_one_wins(container: Container, archive: Archive) -> None:
    try:
        with ThreadPoolExecutor(4) as callers:
            answers = list(callers.map(lambda _: load(container, archive).status_code, range(4)))
        assert sorted(answers) == [200, 409, 409, 409]
        assert invoke(container, archive.name).status_code == 200
    finally:
        unload(container, archive.name)


def test_what_is_unloaded_is_gone_and_can_come_back(container: Container, archive: Archive) -> None:
    for _ in range(2):
        assert load(container, archive).status_code == 200
        assert unload(container, archive.name).status_code == 200
        assert rows(container) == []
        assert invoke(container, archive.name).status_code == 404


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "", b""),
        ("DELETE", "", b""),
        ("POST", "/invoke", b'{"inputs": []}'),
        ("POST", "/invoke", b"?"),
    ],
)
def test_a_model_that_is_not_loaded_is_a_404(
    container: Container, method: str, path: str, body: bytes
) -> None:
    answer = container.ask(method, f"/models/{NOBODY}{path}", data=body, headers={"Content-Type": JSON})
    assert answer.status_code == 404
    refused(answer)


@pytest.mark.parametrize("kind", [JSON, "application/x-of-nobody"])
def test_a_bad_request_for_a_loaded_model_is_no_404(
    container: Container, archive: Archive, kind: str
) -> None:
    """By a 404 the platform learns that it has to load the model."""
    with loaded(container, archive):
        answer = container.post(f"/models/{archive.name}/invoke", Question(b"{}", kind))
        refused(answer)
        assert answer.status_code != 404


@pytest.mark.parametrize("url", FORBIDDEN)
def test_a_url_outside_the_archives_is_refused(container: Container, url: str) -> None:
    answer = container.ask("POST", "/models", json={"model_name": "sly", "url": url})
    refused(answer)
    assert rows(container) == []


def test_a_url_that_climbs_out_is_a_400(container: Container, archive: Archive) -> None:
    answer = load(container, Archive("sly", f"{archive.url}/../../../etc", archive.here))
    refused(answer)
    container.expects(answer.status_code == 400, f"it is a {answer.status_code}")


def test_an_archive_that_is_not_there_is_a_400_and_ping_stays_200(
    container: Container, archive: Archive
) -> None:
    home = PurePosixPath(archive.url).parent.parent
    answer = load(container, Archive("nothing", f"{home}/nothing/model", archive.here))
    refused(answer)
    container.expects(answer.status_code == 400, f"it is a {answer.status_code}")
    assert container.ask("GET", "/ping").status_code == 200
    assert rows(container) == []


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"{}", b'{"model_name": 7, "url": 8}'])
def test_a_load_that_names_nothing_is_refused(container: Container, body: bytes) -> None:
    refused(container.ask("POST", "/models", data=body, headers={"Content-Type": JSON}))
    assert container.ask("GET", "/ping").status_code == 200


def test_a_long_list_has_pages(container: Container, archive: Archive) -> None:
    if len(container.archives) < 2:
        container.unasked("it takes two archives")
    with loaded(container, *container.archives):
        names, token = [], ""
        for _ in container.archives:
            query = {"limit": 1, **({"next_page_token": token} if token else {})}
            page = container.ask("GET", "/models", params=query).json()
            container.expects(len(page["models"]) == 1, "the list has no pages")
            names.append(page["models"][0]["modelName"])
            token = page.get("nextPageToken", "")
        assert token == ""
        assert sorted(names) == sorted(each.name for each in container.archives)


def test_models_come_and_go_beside_one_that_is_invoked(container: Container, archive: Archive) -> None:
    if len(container.archives) < 2:
        container.unasked("it takes two archives")
    stays, goes = container.archives[:2]
    with loaded(container, stays), ThreadPoolExecutor(2) as callers:
        moving = callers.submit(come_and_go, container, goes)
        while not moving.done():
            assert invoke(container, stays.name).status_code == 200
        moving.result()


def come_and_go(container: Container, archive: Archive) -> None:
    for _ in range(3):
        with loaded(container, archive):
            assert invoke(container, archive.name).status_code == 200
