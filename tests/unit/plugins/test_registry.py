"""Clients are found, loaded and checked against the served models."""

from __future__ import annotations

import logging
import shutil
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from sm.client.base import ModelMetadata, TensorClient, TensorMetadata
from sm.errors import StartError, UnknownModel
from sm.models.found_clients import FoundLoader
from sm.models.table import Models
from sm.plugins import registry
from sm.plugins.loading import discover, load
from sm.plugins.registry import Found, check_name
from sm.plugins.toolkit import code_imports as modules
from sm.settings import HERE, Settings
from tests.support.client_sources import CLIENT_SOURCE, EmptyTriton, write_client
from trireme_tools.check import discovery


def build_registry(*folders: Path, skip: bool = False) -> Found:
    return registry.build(folders, EmptyTriton(), Path("/nowhere"), skip)


def test_two_clients_may_have_modules_of_the_same_name(tmp_path: Path) -> None:
    write_client(tmp_path, "one", words="WORD = 1")
    write_client(tmp_path, "two", words="WORD = 2")
    clients = build_registry(tmp_path).clients
    assert [clients[name].inference(None) for name in ("one", "two")] == [1, 2]


def test_a_client_may_import_a_file_beside_it_by_its_plain_name(tmp_path: Path) -> None:
    text = CLIENT_SOURCE.replace("from .words", "from words")
    write_client(tmp_path / "code", "one", text, words="WORD = 1")
    write_client(tmp_path / "code", "two", text, words="WORD = 2")
    clients = registry.build((), EmptyTriton(), tmp_path).clients
    assert [clients[name].inference(None) for name in ("one", "two")] == [1, 2]
    for name in ("one", "two"):
        modules.forget_modules(tmp_path / "code" / name)


def test_a_client_directly_in_the_code_folder_may_import_the_files_beside_it(tmp_path: Path) -> None:
    code = tmp_path / "code"
    write_client(code, "another", words="WORD = 1")
    write_client(tmp_path, "code2", CLIENT_SOURCE.replace("from .words", "from words"), words="WORD = 3")
    for file in (tmp_path / "code2").iterdir():
        file.rename(code / file.name)
    found = registry.build((), EmptyTriton(), tmp_path)
    modules.forget_modules(code / "another")
    modules.forget_modules(code)
    assert {name: client.inference(None) for name, client in found.clients.items()} == {
        "another": 1,
        "client": 3,
    }


def test_a_client_may_name_itself(tmp_path: Path) -> None:
    text = CLIENT_SOURCE.replace("(Client):", "(Client):\n    name = 'other'")
    write_client(tmp_path, "hello", text, words="WORD = 1")
    assert build_registry(tmp_path).clients["other"].name == "other"


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
            CLIENT_SOURCE.replace("from .words import WORD", "")
            + CLIENT_SOURCE.split("WORD\n")[1].replace("Hello", "Again"),
            "2 clients",
        ),
        (CLIENT_SOURCE + "\n    def setup(self):\n        open('/nowhere/labels')\n", "FileNotFoundError"),
        ("raise KeyError\n", "line 1: KeyError: no message"),
        (
            CLIENT_SOURCE + "\n    def samples(self):\n        return []\n",
            "Hello.samples must be a tuple of strings, as ('one',), but it is a method.",
        ),
        (
            CLIENT_SOURCE + "\n    models = 'resnet'\n",
            "Hello.models must be a tuple of strings, as ('one',), but it is 'resnet'.",
        ),
        (
            CLIENT_SOURCE + "\n    payload = dict\n",
            "Hello.payload must be a subclass of Payload, but it is <class 'dict'>.",
        ),
        (CLIENT_SOURCE + "\n    result = 'classes'\n", "Hello.result must be a result kind"),
        (CLIENT_SOURCE + "\n    max_batch = 0\n", "Hello.max_batch must be a number of records"),
        (CLIENT_SOURCE + "\n    max_wait_ms = '5'\n", "Hello.max_wait_ms must be a number of milliseconds"),
        (CLIENT_SOURCE + "\n    name = 3\n", "Hello.name must be a string, but it is 3."),
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
    write_client(tmp_path, "broken", text, words="WORD = 1")
    with pytest.raises(StartError, match="client.py: ") as caught:
        build_registry(tmp_path)
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_client_may_declare_with_properties_and_any_collection(tmp_path: Path) -> None:
    declarations = "\n    samples = frozenset({'a.jpg'})\n    @functools.cached_property\n    def aliases(self):\n        return ()\n"
    write_client(tmp_path, "hello", "import functools\n" + CLIENT_SOURCE + declarations, words="WORD = 1")
    assert list(build_registry(tmp_path).clients) == ["hello"]


def test_when_skipping_broken_clients_one_is_left_out_and_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_client(tmp_path, "broken", "import nothing_of_this_name\n")
    write_client(tmp_path, "hello", words="WORD = 1")
    with caplog.at_level(logging.ERROR):
        found = build_registry(tmp_path, skip=True)
    assert list(found.clients) == ["hello"]
    assert "nothing_of_this_name" in caplog.text
    with pytest.raises(UnknownModel, match="nothing_of_this_name"):
        raise Models(FoundLoader(found)).explain("broken")


def test_two_clients_of_the_same_name_stop_the_start(tmp_path: Path) -> None:
    write_client(tmp_path / "a", "hello", words="WORD = 1")
    write_client(tmp_path / "b", "hello", words="WORD = 2")
    with pytest.raises(StartError, match="already a client called 'hello'") as caught:
        build_registry(tmp_path / "a", tmp_path / "b")
    assert all(f"{tmp_path}/{folder}/hello/client.py" in str(caught.value) for folder in "ab")


def test_an_identical_copy_of_a_client_is_accepted(tmp_path: Path) -> None:
    write_client(tmp_path / "clients", "hello", words="WORD = 1")
    write_client(tmp_path / "model" / "code", "hello", words="WORD = 1")
    (tmp_path / "clients" / "hello" / "__pycache__").mkdir()
    (tmp_path / "clients" / "hello" / "__pycache__" / "words.cpython-311.pyc").write_bytes(b"x")
    found = build_registry(tmp_path / "clients", tmp_path / "model" / "code")
    assert list(found.clients) == ["hello"]


def test_the_error_for_an_edited_copy_of_a_client_names_the_changed_file(tmp_path: Path) -> None:
    write_client(tmp_path / "clients", "hello", words="WORD = 1")
    write_client(tmp_path / "code", "hello", words="WORD = 2")
    with pytest.raises(StartError, match=r"they differ in words\.py"):
        build_registry(tmp_path / "clients", tmp_path / "code")


def test_a_file_and_a_folder_of_the_same_name_stop_the_start(tmp_path: Path) -> None:
    write_client(tmp_path / "code", "hello", words="WORD = 1")
    (tmp_path / "code" / "hello.py").write_text(CLIENT_SOURCE.replace("from .words import WORD", "WORD = 2"))
    with pytest.raises(StartError, match=r"hello.py: there is already a client called 'hello': .*client.py"):
        registry.build((), EmptyTriton(), tmp_path)


BUILT_IN_CLIENTS = (HERE / "clients",)
REPLACING_CLIENT = CLIENT_SOURCE.replace("(Client):", "(Client):\n    replaces = 'resnet'")


def test_a_client_with_a_built_in_clients_name_stops_the_start_with_advice(tmp_path: Path) -> None:
    write_client(tmp_path / "code", "resnet", words="WORD = 1")
    with pytest.raises(StartError) as caught:
        registry.build(BUILT_IN_CLIENTS, EmptyTriton(), tmp_path)
    assert str(caught.value) == (
        f"{tmp_path}/code/resnet/client.py: the box comes with a client 'resnet', clients/resnet/client.py: "
        "give yours another name, or write replaces = 'resnet' into its class to serve it instead."
    )


def test_a_client_that_declares_it_replaces_the_built_in_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_client(tmp_path / "code", "resnet", REPLACING_CLIENT, words="WORD = 'mine'")
    with caplog.at_level(logging.INFO):
        found = registry.build(BUILT_IN_CLIENTS, EmptyTriton(), tmp_path)
    assert found.clients["resnet"].inference(None) == "mine"
    assert "resnet" not in found.left_out
    assert "clients/resnet/client.py is replaced by" in caplog.text


def test_check_client_checks_the_archives_client_and_reports_a_built_in_name(tmp_path: Path) -> None:
    settings = Settings.read({"TRIREME_MODEL_REPOSITORY": str(tmp_path)})
    for source_text, replaces in ((CLIENT_SOURCE, False), (REPLACING_CLIENT, True)):
        (write_client(tmp_path / "code", "resnet", source_text, words="WORD = 1") / "sample").mkdir()
        source = discovery.find("resnet", settings)
        assert source.file == tmp_path / "code" / "resnet" / "client.py"
        client = load(source, EmptyTriton(), tmp_path)
        with nullcontext() if replaces else pytest.raises(StartError, match="write replaces = 'resnet'"):
            check_name(client, source, discovery.find_box_clients(settings))
        shutil.rmtree(tmp_path / "code")


def test_a_client_may_replace_only_a_client_of_its_own_name(tmp_path: Path) -> None:
    write_client(tmp_path / "code", "better", REPLACING_CLIENT, words="WORD = 1")
    with pytest.raises(StartError, match="it replaces 'resnet', but its name is 'better'"):
        registry.build(BUILT_IN_CLIENTS, EmptyTriton(), tmp_path)


def test_when_skipping_broken_clients_the_built_in_client_wins_over_one_of_its_name(tmp_path: Path) -> None:
    write_client(tmp_path / "code", "resnet", words="WORD = 1")
    found = registry.build(BUILT_IN_CLIENTS, EmptyTriton(), tmp_path, skip_broken=True)
    assert "not served" in found.left_out["resnet"]  # the built-in client waits for its model


def test_a_broken_replacement_does_not_bring_back_the_built_in_client(tmp_path: Path) -> None:
    write_client(
        tmp_path / "code", "resnet", f"import nothing_of_this_name\n{REPLACING_CLIENT}", words="WORD = 1"
    )
    found = registry.build(BUILT_IN_CLIENTS, EmptyTriton(), tmp_path, skip_broken=True)
    assert "nothing_of_this_name" in found.left_out["resnet"]


def test_clients_of_different_names_in_folders_of_the_same_name_keep_their_modules(
    tmp_path: Path,
) -> None:
    late_import_client = "from sm.client.base import Client\n\nclass Late(Client):\n    name = '{}'\n\n    def inference(self, _):\n        from .words import WORD\n        return WORD\n"
    write_client(tmp_path / "a", "hello", late_import_client.format("one"), words="WORD = 1")
    write_client(tmp_path / "b", "hello", late_import_client.format("two"), words="WORD = 2")
    clients = build_registry(tmp_path / "a", tmp_path / "b").clients
    assert [clients[name].inference(None) for name in ("one", "two")] == [1, 2]


def test_a_client_whose_model_is_missing_stops_the_start(tmp_path: Path) -> None:
    write_client(
        tmp_path,
        "hello",
        CLIENT_SOURCE.replace("(Client):", "(Client):\n    models = ('gone',)"),
        words="WORD = 1",
    )
    with pytest.raises(StartError, match="'gone' is not served"):
        build_registry(tmp_path)


def test_a_built_in_client_waits_for_its_model() -> None:
    found = build_registry(HERE / "clients")
    assert not found.clients
    assert "not served" in found.left_out["resnet"]


def test_the_error_for_an_unknown_model_lists_the_known_ones(tmp_path: Path) -> None:
    write_client(tmp_path, "hello", words="WORD = 1")
    with pytest.raises(UnknownModel, match="there are: hello"):
        raise Models(FoundLoader(build_registry(tmp_path))).explain("helo")


def test_the_only_client_is_the_default_and_an_unknown_default_stops_the_start(tmp_path: Path) -> None:
    write_client(tmp_path, "hello", words="WORD = 1")
    loader = FoundLoader(build_registry(tmp_path))
    assert loader.default("") == "hello"
    with pytest.raises(StartError, match="SAGEMAKER_TRITON_DEFAULT_MODEL_NAME='nobody'"):
        loader.default("nobody")
    write_client(tmp_path, "second", words="WORD = 1")
    loader.put(build_registry(tmp_path))
    assert loader.default("") == ""
    error = Models(loader).explain("")
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
    differences = list(registry.differences(ClientWithTensors(EmptyTriton(), Path(), Path()), served))
    if difference:
        assert differences
    else:
        assert differences == []
    assert all(difference in found for found in differences)


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
    found = registry.build((), EmptyTriton(), tmp_path)
    modules.forget_modules(code)
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


@pytest.mark.parametrize("exception", ["KeyboardInterrupt", "SystemExit"])
def test_a_client_that_tries_to_exit_stops_the_start_or_is_left_out(tmp_path: Path, exception: str) -> None:
    write_client(
        tmp_path,
        "hello",
        f"{CLIENT_SOURCE}\n    def setup(self):\n        raise {exception}\n",
        words="WORD = 1",
    )
    with pytest.raises(StartError, match=f"client.py: line .*{exception}"):
        build_registry(tmp_path)
    assert exception in build_registry(tmp_path, skip=True).left_out["hello"]


def test_only_a_client_that_implements_a_method_for_batches_has_its_records_gathered(tmp_path: Path) -> None:
    write_client(tmp_path, "alone", words="WORD = 1")
    batch_method = "\n    def inference_batch(self, payloads):\n        return [WORD] * len(payloads)\n"
    write_client(tmp_path, "together", CLIENT_SOURCE + batch_method, words="WORD = 1")
    clients = build_registry(tmp_path).clients
    assert clients["alone"].batches is None
    assert clients["together"].batches is not None
