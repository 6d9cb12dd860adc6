"""A worker reloads clients whose files changed, or keeps the reason why it could not."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from sm.errors import ClientFailed, UnknownModel
from sm.plugins import registry
from sm.plugins.reloading import LiveClients, LiveRegistry
from tests.support.client_sources import EmptyTriton, write_client

HELLO = """
from sm.client.base import Client

class Hello(Client):
    name = "other"

    def inference(self, payload):
        return "hello"
"""


@pytest.fixture(autouse=True)
def without_bytecode_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write no .pyc files, as the workers of a reloading box do."""
    monkeypatch.setattr("sys.dont_write_bytecode", True)


def live_clients(folder: Path, report_folder: Path) -> LiveClients:
    build = partial(registry.build, (folder,), EmptyTriton(), Path("/nowhere"), True)
    return LiveClients(build, (folder,), report_folder)


def reload_changes(clients: LiveClients) -> bool:
    """Check the files until they no longer change; return whether clients were reloaded."""
    return clients.check_files() or clients.check_files()


def infer(clients: LiveClients, name: str) -> object:
    return LiveRegistry(clients).get(name).inference(None)


def test_a_changed_file_is_reloaded_once_it_no_longer_changes(tmp_path: Path) -> None:
    file = write_client(tmp_path / "c", "hello", HELLO) / "client.py"
    clients = live_clients(tmp_path / "c", tmp_path / "reports")
    assert not clients.check_files()
    file.write_text(HELLO[:50])
    assert not clients.check_files()
    file.write_text(HELLO.replace('"hello"', '"goodbye"'))
    assert not clients.check_files()
    assert infer(clients, "other") == "hello"
    assert clients.check_files()
    assert infer(clients, "other") == "goodbye"


def test_only_the_changed_client_is_reloaded(tmp_path: Path) -> None:
    file = write_client(tmp_path / "c", "hello", HELLO) / "client.py"
    write_client(tmp_path / "c", "unchanged", HELLO.replace("other", "unchanged"))
    clients = live_clients(tmp_path / "c", tmp_path / "reports")
    old_client, unchanged = clients["other"], clients["unchanged"]
    file.write_text(f"{HELLO}\n")
    assert reload_changes(clients)
    assert clients["unchanged"] is unchanged
    assert clients["other"] is not old_client


def test_a_broken_client_is_reported_under_each_of_its_names_and_not_listed(tmp_path: Path) -> None:
    file = write_client(tmp_path / "c", "hello", HELLO) / "client.py"
    clients = live_clients(tmp_path / "c", tmp_path / "reports")
    file.write_text("import nothing_of_this_name")
    assert reload_changes(clients)
    for name in ("hello", "other"):
        with pytest.raises(ClientFailed, match=r"client.py: line 1: .*nothing_of_this_name"):
            LiveRegistry(clients).get(name)
    assert list(clients) == []
    assert LiveRegistry(clients).default("other") == "other"
    file.unlink()
    assert reload_changes(clients)
    with pytest.raises(UnknownModel):
        LiveRegistry(clients).get("hello")


@pytest.mark.parametrize("indentation", ["    def setup(self):\n        ", ""], ids=["in setup", "in module"])
def test_a_client_that_tries_to_exit_is_broken_until_the_next_change(
    indentation: str, tmp_path: Path
) -> None:
    file = write_client(tmp_path / "c", "hello", HELLO) / "client.py"
    clients = live_clients(tmp_path / "c", tmp_path / "reports")
    file.write_text(f"{HELLO}{indentation}raise SystemExit(3)\n")
    assert reload_changes(clients)
    with pytest.raises(ClientFailed, match="SystemExit"):
        infer(clients, "other")
    file.write_text(HELLO.replace('"hello"', '"mended"'))
    assert reload_changes(clients)
    assert infer(clients, "other") == "mended"
