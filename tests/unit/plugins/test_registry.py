"""Clients are found, loaded and compared with what is served."""

from __future__ import annotations

import logging
import shutil
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from sm.client.base import ModelMetadata, TensorClient, TensorMetadata
from sm.errors import StartError, UnknownModel
from sm.plugins import registry
from sm.plugins.loading import discover, load
from sm.plugins.name_conflicts import check_name
from sm.plugins.registry import Registry
from sm.plugins.toolkit import script_modules as modules
from sm.settings import HERE, Settings
from sm.tools.check import discovery
from tests.support.client_sources import CLIENT, NothingServed, write


def build(*folders: Path, skip: bool = False) -> Registry:
    return registry.build(folders, NothingServed(), Path("/nowhere"), skip)


def test_a_folder_with_a_client_is_found_by_its_name(tmp_path: Path) -> None:
    write(tmp_path, "hello", words="WORD = 'hi'")
    found = build(tmp_path)
    assert list(found.clients) == ["hello"]
    assert found.get("hello").inference(None) == "hi"


def test_a_single_file_is_a_client_too(tmp_path: Path) -> None:
    (tmp_path / "solo.py").write_text(CLIENT.replace("from .words import WORD", "WORD = 1"))
    assert list(build(tmp_path).clients) == ["solo"]


def test_two_clients_may_have_modules_of_one_name(tmp_path: Path) -> None:
    write(tmp_path, "one", words="WORD = 1")
    write(tmp_path, "two", words="WORD = 2")
    clients = build(tmp_path).clients
    assert [clients[name].inference(None) for name in ("one", "two")] == [1, 2]


def test_a_client_may_import_what_lies_beside_it_by_its_plain_name(tmp_path: Path) -> None:
    text = CLIENT.replace("from .words", "from words")
    write(tmp_path / "code", "one", text, words="WORD = 1")
    write(tmp_path / "code", "two", text, words="WORD = 2")
    clients = registry.build((), NothingServed(), tmp_path).clients
    assert [clients[name].inference(None) for name in ("one", "two")] == [1, 2]
    for name in ("one", "two"):
        modules.forget_modules(tmp_path / "code" / name)


def test_the_files_beside_a_client_in_the_code_folder_itself_are_its_modules(tmp_path: Path) -> None:
    code = tmp_path / "code"
    write(code, "another", words="WORD = 1")
    write(tmp_path, "code2", CLIENT.replace("from .words", "from words"), words="WORD = 3")
    for file in (tmp_path / "code2").iterdir():
        file.rename(code / file.name)
    found = registry.build((), NothingServed(), tmp_path)
    modules.forget_modules(code / "another")
    modules.forget_modules(code)
    assert {name: client.inference(None) for name, client in found.clients.items()} == {
        "another": 1,
        "client": 3,
    }


def test_clients_beside_the_models_are_found(tmp_path: Path) -> None:
    write(tmp_path / "code", "mine", words="WORD = 1")
    assert list(registry.build((), NothingServed(), tmp_path).clients) == ["mine"]


def test_a_client_may_name_itself(tmp_path: Path) -> None:
    text = CLIENT.replace("(Client):", "(Client):\n    name = 'other'")
    write(tmp_path, "hello", text, words="WORD = 1")
    assert build(tmp_path).clients["other"].name == "other"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("import nothing_of_this_name\n", "line 1: ModuleNotFoundError"),
        ("x = 1\ny = x +\n", "line 2: SyntaxError"),
        ("x = 1\n", "no subclass of sm.client.base.Client"),
        ("from sm.client.base import Client\nclass Half(Client):\n    pass\n", "Half lacks inference"),
        (
            "from sm.client.base import TensorClient\nclass T(TensorClient):\n    pass\n",
            "T lacks postprocess, preprocess",
        ),
        (
            CLIENT.replace("from .words import WORD", "")
            + CLIENT.split("WORD\n")[1].replace("Hello", "Again"),
            "2 clients",
        ),
        (CLIENT + "\n    def setup(self):\n        open('/nowhere/labels')\n", "FileNotFoundError"),
        ("raise KeyError\n", "line 1: KeyError: no message"),
        (
            CLIENT + "\n    def samples(self):\n        return []\n",
            "Hello.samples must be a tuple of strings, as ('one',), but it is a method.",
        ),
        (
            CLIENT + "\n    models = 'resnet'\n",
            "Hello.models must be a tuple of strings, as ('one',), but it is 'resnet'.",
        ),
        (
            CLIENT + "\n    payload = dict\n",
            "Hello.payload must be a subclass of Payload, but it is <class 'dict'>.",
        ),
        (CLIENT + "\n    result = 'classes'\n", "Hello.result must be a result kind"),
        (CLIENT + "\n    name = 3\n", "Hello.name must be a string, but it is 3."),
        (
            "from sm.client import TensorClient\nclass T(TensorClient):\n    def preprocess(self, p): ...\n"
            "    def postprocess(self, o, p): ...\n",
            "T.model must be the name of a Triton model, but it is not set.",
        ),
    ],
)
def test_a_client_that_cannot_load_stops_the_start_with_file_and_reason(
    tmp_path: Path, text: str, reason: str
) -> None:
    write(tmp_path, "broken", text, words="WORD = 1")
    with pytest.raises(StartError, match="client.py: ") as caught:
        build(tmp_path)
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_client_may_compute_what_it_declares_and_use_any_collection(tmp_path: Path) -> None:
    computed = "\n    samples = frozenset({'a.jpg'})\n    @functools.cached_property\n    def aliases(self):\n        return ()\n"
    write(tmp_path, "hello", "import functools\n" + CLIENT + computed, words="WORD = 1")
    assert list(build(tmp_path).clients) == ["hello"]


def test_with_the_setting_a_broken_client_is_left_out_and_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path, "broken", "import nothing_of_this_name\n")
    write(tmp_path, "hello", words="WORD = 1")
    with caplog.at_level(logging.ERROR):
        found = build(tmp_path, skip=True)
    assert list(found.clients) == ["hello"]
    assert "nothing_of_this_name" in caplog.text
    with pytest.raises(UnknownModel, match="nothing_of_this_name"):
        found.get("broken")


def test_two_clients_of_one_name_stop_the_start(tmp_path: Path) -> None:
    write(tmp_path / "a", "hello", words="WORD = 1")
    write(tmp_path / "b", "hello", words="WORD = 2")
    with pytest.raises(StartError, match="already a client called 'hello'") as caught:
        build(tmp_path / "a", tmp_path / "b")
    assert all(f"{tmp_path}/{folder}/hello/client.py" in str(caught.value) for folder in "ab")


def test_a_copy_of_a_client_in_code_is_the_same_client(tmp_path: Path) -> None:
    write(tmp_path / "clients", "hello", words="WORD = 1")
    write(tmp_path / "model" / "code", "hello", words="WORD = 1")
    (tmp_path / "clients" / "hello" / "__pycache__").mkdir()
    (tmp_path / "clients" / "hello" / "__pycache__" / "words.cpython-311.pyc").write_bytes(b"x")
    found = build(tmp_path / "clients", tmp_path / "model" / "code")
    assert list(found.clients) == ["hello"]


def test_a_copy_that_was_edited_is_named_with_the_file(tmp_path: Path) -> None:
    write(tmp_path / "clients", "hello", words="WORD = 1")
    write(tmp_path / "code", "hello", words="WORD = 2")
    with pytest.raises(StartError, match=r"they differ in words\.py"):
        build(tmp_path / "clients", tmp_path / "code")


def test_a_file_and_a_folder_of_one_name_stop_the_start(tmp_path: Path) -> None:
    write(tmp_path / "code", "hello", words="WORD = 1")
    (tmp_path / "code" / "hello.py").write_text(CLIENT.replace("from .words import WORD", "WORD = 2"))
    with pytest.raises(StartError, match=r"hello.py: there is already a client called 'hello': .*client.py"):
        registry.build((), NothingServed(), tmp_path)


BUILT_IN = (HERE / "clients",)
REPLACES = CLIENT.replace("(Client):", "(Client):\n    replaces = 'resnet'")


def test_a_client_of_the_boxs_name_stops_the_start_and_is_told_what_to_write(tmp_path: Path) -> None:
    write(tmp_path / "code", "resnet", words="WORD = 1")
    with pytest.raises(StartError) as caught:
        registry.build(BUILT_IN, NothingServed(), tmp_path)
    assert str(caught.value) == (
        f"{tmp_path}/code/resnet/client.py: the box comes with a client 'resnet', clients/resnet/client.py: "
        "give yours another name, or write replaces = 'resnet' into its class to serve it instead."
    )


def test_a_client_that_says_so_takes_the_place_of_the_boxs_which_is_not_loaded(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path / "code", "resnet", REPLACES, words="WORD = 'mine'")
    with caplog.at_level(logging.INFO):
        found = registry.build(BUILT_IN, NothingServed(), tmp_path)
    assert found.get("resnet").inference(None) == "mine"
    assert "resnet" not in found.left_out
    assert "clients/resnet/client.py is replaced by" in caplog.text


def test_a_client_may_say_so_where_there_is_nothing_to_replace(tmp_path: Path) -> None:
    write(tmp_path / "code", "resnet", REPLACES, words="WORD = 'mine'")
    assert list(registry.build((), NothingServed(), tmp_path).clients) == ["resnet"]


def test_check_client_means_the_archives_client_and_says_that_it_has_the_boxs_name(tmp_path: Path) -> None:
    settings = Settings.read({"TRIREME_MODEL_REPOSITORY": str(tmp_path)})
    for text, says_so in ((CLIENT, False), (REPLACES, True)):
        (write(tmp_path / "code", "resnet", text, words="WORD = 1") / "sample").mkdir()
        found = discovery.find("resnet", settings)
        assert found.file == tmp_path / "code" / "resnet" / "client.py"
        client = load(found, NothingServed(), tmp_path)
        with nullcontext() if says_so else pytest.raises(StartError, match="write replaces = 'resnet'"):
            check_name(client, found, discovery.of_the_box(settings))
        shutil.rmtree(tmp_path / "code")


def test_a_client_replaces_no_other_name_than_its_own(tmp_path: Path) -> None:
    write(tmp_path / "code", "better", REPLACES, words="WORD = 1")
    with pytest.raises(StartError, match="it replaces 'resnet', but its name is 'better'"):
        registry.build(BUILT_IN, NothingServed(), tmp_path)


def test_with_the_setting_a_client_that_does_not_say_so_leaves_the_boxs_in_its_place(tmp_path: Path) -> None:
    write(tmp_path / "code", "resnet", words="WORD = 1")
    found = registry.build(BUILT_IN, NothingServed(), tmp_path, skip_broken=True)
    assert "not served" in found.left_out["resnet"]  # the box's own waits for its model


def test_a_broken_client_of_the_boxs_name_is_not_answered_for_by_the_boxs(tmp_path: Path) -> None:
    write(tmp_path / "code", "resnet", f"import nothing_of_this_name\n{REPLACES}", words="WORD = 1")
    found = registry.build(BUILT_IN, NothingServed(), tmp_path, skip_broken=True)
    assert "nothing_of_this_name" in found.left_out["resnet"]


def test_two_folders_of_one_name_whose_clients_are_called_otherwise_keep_their_modules(
    tmp_path: Path,
) -> None:
    late = "from sm.client.base import Client\n\nclass Late(Client):\n    name = '{}'\n\n    def inference(self, _):\n        from .words import WORD\n        return WORD\n"
    write(tmp_path / "a", "hello", late.format("one"), words="WORD = 1")
    write(tmp_path / "b", "hello", late.format("two"), words="WORD = 2")
    clients = build(tmp_path / "a", tmp_path / "b").clients
    assert [clients[name].inference(None) for name in ("one", "two")] == [1, 2]


def test_a_client_whose_model_is_missing_stops_the_start(tmp_path: Path) -> None:
    write(
        tmp_path, "needy", CLIENT.replace("(Client):", "(Client):\n    models = ('gone',)"), words="WORD = 1"
    )
    with pytest.raises(StartError, match="'gone' is not served"):
        build(tmp_path)


def test_a_client_that_came_with_the_box_waits_for_its_model() -> None:
    found = build(HERE / "clients")
    assert not found.clients
    assert "not served" in found.left_out["resnet"]


def test_an_unknown_model_is_answered_with_what_exists(tmp_path: Path) -> None:
    write(tmp_path, "hello", words="WORD = 1")
    with pytest.raises(UnknownModel, match="there are: hello"):
        build(tmp_path).get("helo")


def test_the_sole_client_is_the_default_and_a_wrong_default_stops_the_start(tmp_path: Path) -> None:
    write(tmp_path, "hello", words="WORD = 1")
    found = build(tmp_path)
    assert found.default("") == "hello"
    with pytest.raises(StartError, match="SAGEMAKER_TRITON_DEFAULT_MODEL_NAME='nobody'"):
        found.default("nobody")
    write(tmp_path, "second", words="WORD = 1")
    assert build(tmp_path).default("") == ""


class Named(TensorClient):
    model = "m"
    inputs = {"x": ("FP32", (3, -1))}
    outputs = {"y": ("INT64", (5,))}

    def preprocess(self, payload: Any) -> dict[str, Any]:
        return {}

    def postprocess(self, outputs: Any, payload: Any) -> object:
        return None


@pytest.mark.parametrize(
    ("inputs", "outputs", "sentence"),
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
def test_tensors_that_differ_from_the_served_model_are_named(
    inputs: tuple[str, str, tuple[int, ...]], outputs: tuple[str, str, tuple[int, ...]], sentence: str
) -> None:
    served = ModelMetadata(
        "m", ("1",), 8, {inputs[0]: TensorMetadata(*inputs)}, {outputs[0]: TensorMetadata(*outputs)}
    )
    found = list(registry.differences(Named(NothingServed(), Path(), Path()), served))
    assert bool(found) is bool(sentence)
    assert all(sentence in fault for fault in found)


SCRIPT = "import words\n\ndef model_fn(folder):\n    return words.WORD\n"


def test_the_files_beside_a_toolkit_script_are_its_modules_and_no_clients(tmp_path: Path) -> None:
    (tmp_path / "inference.py").write_text(SCRIPT)
    (tmp_path / "words.py").write_text("WORD = 1")
    write(tmp_path, "hello", words="WORD = 1")
    assert [(found.name, found.module) for found in discover((tmp_path,))] == [
        ("model", "inference"),
        ("hello", ""),
    ]


def test_a_toolkit_script_is_the_default_whatever_else_there_is(tmp_path: Path) -> None:
    code = tmp_path / "code"
    write(code, "hello", words="WORD = 1")
    (code / "inference.py").write_text(SCRIPT.replace("import words", "").replace("words.WORD", "len"))
    found = registry.build((), NothingServed(), tmp_path)
    modules.forget_modules(code)
    assert sorted(found.clients) == ["hello", "model"]
    assert found.default("") == "model"
    assert found.default("hello") == "hello"
    assert [found.takes_bodies(name) for name in ("model", "hello", "nobody")] == [True, False, False]


@pytest.mark.parametrize("ends", ["KeyboardInterrupt", "SystemExit"])
def test_a_client_that_tries_to_exit_stops_the_start_with_a_sentence_or_is_left_out(
    tmp_path: Path, ends: str
) -> None:
    write(tmp_path, "hello", f"{CLIENT}\n    def setup(self):\n        raise {ends}\n", words="WORD = 1")
    with pytest.raises(StartError, match=f"client.py: line .*{ends}"):
        build(tmp_path)
    assert ends in build(tmp_path, skip=True).left_out["hello"]
