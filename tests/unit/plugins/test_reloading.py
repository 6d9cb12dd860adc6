"""What a worker makes of changed files: the client anew, or the reason why not."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from sm.client.base import ModelMetadata
from sm.errors import ClientFailed, StartError, UnknownModel
from sm.plugins import registry
from sm.plugins.registry import Registry
from sm.plugins.reloading import LiveClients, LiveRegistry
from tests.support.client_sources import NothingServed, write

HELLO = """
from sm.client.base import Client

class Hello(Client):
    name = "other"

    def inference(self, payload):
        return "hello"
"""


@pytest.fixture(autouse=True)
def uncached(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in the workers of a box that reloads."""
    monkeypatch.setattr("sys.dont_write_bytecode", True)


def worker(folder: Path, said: Path) -> LiveClients:
    build = partial(registry.build, (folder,), NothingServed(), Path("/nowhere"), True)
    return LiveClients(build, (folder,), said)


def taken(clients: LiveClients) -> bool:
    """Look until what has changed is at rest."""
    return clients.check_files() or clients.check_files()


def answer(clients: LiveClients, name: str) -> object:
    return LiveRegistry(clients).get(name).inference(None)


def test_what_changes_is_taken_when_it_is_at_rest(tmp_path: Path) -> None:
    file = write(tmp_path / "c", "hello", HELLO) / "client.py"
    clients = worker(tmp_path / "c", tmp_path / "said")
    assert not clients.check_files()
    file.write_text(HELLO[:50])
    assert not clients.check_files()
    file.write_text(HELLO.replace('"hello"', '"goodbye"'))
    assert not clients.check_files()
    assert answer(clients, "other") == "hello"
    assert clients.check_files()
    assert answer(clients, "other") == "goodbye"


class Serving(NothingServed):
    """A Triton whose models come and go."""

    def __init__(self) -> None:
        self.models: set[str] = set()

    def metadata(self, model: str, version: str = "") -> ModelMetadata:
        if model in self.models:
            return ModelMetadata(model, ("1",), 0)
        return super().metadata(model, version)


def test_a_client_whose_model_is_missing_at_the_start_is_live_when_the_model_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sm.plugins.reloading.RETRY_INTERVAL_S", 0.0)
    triton = Serving()
    write(tmp_path / "c", "hello", HELLO.replace('name = "other"', 'models = ("late",)'))
    build = partial(registry.build, (tmp_path / "c",), triton, Path("/nowhere"), True)
    clients = LiveClients(build, (tmp_path / "c",), tmp_path / "said")
    assert not taken(clients)
    with pytest.raises(ClientFailed, match="'late' is not served"):
        answer(clients, "hello")
    triton.models = {"late"}
    assert taken(clients)
    assert answer(clients, "hello") == "hello"
    assert not taken(clients)


def test_only_the_changed_client_is_made_anew(tmp_path: Path) -> None:
    file = write(tmp_path / "c", "hello", HELLO) / "client.py"
    write(tmp_path / "c", "still", HELLO.replace("other", "still"))
    clients = worker(tmp_path / "c", tmp_path / "said")
    changed, still = clients["other"], clients["still"]
    file.write_text(f"{HELLO}\n")
    assert taken(clients)
    assert clients["still"] is still
    assert clients["other"] is not changed


def test_a_broken_client_is_told_under_every_name_it_had_and_is_in_no_list(tmp_path: Path) -> None:
    file = write(tmp_path / "c", "hello", HELLO) / "client.py"
    clients = worker(tmp_path / "c", tmp_path / "said")
    file.write_text("import nothing_of_this_name")
    assert taken(clients)
    for name in ("hello", "other"):
        with pytest.raises(ClientFailed, match=r"client.py: line 1: .*nothing_of_this_name"):
            LiveRegistry(clients).get(name)
    assert list(clients) == []
    assert LiveRegistry(clients).default("other") == "other"
    file.unlink()
    assert taken(clients)
    with pytest.raises(UnknownModel):
        LiveRegistry(clients).get("hello")


@pytest.mark.parametrize("text", ["raise SystemExit", "import sys; sys.exit(3)"])
def test_a_client_that_wants_to_end_the_process_is_only_broken(text: str, tmp_path: Path) -> None:
    write(tmp_path / "c", "hello", text)
    clients = worker(tmp_path / "c", tmp_path / "said")
    with pytest.raises(ClientFailed, match="line 1: SystemExit"):
        LiveRegistry(clients).get("hello")


@pytest.mark.parametrize("ends", ["raise KeyboardInterrupt", "raise SystemExit(3)", "import sys; sys.exit()"])
@pytest.mark.parametrize("where", ["    def setup(self):\n        ", ""])
def test_a_client_that_tries_to_exit_leaves_its_old_version_serving_until_the_next_change(
    ends: str, where: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = write(tmp_path / "c", "hello", HELLO) / "client.py"
    clients = worker(tmp_path / "c", tmp_path / "said")
    registry = LiveRegistry(clients)
    assert registry.reload_errors.get("other") is None
    file.write_text(f"{HELLO}{where}{ends}\n")
    assert taken(clients)
    assert answer(clients, "other") == "hello"
    assert list(clients) == ["other"]
    wanted = "KeyboardInterrupt" if "Keyboard" in ends else "SystemExit"
    assert wanted in str(registry.reload_errors.get("other"))
    assert any("the old version of 'other' serves" in message for message in caplog.messages)
    # Another client's change says nothing new of this one.
    write(tmp_path / "c", "new", HELLO.replace("other", "new"))
    assert taken(clients)
    assert (answer(clients, "new"), answer(clients, "other")) == ("hello", "hello")
    assert wanted in str(registry.reload_errors.get("other"))
    file.write_text(HELLO.replace('"hello"', '"mended"'))
    assert taken(clients)
    assert answer(clients, "other") == "mended"
    assert registry.reload_errors.get("other") is None


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(), GeneratorExit(), StartError("no")])
def test_whatever_a_reload_raises_the_old_versions_serve_and_the_next_change_is_taken(
    error: BaseException, tmp_path: Path
) -> None:
    file = write(tmp_path / "c", "hello", HELLO) / "client.py"
    broken = [False]
    build = partial(registry.build, (tmp_path / "c",), NothingServed(), Path("/nowhere"), True)

    def failing(**options: Any) -> Registry:
        if broken[0]:
            raise error
        return build(**options)

    clients = LiveClients(failing, (tmp_path / "c",), tmp_path / "said")
    broken[0] = True
    file.write_text(HELLO.replace('"hello"', '"new"'))
    assert taken(clients)
    assert answer(clients, "other") == "hello"
    assert LiveRegistry(clients).reload_errors.get("other")
    broken[0] = False
    file.write_text(HELLO.replace('"hello"', '"newer"'))
    assert taken(clients)
    assert answer(clients, "other") == "newer"
    assert LiveRegistry(clients).reload_errors.get("other") is None


def test_several_workers_say_a_thing_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = write(tmp_path / "c", "hello", HELLO) / "client.py"
    workers = [worker(tmp_path / "c", tmp_path / "said") for _ in range(3)]
    file.write_text("\n1 +\n")
    with caplog.at_level(logging.INFO):
        assert all(map(taken, workers))
    (said,) = caplog.messages
    assert said.splitlines()[1].strip() == f'File "{file}", line 2'
    assert said.splitlines()[2].strip() == "1 +"


def test_who_asks_for_nothing_gets_the_list_of_what_there_is(tmp_path: Path) -> None:
    write(tmp_path / "c", "hello", HELLO)
    clients = worker(tmp_path / "c", tmp_path / "said")
    with pytest.raises(UnknownModel, match="there are: other"):
        LiveRegistry(clients).get("nobody")
    assert isinstance(clients.registry, Registry)
    assert len(clients) == 1
