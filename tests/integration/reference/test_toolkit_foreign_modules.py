"""A client that imports a library with unusual modules, such as torch, does not break the clients beside it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from tests.support.boxes import RunningBox, running_box
from tests.support.script_archives import write_script

#: Like ``torch.classes``: it has every attribute, each an object that cannot be iterated over.
ODD_MODULE = """
import sys
import types


class Namespace(types.ModuleType):
    def __getattr__(self, name):
        return Namespace(name)


class Refusing(types.ModuleType):
    def __getattr__(self, name):
        raise RuntimeError(f"{name} needs a GPU")


sys.modules["odd.classes"] = classes = Namespace("odd.classes")
sys.modules["odd.refusing"] = Refusing("odd.refusing")
sys.modules["odd.missing"] = None
"""
CLIENT = """
from sm.client.base import Client
import words{imports}


class Says(Client):
    models = ()

    def inference(self, payload):
        return words.WORD
"""
SCRIPT = """
{imports}


def model_fn(model_dir):
    return {word!r}


def transform_fn(model, body, content_type, accept):
    return model, "text/plain"
"""


def write_archive(folder: Path, word: str, imports: str = "") -> Path:
    """Write an archive that consists of a script."""
    return write_script(folder, SCRIPT.format(word=word, imports=imports))


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with the odd library, for PYTHONPATH."""
    folder = tmp_path_factory.mktemp("library")
    (folder / "odd.py").write_text(ODD_MODULE)
    return str(folder)


@pytest.fixture(scope="module")
def box_with_clients(tmp_path_factory: pytest.TempPathFactory, library: str) -> Iterator[RunningBox]:
    """A box with three clients, of which the first imports the library."""
    folder = tmp_path_factory.mktemp("single")
    for name, imports in (("first", ", odd"), ("second", ""), ("third", "")):
        client = folder / "model" / "code" / name
        client.mkdir(parents=True)
        (client / "client.py").write_text(CLIENT.format(imports=imports))
        (client / "words.py").write_text(f"WORD = {name!r}\n")
    with running_box(
        folder, folder / "model", clients=(), PYTHONPATH=library, SAGEMAKER_MODEL_SERVER_WORKERS="1"
    ) as box:
        yield box


def test_in_single_mode_every_client_is_served(box_with_clients: RunningBox) -> None:
    names = ("first", "second", "third")
    assert [box_with_clients.invoke(name, {}).json().get("result") for name in names] == list(names)


@pytest.fixture(scope="module")
def box_with_archives(tmp_path_factory: pytest.TempPathFactory, library: str) -> Iterator[RunningBox]:
    """A box in multi-model mode with one worker, so that all archives share a process."""
    folder = tmp_path_factory.mktemp("multi")
    variables = {"SAGEMAKER_MULTI_MODEL": "true", "TRIREME_MODEL_ARCHIVES": str(folder)}
    variables |= {"PYTHONPATH": library, "SAGEMAKER_MODEL_SERVER_WORKERS": "1"}
    with running_box(folder, None, True, (), **variables) as box:
        for name, imports in (("first", "import odd"), ("second", ""), ("third", "")):
            archive = write_archive(folder / name / "model", name, imports)
            response = requests.post(
                f"{box.url}/models", json={"model_name": name, "url": str(archive)}, timeout=60
            )
            assert response.status_code == 200, response.text
        yield box


def invoke(box: RunningBox, name: str) -> tuple[int, str]:
    response = requests.post(f"{box.url}/models/{name}/invoke", data=b"{}", timeout=60)
    return response.status_code, response.text


def test_in_multi_model_mode_every_later_archive_is_served(box_with_archives: RunningBox) -> None:
    for name in ("first", "second", "third", "first"):
        assert invoke(box_with_archives, name) == (200, name)


def test_an_archive_can_be_reloaded_beside_it(box_with_archives: RunningBox, tmp_path: Path) -> None:
    assert invoke(box_with_archives, "first") == (200, "first")
    assert requests.delete(f"{box_with_archives.url}/models/second", timeout=60).status_code == 200
    archive = next(Path(box_with_archives.environment["TRIREME_MODEL_ARCHIVES"]).glob("second/model"))
    (archive / "code" / "inference.py").write_text(SCRIPT.format(word="anew", imports=""))
    response = requests.post(
        f"{box_with_archives.url}/models", json={"model_name": "second", "url": str(archive)}, timeout=60
    )
    assert response.status_code == 200, response.text
    assert invoke(box_with_archives, "second") == (200, "anew")
