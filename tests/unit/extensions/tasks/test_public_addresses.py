"""Clients and scripts of people import tasks at their addresses in the core, which has none itself."""

from __future__ import annotations

import importlib
import sys
from importlib.metadata import EntryPoints

import pytest

from sm import entry_points
from trireme_extensions import tasks

ADDRESSES = ("sm.client.tasks", "sm.server.hugging_face")


@pytest.fixture(autouse=True)
def import_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Import the addresses as the first in a process."""
    for name in list(sys.modules):
        if name.startswith(ADDRESSES):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", sys.meta_path[:])


def test_the_classes_at_an_address_are_the_extensions_own() -> None:
    address = importlib.import_module("sm.client.tasks")
    assert address.ImageClassification is tasks.ImageClassification
    for module in ("image", "detection", "text", "task_file", "fill_mask"):
        own = importlib.import_module(f"trireme_extensions.tasks.{module}")
        assert importlib.import_module(f"sm.client.tasks.{module}") is own
        assert own.__spec__ is not None and own.__spec__.name == own.__name__
    read_folder = importlib.import_module("sm.server.hugging_face").read_folder
    assert read_folder.__module__ == "trireme_extensions.tasks.hugging_face"
    with pytest.raises(ImportError):
        importlib.import_module("sm.client.tasks.no_such_module")


@pytest.mark.parametrize("address", ADDRESSES)
def test_with_the_core_alone_an_address_names_what_installs_it(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entry_points, "_every", lambda: EntryPoints(()))
    with pytest.raises(ImportError, match=r"pip install 'trireme-serving\[extensions\]'") as raised:
        importlib.import_module(address)
    assert raised.value.name == address
