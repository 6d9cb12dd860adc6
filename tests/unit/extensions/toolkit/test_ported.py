"""Code of other systems: found, told from clients and scripts, and called as there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from sm.errors import BadInput, StartError
from sm.plugins import discovery
from sm.plugins.sources import PAGE, discover
from tests.support.client_sources import EmptyTriton
from trireme_extensions.toolkit.ported import ArticleClient, HandleClient, PictureOrText

BASE = """
from abc import ABC, abstractmethod
class Base(ABC):
    @abstractmethod
    def inference(self, img): ...
"""
ARTICLE = """
from base import Base
class Resnet(Base):
    def inference(self, img):
        if isinstance(img, str):
            return img
        return [list(img.shape), img[0, 0].tolist(), str(img.dtype), img.flags.c_contiguous]
"""
HANDLE = """
loaded = []
def handle(data, context):
    if data is None:
        return loaded.append(context.system_properties["model_dir"])
    assert loaded
    context.set_response_content_type(0, "application/json")
    return ["[" + ",".join(row["body"].decode() for row in data) + "]"]
"""


def load(folder: Path, name: str) -> Any:
    return discovery.find_clients((folder,), EmptyTriton(), folder).clients[name]


def write(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    return folder


def test_the_articles_class_gets_the_decoded_payload_and_its_base_is_not_a_client(tmp_path: Path) -> None:
    write(tmp_path, base=BASE, resnet=ARTICLE)
    assert [source.name for source in discover((tmp_path,))] == ["resnet"]
    client = load(tmp_path, "resnet")
    assert isinstance(client, ArticleClient)
    Image.new("RGB", (4, 3), (255, 0, 0)).save(tmp_path / "red.png")
    payload = PictureOrText.model_validate(PictureOrText.fields_of_raw((tmp_path / "red.png").read_bytes()))
    # BGR, as cv2.imdecode reads it.
    assert client.inference(payload) == [[3, 4, 3], [0, 0, 255], "uint8", True]
    assert client.inference(PictureOrText(text="so")) == "so"
    assert PictureOrText.fields_of_raw(b"so") == {"text": "so"}
    with pytest.raises(BadInput):
        client.inference(PictureOrText())


def test_a_handle_is_loaded_without_data_and_gets_one_request_at_a_time(tmp_path: Path) -> None:
    write(tmp_path, digits=HANDLE)
    client = load(tmp_path, "digits")
    assert isinstance(client, HandleClient)
    answer: Any = client.inference(client.payload(body=b"7", content_type="text/plain"))
    assert (answer.body, answer.content_type) == (b"[7]", "application/json")
    dispatched = client.payload(body=b"8", content_type="application/json", dispatched=True)
    assert client.inference(dispatched) == [8]


@pytest.mark.parametrize("returned", ["None", "[]", "[1, 2]", "b'x'"])
def test_a_handle_that_does_not_answer_each_request_is_told_so(tmp_path: Path, returned: str) -> None:
    client = load(write(tmp_path, wrong=f"def handle(data, context): return {returned}"), "wrong")
    with pytest.raises(TypeError):
        client.inference(client.payload(body=b"7", content_type="text/plain"))


@pytest.mark.parametrize(
    "imported",
    ["from sm.client import Client as Base", "from sm.client.tasks import ImageClassification as Base"],
)
def test_a_client_is_one_whatever_its_base_is_called(tmp_path: Path, imported: str) -> None:
    text = f"{imported}\nclass Mine(Base):\n    def inference(self, payload): return 'mine'"
    (source,) = discover((write(tmp_path, mine=text),))
    assert source.row.client_class(source).inference(None, None) == "mine"


NEED_A_PORT = [
    "from ts.torch_handler.base_handler import BaseHandler\nclass Mine(BaseHandler):\n    def inference(self, x): ...",
    "class Mine:\n    def predict(self, x): ...",
    "from cog import BasePredictor\nclass Predictor(BasePredictor):\n    def predict(self, x): ...",
    "class Handler:\n    pass\ndef handle(inputs): ...",
]


@pytest.mark.parametrize("text", NEED_A_PORT)
def test_code_that_needs_a_port_names_the_page(tmp_path: Path, text: str) -> None:
    with pytest.raises(StartError, match=PAGE):
        load(write(tmp_path, mine=text), "mine")
