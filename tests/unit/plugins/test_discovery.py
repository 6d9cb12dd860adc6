"""Clients are found, loaded and checked against the served models."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sm.client.base import ModelMetadata, TensorClient, TensorMetadata
from sm.errors import StartError, UnknownModel
from sm.models.table import models_of
from sm.plugins import code_imports as modules
from sm.plugins.checks import differences
from sm.plugins.discovery import DiscoveredClients, NameTaken, find_clients
from sm.plugins.sources import discover
from sm.settings import HERE
from tests.support.client_sources import CLIENT_SOURCE, EmptyTriton, write_client

BUILT_IN = HERE / "clients"
PLAIN_IMPORT = CLIENT_SOURCE.replace("from .words", "from words")
LATE_IMPORT = PLAIN_IMPORT.replace("from words import WORD\n", "").replace(
    "        return", "        from .words import WORD\n        return"
)
REPLACING = CLIENT_SOURCE.replace("(Client):", "(Client):\n    replaces = 'resnet'")
SCRIPT = "import words\n\ndef model_fn(folder):\n    return words.WORD\n"


@pytest.fixture(autouse=True)
def forget_modules(tmp_path: Path) -> Iterator[None]:
    yield
    for folder in (tmp_path / "code", *tmp_path.glob("code/[!_]*/")):
        modules.forget_modules(folder)


def build(repository: Path, *folders: Path, skip: bool = False) -> DiscoveredClients:
    """Find the clients of a box; those of the repository are in its ``code`` folder."""
    return find_clients(folders, EmptyTriton(), repository, skip)


def answers(found: DiscoveredClients) -> dict[str, object]:
    return {name: client.inference(None) for name, client in found.clients.items()}


@pytest.mark.parametrize("text", [CLIENT_SOURCE, PLAIN_IMPORT, LATE_IMPORT])
def test_two_clients_may_have_modules_of_the_same_name(tmp_path: Path, text: str) -> None:
    for word, name in enumerate(("one", "two"), 1):
        write_client(tmp_path / "code", name, text, words=f"WORD = {word}")
    # One lies directly in the code folder.
    (tmp_path / "code" / "client.py").write_text(PLAIN_IMPORT)
    (tmp_path / "code" / "words.py").write_text("WORD = 3")
    assert answers(build(tmp_path)) == {"one": 1, "two": 2, "client": 3}


#: The text of a client that cannot load, and what the error names beside its file: a line, a class, an attribute.
BROKEN = [
    ("import nothing_of_this_name\n", "line 1: ModuleNotFoundError"),
    ("x = 1\ny = x +\n", "line 2: SyntaxError"),
    ("raise SystemExit(3)\n", "line 1: SystemExit"),
    ("x = 1\n", "sm.client.base.Client"),
    ("from sm.client.base import Client\nclass Half(Client):\n    pass\n", "inference"),
    ("from sm.client import TensorClient\nclass T(TensorClient):\n    pass\n", "postprocess"),
    (CLIENT_SOURCE + CLIENT_SOURCE.replace("Hello", "Again"), "Again"),
    (CLIENT_SOURCE + "\n    def setup(self):\n        open('/nowhere/labels')\n", "FileNotFoundError"),
    (CLIENT_SOURCE + "\n    def setup(self):\n        raise KeyboardInterrupt\n", "KeyboardInterrupt"),
    (CLIENT_SOURCE + "\n    def setup(self):\n        raise SystemExit\n", "SystemExit"),
    (CLIENT_SOURCE + "\n    def samples(self):\n        return []\n", "Hello.samples"),
    (CLIENT_SOURCE + "\n    payload = dict\n", "Hello.payload"),
    (CLIENT_SOURCE + "\n    result = 'classes'\n", "Hello.result"),
    (CLIENT_SOURCE + "\n    max_batch = 0\n", "Hello.max_batch"),
    (CLIENT_SOURCE + "\n    max_wait_ms = '5'\n", "Hello.max_wait_ms"),
    (CLIENT_SOURCE + "\n    models = ('gone',)\n", "'gone'"),
]


@pytest.mark.parametrize(("text", "named"), BROKEN, ids=[named for _, named in BROKEN])
def test_a_client_that_cannot_load_is_left_out_with_the_reason(tmp_path: Path, text: str, named: str) -> None:
    write_client(tmp_path, "broken", text, words="WORD = 1")
    found = build(tmp_path, tmp_path, skip=True)
    assert not found.clients
    models = models_of({})
    models.put(found)
    refusal = models.explain("broken")
    assert isinstance(refusal, UnknownModel)
    for sentence in (found.left_out["broken"], refusal.sentence):
        assert named in sentence
        assert "\n" not in sentence


def test_a_client_that_cannot_load_stops_the_start_unless_such_are_skipped(tmp_path: Path) -> None:
    write_client(tmp_path, "broken", "raise KeyError\n")
    write_client(tmp_path, "hello", words="WORD = 1")
    with pytest.raises(StartError, match=f"{tmp_path}/broken/client.py: line 1"):
        build(tmp_path, tmp_path)
    assert answers(build(tmp_path, tmp_path, skip=True)) == {"hello": 1}


@pytest.mark.parametrize(
    ("texts", "named"),
    [
        ({"a/hello": CLIENT_SOURCE, "b/hello": CLIENT_SOURCE}, ("a/hello/client.py", "words.py")),
        ({"code/resnet": CLIENT_SOURCE}, ("clients/resnet/client.py", "replaces = 'resnet'")),
        ({"code/better": REPLACING}, ("code/better/client.py", "'resnet'")),
    ],
)
def test_a_name_that_is_taken_stops_the_start(tmp_path: Path, texts: Any, named: tuple[str, ...]) -> None:
    for word, (folder, text) in enumerate(texts.items()):
        write_client(tmp_path, folder, text, words=f"WORD = {word}")
    with pytest.raises(NameTaken) as caught:
        build(tmp_path, BUILT_IN, tmp_path / "a", tmp_path / "b")
    assert all(each in str(caught.value) for each in named)


def test_a_client_that_declares_it_replaces_the_built_in_one(tmp_path: Path) -> None:
    write_client(tmp_path / "code", "resnet", REPLACING, words="WORD = 'mine'")
    found = build(tmp_path, BUILT_IN)
    assert found.clients["resnet"].inference(None) == "mine"
    assert "resnet" not in found.left_out


@pytest.mark.parametrize(
    ("text", "reason"),
    [("", "not served"), (CLIENT_SOURCE, "not served"), (f"import gone\n{REPLACING}", "'gone'")],
    ids=["waits for its model", "wins over one of its name", "does not come back for a broken replacement"],
)
def test_when_skipping_broken_clients_the_built_in_client(tmp_path: Path, text: str, reason: str) -> None:
    if text:
        write_client(tmp_path / "code", "resnet", text, words="WORD = 1")
    found = build(tmp_path, BUILT_IN, skip=True)
    assert not found.clients
    assert reason in found.left_out["resnet"]


class OtherModel(EmptyTriton):
    """A Triton whose model ``resnet`` takes no picture."""

    def metadata(self, model: str, version: str = "") -> ModelMetadata:
        if model != "resnet":
            raise UnknownModel(model)
        scores = {"scores": TensorMetadata("scores", "FP32", (10,))}
        return ModelMetadata(model, ("1",), 8, {"ids": TensorMetadata("ids", "INT64", (-1,))}, scores)


def test_a_model_that_its_built_in_client_does_not_fit_is_served_without_it(tmp_path: Path) -> None:
    found = find_clients((BUILT_IN,), OtherModel(), tmp_path)
    assert not found.clients
    assert "ids" in found.left_out["resnet"]
    assert "resnet" not in found.broken


def test_the_only_client_is_the_default_and_an_unknown_default_stops_the_start(tmp_path: Path) -> None:
    write_client(tmp_path, "hello", words="WORD = 1")
    models = models_of(build(tmp_path, tmp_path).clients)
    assert models.default("") == "hello"
    with pytest.raises(StartError, match="SAGEMAKER_TRITON_DEFAULT_MODEL_NAME='nobody'"):
        models.default("nobody")
    write_client(tmp_path, "second", words="WORD = 1")
    models.put(build(tmp_path, tmp_path))
    assert models.default("") == ""
    for error in (models.explain(""), models.explain("helo")):
        assert error.details["models"] == ["hello", "second"]


class ClientWithTensors(TensorClient):
    model = "m"
    inputs = {"x": ("FP32", (3, -1))}
    outputs = {"y": ("INT64", (5,))}

    def preprocess(self, payload: Any) -> dict[str, Any]:
        return {}

    def postprocess(self, outputs: Any, payload: Any) -> object:
        return None


@pytest.mark.parametrize(
    ("x", "y", "named"),
    [
        (("x", "FP32", (3, 224)), ("y", "INT64", (5,)), None),
        (("x", "FP32", (-1, 8)), ("y", "INT64", (-1,)), None),
        (("z", "FP32", (3, 224)), ("y", "INT64", (5,)), "'x'"),
        (("x", "FP16", (3, 224)), ("y", "INT64", (5,)), "FP16 [3, 224]"),
        (("x", "FP32", (4, 224)), ("y", "INT64", (5,)), "FP32 [4, 224]"),
        (("x", "FP32", (3,)), ("y", "INT64", (5,)), "FP32 [3]"),
        (("x", "FP32", (3, 224)), ("y", "INT64", (6,)), "'y'"),
    ],
)
def test_tensors_that_differ_from_the_served_model_are_reported(x: Any, y: Any, named: str | None) -> None:
    served = ModelMetadata("m", ("1",), 8, {x[0]: TensorMetadata(*x)}, {y[0]: TensorMetadata(*y)})
    found = list(differences(ClientWithTensors(EmptyTriton(), Path(), Path()), served))
    assert bool(found) == bool(named)
    assert all(str(named) in sentence for sentence in found)


def test_a_script_is_the_default_beside_clients_and_its_modules_are_none(tmp_path: Path) -> None:
    code = tmp_path / "code"
    write_client(code, "hello", words="WORD = 1")
    (code / "inference.py").write_text(SCRIPT)
    (code / "words.py").write_text("WORD = len")
    found = [(source.name, source.kind) for source in discover((code,))]
    assert found == [("model", "script"), ("hello", "file")]
    models = models_of(build(tmp_path).clients)
    assert (models.default(""), models.default("hello")) == ("model", "hello")


def test_an_identical_copy_is_accepted_and_only_a_method_for_batches_gathers_records(tmp_path: Path) -> None:
    together = f"{CLIENT_SOURCE}\n    def inference_batch(self, payloads): ...\n"
    for folder in ("clients", "code"):
        write_client(tmp_path / folder, "alone", words="WORD = 1")
        write_client(tmp_path / folder, "together", together, words="WORD = 1")
    clients = build(tmp_path, tmp_path / "clients").clients
    assert {name: client._marks.batches is not None for name, client in clients.items()} == {
        "alone": False,
        "together": True,
    }


OWN_NAMES = """
from sm.client import Client

class Own(Client):
    batches, readiness, is_edited = 3, "good", True

    def __init__(self, triton, folder, repository):
        self.unready = ["a table of its own"]

    def ready(self):
        return not self.unready

    def inference(self, payload): ...
"""


def test_a_client_may_use_the_names_of_what_the_box_notes_on_it(tmp_path: Path) -> None:
    write_client(tmp_path, "own", OWN_NAMES)
    write_client(tmp_path, "plain", OWN_NAMES.replace("return not self.unready", "return True"))
    found: dict[str, Any] = dict(find_clients((tmp_path,), EmptyTriton(), Path("/nowhere")).clients)
    assert (found["own"].batches, found["own"].unready) == (3, ["a table of its own"])
    assert [bool(found[name]._marks.unready) for name in ("own", "plain")] == [True, False]
