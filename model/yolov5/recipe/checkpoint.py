"""A PyTorch checkpoint without PyTorch, and without trusting it.

A ``.pt`` file is a zip with a pickle, and a pickle may call anything. This reader knows tensors and
inert stand-ins for the modules around them; every other name is refused.
"""

from __future__ import annotations

import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

#: Storage classes and what their bytes are.
STORAGES = {
    "HalfStorage": np.dtype("<f2"),
    "FloatStorage": np.dtype("<f4"),
    "DoubleStorage": np.dtype("<f8"),
    "LongStorage": np.dtype("<i8"),
}
#: Packages whose classes are replaced by inert ones of the same name.
MODULES = ("torch.nn.modules.", "models.")
#: The NumPy scalar that holds the training's best score: read past, never rebuilt.
SCALAR = {
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("_codecs", "encode"),
}


class RefusedCheckpoint(ValueError):
    """The file is not a checkpoint, or asks for something that a checkpoint has no need of."""


class Inert:
    """Stands for any object: keeps its state and does nothing."""

    state: dict[str, Any]

    def __new__(cls, *_arguments: object) -> Inert:
        inert = super().__new__(cls)
        inert.state = {}
        return inert

    def __setstate__(self, state: Any) -> None:
        self.state = state if isinstance(state, dict) else {}


@dataclass(frozen=True)
class Checkpoint:
    """``tensors`` by their names in the state dict, halves widened to float32."""

    tensors: dict[str, Array]
    #: The labels, in the order of their class ids.
    labels: tuple[str, ...]
    #: What batch normalisation adds to the variance.
    epsilon: float


def read(file: IO[bytes]) -> Checkpoint:
    """Read a YOLOv5 checkpoint; :class:`RefusedCheckpoint` names what is wrong with it."""
    content = _unpickle(file)
    model = content.get("model") if isinstance(content, dict) else None
    if not isinstance(model, Inert):
        raise RefusedCheckpoint("the checkpoint holds no model")
    modules = dict(_walk(model, ""))
    epsilons = {module.state["eps"] for module in modules.values() if "eps" in module.state}
    if len(epsilons) != 1:
        raise RefusedCheckpoint(f"the batch normalisations differ in epsilon: {sorted(epsilons)}")
    tensors = {
        f"{path}{name}": _widened(tensor)
        for path, module in modules.items()
        for kind in ("_parameters", "_buffers")
        for name, tensor in module.state.get(kind, {}).items()
        if tensor is not None
    }
    return Checkpoint(tensors, tuple(model.state["names"]), epsilons.pop())


def _walk(module: Inert, path: str) -> Iterator[tuple[str, Inert]]:
    yield path, module
    for name, child in module.state.get("_modules", {}).items():
        yield from _walk(child, f"{path}{name}.")


def _widened(tensor: Array) -> Array:
    return tensor.astype(np.float32) if tensor.dtype == np.float16 else tensor


def _unpickle(file: IO[bytes]) -> Any:
    try:
        with zipfile.ZipFile(file) as archive:
            name = next(name for name in archive.namelist() if name.endswith("/data.pkl"))
            folder = name.removesuffix("data.pkl")
            with archive.open(name) as content:
                return _Unpickler(content, lambda key: archive.read(f"{folder}data/{key}")).load()
    except (zipfile.BadZipFile, StopIteration):
        raise RefusedCheckpoint("the file is not a checkpoint: a zip with a data.pkl") from None
    except (pickle.UnpicklingError, EOFError, AttributeError, IndexError, KeyError, TypeError) as error:
        raise RefusedCheckpoint(f"the checkpoint's pickle is damaged: {error}") from error


class _Unpickler(pickle.Unpickler):
    """``storage`` gives the bytes of a storage by its key."""

    def __init__(self, content: IO[bytes], storage: Callable[[str], bytes]) -> None:
        super().__init__(content)
        self.storage = storage

    def find_class(self, module: str, name: str, /) -> Any:
        if (module, name) in REBUILT:
            return REBUILT[module, name]
        if module == "torch" and name in STORAGES:
            return STORAGES[name]
        if module.startswith(MODULES) or (module, name) in SCALAR:
            return type(name, (Inert,), {})
        raise RefusedCheckpoint(f"the checkpoint's pickle asks for {module}.{name}, which is refused")

    def persistent_load(self, reference: Any, /) -> Array:
        """``("storage", dtype, key, device, number of elements)`` to a flat array."""
        _kind, dtype, key, _device, _count = reference
        return np.frombuffer(self.storage(key), dtype=dtype)


def _tensor(storage: Array, offset: int, shape: Sequence[int], strides: Sequence[int], *_rest: Any) -> Array:
    """A tensor over ``storage``; ``offset`` and ``strides`` count elements."""
    last = offset + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    if min((offset, *shape, *strides)) < 0 or (0 not in shape and last >= storage.size):
        raise RefusedCheckpoint(f"a tensor of shape {tuple(shape)} reaches beyond its storage")
    steps = [stride * storage.itemsize for stride in strides]
    return np.lib.stride_tricks.as_strided(storage[offset:], shape, steps, writeable=False)


def _parameter(data: Array, *_rest: Any) -> Array:
    return data


#: What a pickle may call: it is bound by name here and nowhere looked up.
REBUILT: dict[tuple[str, str], Callable[..., Any]] = {
    ("torch._utils", "_rebuild_tensor_v2"): _tensor,
    ("torch._utils", "_rebuild_parameter"): _parameter,
    ("collections", "OrderedDict"): OrderedDict,
    ("__builtin__", "set"): set,
}
