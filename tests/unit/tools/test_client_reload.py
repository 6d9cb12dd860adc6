"""A worker reloads a client whose file changed. tests/integration/box/test_reload.py has one that is broken."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from sm.models.table import models_of
from sm.plugins.discovery import DiscoveredClients, find_clients
from tests.support.client_sources import CLIENT_SOURCE, EmptyTriton, write_client
from trireme_tools.client_reload import Reloader

HELLO = CLIENT_SOURCE.replace("(Client):", "(Client):\n    name = 'other'")


def test_a_changed_file_is_reloaded_once_it_no_longer_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Write no .pyc files, as the workers of a reloading box do.
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    folder, models = tmp_path / "c", models_of({})
    file = write_client(folder, "hello", HELLO, words="WORD = 'hello'") / "client.py"
    build = partial(find_clients, (folder,), EmptyTriton(), Path("/nowhere"), True)
    reloader = Reloader(build, (folder,), tmp_path / "reports", models.put)
    assert not reloader.check_files()
    for text in (HELLO[:50], HELLO.replace("return WORD", "return 'goodbye'")):
        file.write_text(text)
        assert not reloader.check_files()
    assert models.found.clients["other"].inference(None) == "hello"
    assert reloader.check_files()
    assert models.found.clients["other"].inference(None) == "goodbye"


def test_a_client_that_came_during_a_load_and_went_is_served_no_more(tmp_path: Path) -> None:
    folder, models = tmp_path / "c", models_of({})
    write_client(folder, "steady", words="WORD = 'hello'")

    def build(**options: Any) -> DiscoveredClients:
        if not options["reusable"]:
            write_client(folder, "brief", HELLO, words="WORD = 'hello'")
        return find_clients((folder,), EmptyTriton(), Path("/nowhere"), True, **options)

    reloader = Reloader(build, (folder,), tmp_path / "reports", models.put)
    assert models.found.clients.keys() == {"steady", "other"}
    shutil.rmtree(folder / "brief")
    assert [reloader.check_files() for _ in range(4)] == [False, True, False, False]
    assert models.found.clients.keys() == {"steady"}
