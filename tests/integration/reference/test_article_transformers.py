"""A client that imports ``transformers``, as the article's BERT client does, with its files beside it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.boxes import RunningBox, running_box
from tests.support.reference.tokenizing import OTHER_CLIENT, TEXT, TOKENS, write_client


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBox]:
    """A box with two clients: one uses ``transformers`` to tokenize, the other does not."""
    folder = tmp_path_factory.mktemp("transformers")
    write_client(folder / "model")
    # The hub is set offline and the proxy does not exist, so any use of the network fails.
    offline = {"HF_HUB_OFFLINE": "1", "HTTPS_PROXY": "http://127.0.0.1:9"}
    with running_box(folder, folder / "model", True, (), **offline) as box:
        yield box


def test_a_client_tokenizes_with_transformers_from_files_beside_it(box: RunningBox) -> None:
    response = box.invoke("tokens", {"text": TEXT})
    assert (response.status_code, response.json()) == (200, {"modelname": "tokens", "result": TOKENS})


def test_a_client_beside_it_is_served_too(box: RunningBox) -> None:
    response = box.invoke("other", {})
    assert response.status_code == 200, response.text
    assert "transformers" in response.json()["result"]
    assert "torch" not in response.json()["result"]


def test_nothing_imports_transformers_unless_a_client_does(tmp_path: Path) -> None:
    """The client reports the modules of the router's own process, with the bundled clients."""
    client = tmp_path / "model" / "code" / "other" / "client.py"
    client.parent.mkdir(parents=True)
    client.write_text(OTHER_CLIENT)
    with running_box(tmp_path, tmp_path / "model", clients=()) as box:
        loaded = set(box.invoke("other", {}).json()["result"])
    assert {"sm", "flask", "tokenizers"} <= loaded
    assert loaded.isdisjoint({"transformers", "huggingface_hub", "safetensors", "torch", "typer", "yaml"})
