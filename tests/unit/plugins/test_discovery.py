"""Clients are found, loaded and checked against the served models."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from sm.client.base import ModelMetadata, TensorClient, TensorMetadata
from sm.errors import StartError, UnknownModel
from sm.models.found_clients import FoundLoader
from sm.models.table import Models
from sm.plugins.checks import differences
from sm.plugins.discovery import Found, NameTaken, check_name, find_clients
from sm.plugins.loading import discover, load
from sm.plugins.toolkit import code_imports as modules
from sm.settings import HERE, Settings
from tests.support.client_sources import CLIENT_SOURCE, EmptyTriton, write_client
from trireme_tools.check import discovery

BUILT_IN = HERE / "clients"
PLAIN_IMPORT = CLIENT_SOURCE.replace("from .words", "from words")
REPLACING = CLIENT_SOURCE.replace("(Client):", "(Client):\n    replaces = 'resnet'")


@pytest.fixture(autouse=True)
def forget_modules(tmp_path: Path) -> Iterator[None]:
    yield
    for folder in (tmp_path / "code", *tmp_path.glob("code/[!_]*/")):
        modules.forget_modules(folder)


def build(repository: Path, *folders: Path, skip: bool = False) -> Found:
    """Find the clients of a box; those of the repository are in its ``code`` folder."""
    return find_clients(folders, EmptyTriton(), repository, skip)


def answers(found: Found) -> dict[str, object]:
    return {name: client.inference(None) for name, client in found.clients.items()}


LATE_IMPORT = """
from sm.client.base import Client

class Late(Client):
    name = '{}'

    def inference(self, _):
        from .words import WORD
        return WORD
"""


@pytest.mark.parametrize(
    ("folders", "texts"),
    [
        (("code/one", "code/two"), (CLIENT_SOURCE, CLIENT_SOURCE)),
        (("code/one", "code/two"), (PLAIN_IMPORT, PLAIN_IMPORT)),
        (("a/hello", "b/hello"), (LATE_IMPORT.format("one"), LATE_IMPORT.format("two"))),
    ],
    ids=["imported as a package's", "imported by their plain names", "imported late"],
)
def test_two_clients_may_have_modules_of_the_same_name(
    tmp_path: Path, folders: tuple[str, str], texts: tuple[str, str]
) -> None:
    for word, (folder, text) in enumerate(zip(folders, texts, strict=True), 1):
        write_client(tmp_path, folder, text, words=f"WORD = {word}")
    assert answers(build(tmp_path, tmp_path / "a", tmp_path / "b")) == {"one": 1, "two": 2}


def test_a_client_directly_in_the_code_folder_may_import_the_files_beside_it(tmp_path: Path) -> None:
    write_client(tmp_path, "code", PLAIN_IMPORT, words="WORD = 3")
    write_client(tmp_path / "code", "another", words="WORD = 1")
    assert answers(build(tmp_path)) == {"another": 1, "client": 3}


def test_a_client_may_name_itself(tmp_path: Path) -> None:
    text = CLIENT_SOURCE.replace("(Client):", "(Client):\n    name = 'other'")
    write_client(tmp_path, "hello", text, words="WORD = 1")
    assert build(tmp_path, tmp_path).clients["other"].name == "other"


#: The text of a client that cannot load, and what the error names beside its file: a line, a class, an attribute.
BROKEN = [
    ("import nothing_of_this_name\n", "line 1: ModuleNotFoundError"),
    ("x = 1\ny = x +\n", "line 2: SyntaxError"),
    ("x = 1\n", "sm.client.base.Client"),
    ("from sm.client.base import Client\nclass Half(Client):\n    pass\n", "Half lacks inference"),
    (
        "from sm.client import TensorClient\nclass T(TensorClient):\n    pass\n",
        "T lacks postprocess, preprocess",
    ),
    (CLIENT_SOURCE + CLIENT_SOURCE.replace("Hello", "Again"), "Hello, Again"),
    (CLIENT_SOURCE + "\n    def setup(self):\n        open('/nowhere/labels')\n", "FileNotFoundError"),
    ("raise KeyError\n", "line 1: KeyError"),
    (
        CLIENT_SOURCE + "\n    def setup(self):\n        raise KeyboardInterrupt\n",
        "line 10: KeyboardInterrupt",
    ),
    (CLIENT_SOURCE + "\n    def setup(self):\n        raise SystemExit\n", "line 10: SystemExit"),
    (CLIENT_SOURCE + "\n    def samples(self):\n        return []\n", "Hello.samples"),
    (CLIENT_SOURCE + "\n    models = 'resnet'\n", "Hello.models"),
    (CLIENT_SOURCE + "\n    payload = dict\n", "Hello.payload"),
    (CLIENT_SOURCE + "\n    result = 'classes'\n", "Hello.result"),
    (CLIENT_SOURCE + "\n    max_batch = 0\n", "Hello.max_batch"),
    (CLIENT_SOURCE + "\n    max_wait_ms = '5'\n", "Hello.max_wait_ms"),
    (CLIENT_SOURCE + "\n    name = 3\n", "Hello.name"),
    (CLIENT_SOURCE + "\n    models = ('gone',)\n", "'gone'"),
    (
        "from sm.client import TensorClient\nclass T(TensorClient):\n    def preprocess(self, p): ...\n"
        "    def postprocess(self, o, p): ...\n",
        "T.model",
    ),
]


@pytest.mark.parametrize(("text", "named"), BROKEN, ids=[named for _, named in BROKEN])
def test_a_client_that_cannot_load_stops_the_start_or_is_left_out_with_the_reason(
    tmp_path: Path, text: str, named: str
) -> None:
    folder = tmp_path / "clients"
    write_client(folder, "broken", text, words="WORD = 1")
    write_client(folder, "hello", words="WORD = 1")
    with pytest.raises(StartError) as caught:
        build(tmp_path, folder)
    found = build(tmp_path, folder, skip=True)
    assert list(found.clients) == ["hello"]
    refusal = Models(FoundLoader(found)).explain("broken")
    assert isinstance(refusal, UnknownModel)
    for sentence in (str(caught.value), found.left_out["broken"], refusal.sentence):
        assert named in sentence
        assert "\n" not in sentence
    assert f"{folder}/broken/client.py: " in str(caught.value)


def test_a_client_may_declare_with_properties_and_any_collection(tmp_path: Path) -> None:
    declarations = "\n    samples = frozenset({'a.jpg'})\n    @functools.cached_property\n    def aliases(self):\n        return ()\n"
    write_client(tmp_path, "hello", "import functools\n" + CLIENT_SOURCE + declarations, words="WORD = 1")
    assert list(build(tmp_path, tmp_path).clients) == ["hello"]


#: The clients of a box by their folders, and what the error names: the files, what differs, the attribute to write.
TAKEN = {
    "two clients": ({"a/hello": CLIENT_SOURCE, "b/hello": CLIENT_SOURCE}, ("a/hello/client.py", "words.py")),
    "a file and a folder": ({"code/hello": CLIENT_SOURCE, "code/hello.py": CLIENT_SOURCE}, ("hello/client.py", "hello.py")),
    "a built-in client's name": ({"code/resnet": CLIENT_SOURCE}, ("clients/resnet/client.py", "replaces = 'resnet'")),
    "another client's name": ({"code/better": REPLACING}, ("code/better/client.py", "'resnet'")),
}  # fmt: skip


@pytest.mark.parametrize("name", TAKEN)
def test_a_name_that_is_taken_stops_the_start(tmp_path: Path, name: str) -> None:
    texts, named = TAKEN[name]
    for word, (folder, text) in enumerate(texts.items()):
        if folder.endswith(".py"):
            (tmp_path / folder).write_text(text.replace("from .words import WORD", "WORD = 2"))
        else:
            write_client(tmp_path, folder, text, words=f"WORD = {word}")
    with pytest.raises(NameTaken) as caught:
        build(tmp_path, BUILT_IN, tmp_path / "a", tmp_path / "b")
    assert all(each in str(caught.value) for each in named)


def test_an_identical_copy_of_a_client_is_accepted(tmp_path: Path) -> None:
    for folder in ("clients", "code"):
        write_client(tmp_path / folder, "hello", words="WORD = 1")
    (tmp_path / "clients" / "hello" / "__pycache__").mkdir()
    (tmp_path / "clients" / "hello" / "__pycache__" / "words.cpython-311.pyc").write_bytes(b"x")
    assert list(build(tmp_path, tmp_path / "clients").clients) == ["hello"]


def test_a_client_that_declares_it_replaces_the_built_in_one(tmp_path: Path) -> None:
    write_client(tmp_path / "code", "resnet", REPLACING, words="WORD = 'mine'")
    found = build(tmp_path, BUILT_IN)
    assert found.clients["resnet"].inference(None) == "mine"
    assert "resnet" not in found.left_out


def test_check_client_checks_the_archives_client_and_reports_a_built_in_name(tmp_path: Path) -> None:
    settings = Settings.read({"TRIREME_MODEL_REPOSITORY": str(tmp_path)})
    for source_text, replaces in ((CLIENT_SOURCE, False), (REPLACING, True)):
        (write_client(tmp_path / "code", "resnet", source_text, words="WORD = 1") / "sample").mkdir()
        source = discovery.find("resnet", settings)
        assert source.file == tmp_path / "code" / "resnet" / "client.py"
        client = load(source, EmptyTriton(), tmp_path)
        with nullcontext() if replaces else pytest.raises(NameTaken):
            check_name(client, source, discovery.find_box_clients(settings))
        shutil.rmtree(tmp_path / "code")


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


def test_the_only_client_is_the_default_and_an_unknown_default_stops_the_start(tmp_path: Path) -> None:
    write_client(tmp_path, "hello", words="WORD = 1")
    loader = FoundLoader(build(tmp_path, tmp_path))
    assert loader.default("") == "hello"
    with pytest.raises(StartError, match="SAGEMAKER_TRITON_DEFAULT_MODEL_NAME='nobody'"):
        loader.default("nobody")
    write_client(tmp_path, "second", words="WORD = 1")
    loader.put(build(tmp_path, tmp_path))
    assert loader.default("") == ""
    for error in (Models(loader).explain(""), Models(loader).explain("helo")):
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
    ("inputs", "outputs", "difference"),
    [
        (("x", "FP32", (3, 224)), ("y", "INT64", (5,)), ""),
        (("x", "FP32", (-1, 8)), ("y", "INT64", (-1,)), ""),
        (("z", "FP32", (3, 224)), ("y", "INT64", (5,)), "names the input 'x'"),
        (("x", "FP16", (3, 224)), ("y", "INT64", (5,)), "'x' is FP32 [3, -1], but 'm' has FP16 [3, 224]"),
        (("x", "FP32", (4, 224)), ("y", "INT64", (5,)), "'x' is FP32 [3, -1]"),
        (("x", "FP32", (3,)), ("y", "INT64", (5,)), "but 'm' has FP32 [3]"),
        (("x", "FP32", (3, 224)), ("y", "INT64", (6,)), "its output 'y'"),
    ],
)
def test_tensors_that_differ_from_the_served_model_are_reported(
    inputs: tuple[str, str, tuple[int, ...]], outputs: tuple[str, str, tuple[int, ...]], difference: str
) -> None:
    served = ModelMetadata(
        "m", ("1",), 8, {inputs[0]: TensorMetadata(*inputs)}, {outputs[0]: TensorMetadata(*outputs)}
    )
    found = list(differences(ClientWithTensors(EmptyTriton(), Path(), Path()), served))
    assert bool(found) == bool(difference)
    assert all(difference in sentence for sentence in found)


SCRIPT = "import words\n\ndef model_fn(folder):\n    return words.WORD\n"


def test_files_beside_a_toolkit_script_are_its_modules_and_not_clients(tmp_path: Path) -> None:
    (tmp_path / "inference.py").write_text(SCRIPT)
    (tmp_path / "words.py").write_text("WORD = 1")
    write_client(tmp_path, "hello", words="WORD = 1")
    assert [(source.name, source.module) for source in discover((tmp_path,))] == [
        ("model", "inference"),
        ("hello", ""),
    ]


def test_a_toolkit_script_is_the_default_beside_other_clients(tmp_path: Path) -> None:
    code = tmp_path / "code"
    write_client(code, "hello", words="WORD = 1")
    (code / "inference.py").write_text(SCRIPT.replace("import words", "").replace("words.WORD", "len"))
    found = build(tmp_path)
    assert sorted(found.clients) == ["hello", "model"]
    loader = FoundLoader(found)
    assert loader.default("") == "model"
    assert loader.default("hello") == "hello"
    served = [Models(loader).use(name, None) for name in ("model", "hello", "nobody")]
    assert [each and each.client and each.client.payload.takes_bodies for each in served] == [
        True,
        False,
        None,
    ]


def test_only_a_client_that_implements_a_method_for_batches_has_its_records_gathered(tmp_path: Path) -> None:
    write_client(tmp_path, "alone", words="WORD = 1")
    batch_method = "\n    def inference_batch(self, payloads):\n        return [WORD] * len(payloads)\n"
    write_client(tmp_path, "together", CLIENT_SOURCE + batch_method, words="WORD = 1")
    clients = build(tmp_path, tmp_path).clients
    assert clients["alone"].batches is None
    assert clients["together"].batches is not None
