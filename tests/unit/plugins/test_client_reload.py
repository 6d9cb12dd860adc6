"""A worker reloads clients whose files changed, or keeps the reason why it could not."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from sm.client.base import Client
from sm.errors import ClientFailed
from sm.models.found_clients import FoundLoader
from sm.models.table import Models
from sm.plugins import discovery
from sm.plugins.client_reload import Reloader
from sm.plugins.discovery import Found
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


class LiveModels(Models):
    """The models of a worker that reloads ``folder``."""

    def __init__(self, folder: Path, report_folder: Path) -> None:
        self.found = FoundLoader(Found({}))
        build = partial(discovery.find_clients, (folder,), EmptyTriton(), Path("/nowhere"), True)
        self.reloader = Reloader(build, (folder,), report_folder, self.found.put)
        super().__init__(self.found)

    def reload_changes(self) -> bool:
        """Check the files until they no longer change; return whether clients were reloaded."""
        return self.reloader.check_files() or self.reloader.check_files()

    def client(self, name: str) -> Client:
        served = self.use(name, None)
        assert served is not None
        assert served.client is not None
        return served.client

    def infer(self, name: str) -> object:
        return self.client(name).inference(None)


def test_a_changed_file_is_reloaded_once_it_no_longer_changes(tmp_path: Path) -> None:
    file = write_client(tmp_path / "c", "hello", HELLO) / "client.py"
    models = LiveModels(tmp_path / "c", tmp_path / "reports")
    assert not models.reloader.check_files()
    file.write_text(HELLO[:50])
    assert not models.reloader.check_files()
    file.write_text(HELLO.replace('"hello"', '"goodbye"'))
    assert not models.reloader.check_files()
    assert models.infer("other") == "hello"
    assert models.reloader.check_files()
    assert models.infer("other") == "goodbye"


def test_only_the_changed_client_is_reloaded(tmp_path: Path) -> None:
    file = write_client(tmp_path / "c", "hello", HELLO) / "client.py"
    write_client(tmp_path / "c", "unchanged", HELLO.replace("other", "unchanged"))
    models = LiveModels(tmp_path / "c", tmp_path / "reports")
    old_client, unchanged = models.client("other"), models.client("unchanged")
    file.write_text(f"{HELLO}\n")
    assert models.reload_changes()
    assert models.client("unchanged") is unchanged
    assert models.client("other") is not old_client


def test_a_broken_client_is_reported_under_each_of_its_names_and_not_listed(tmp_path: Path) -> None:
    file = write_client(tmp_path / "c", "hello", HELLO) / "client.py"
    models = LiveModels(tmp_path / "c", tmp_path / "reports")
    file.write_text("import nothing_of_this_name")
    assert models.reload_changes()
    for name in ("hello", "other"):
        with pytest.raises(ClientFailed, match=r"client.py: line 1: .*nothing_of_this_name"):
            models.use(name, None)
    assert models.clients() == []
    assert models.default("other") == "other"
    file.unlink()
    assert models.reload_changes()
    assert models.use("hello", None) is None


@pytest.mark.parametrize("indentation", ["    def setup(self):\n        ", ""], ids=["in setup", "in module"])
def test_a_client_that_tries_to_exit_is_broken_until_the_next_change(
    indentation: str, tmp_path: Path
) -> None:
    file = write_client(tmp_path / "c", "hello", HELLO) / "client.py"
    models = LiveModels(tmp_path / "c", tmp_path / "reports")
    file.write_text(f"{HELLO}{indentation}raise SystemExit(3)\n")
    assert models.reload_changes()
    with pytest.raises(ClientFailed, match="SystemExit"):
        models.infer("other")
    file.write_text(HELLO.replace('"hello"', '"mended"'))
    assert models.reload_changes()
    assert models.infer("other") == "mended"
