"""A worker reloads clients whose files changed, or keeps the reason why it could not."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from sm.client.base import Client
from sm.models.found_clients import FoundLoader
from sm.models.table import Models
from sm.plugins import discovery
from sm.plugins.client_reload import Reloader
from sm.plugins.discovery import Found
from tests.support.client_sources import CLIENT_SOURCE, EmptyTriton, write_client

HELLO = CLIENT_SOURCE.replace("(Client):", "(Client):\n    name = 'other'")


class LiveModels(Models):
    """The models of a worker that reloads the client ``hello``, named ``other``."""

    def __init__(self, folder: Path) -> None:
        self.found, self.folder = FoundLoader(Found({})), folder / "c"
        self.file = write_client(self.folder, "hello", HELLO, words="WORD = 'hello'") / "client.py"
        build = partial(discovery.find_clients, (self.folder,), EmptyTriton(), Path("/nowhere"), True)
        self.reloader = Reloader(build, (self.folder,), folder / "reports", self.found.put)
        super().__init__(self.found)

    def change(self, text: str) -> None:
        """Write the client's file, and check the files until they no longer change."""
        self.file.write_text(text)
        assert self.reloader.check_files() or self.reloader.check_files()

    def client(self, name: str) -> Client:
        served = self.use(name, None)
        assert served is not None
        assert served.client is not None
        return served.client

    def infer(self) -> object:
        return self.client("other").inference(None)


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LiveModels:
    # Write no .pyc files, as the workers of a reloading box do.
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    return LiveModels(tmp_path)


def test_a_changed_file_is_reloaded_once_it_no_longer_changes(models: LiveModels) -> None:
    assert not models.reloader.check_files()
    models.file.write_text(HELLO[:50])
    assert not models.reloader.check_files()
    models.file.write_text(HELLO.replace("return WORD", "return 'goodbye'"))
    assert not models.reloader.check_files()
    assert models.infer() == "hello"
    assert models.reloader.check_files()
    assert models.infer() == "goodbye"
