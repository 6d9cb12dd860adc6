"""The weights in a PyTorch file of before 2020, without PyTorch, and without trusting it.

Such a file is a row of pickles (a number, a version, the machine's sizes, the weights' names and places, the
order of the storages) and then the storages. A pickle may call anything: this reader knows tensors alone
and refuses every other name.
"""

from __future__ import annotations

import pickle
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

#: What the first pickle of such a file says.
MAGIC = 0x1950A86A20F9469CFC6C
#: Storage classes, and what their bytes are.
STORAGES = {"FloatStorage": np.dtype("<f4"), "LongStorage": np.dtype("<i8")}


class RefusedFile(ValueError):
    """The file holds no weights, or asks for something that weights have no need of."""


@dataclass(frozen=True)
class Storage:
    """Some of the file's bytes, which come after the tensors that lie in them."""

    dtype: np.dtype[Any]
    key: str


@dataclass(frozen=True)
class Tensor:
    """A view of a storage; offset and strides count elements."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def over(self, flat: Array) -> Array:
        """The values. :class:`RefusedFile` if they would lie beyond the storage."""
        last = self.offset + sum((n - 1) * step for n, step in zip(self.shape, self.strides, strict=True))
        if min((self.offset, *self.shape, *self.strides)) < 0 or last >= flat.size:
            raise RefusedFile(f"a tensor of shape {self.shape} reaches beyond its storage")
        steps = [step * flat.itemsize for step in self.strides]
        return np.lib.stride_tricks.as_strided(flat[self.offset :], self.shape, steps, writeable=False)


def read(file: IO[bytes]) -> dict[str, Array]:
    """The weights by name; :class:`RefusedFile` says what is wrong with the file."""
    try:
        if _Unpickler(file).load() != MAGIC:
            raise RefusedFile("the file is not a PyTorch file of the old kind")
        _version, _machine, tensors, order = (_Unpickler(file).load() for _ in range(4))
    except (pickle.UnpicklingError, EOFError, AttributeError, IndexError, KeyError, TypeError) as error:
        raise RefusedFile(f"the file's pickles are damaged: {error}") from error
    if not tensors or not all(isinstance(tensor, Tensor) for tensor in tensors.values()):
        raise RefusedFile("the file holds other things than weights")
    kinds = {tensor.storage.key: tensor.storage.dtype for tensor in tensors.values()}
    flat = {key: _storage(file, kinds[key]) for key in order}
    return {name: tensor.over(flat[tensor.storage.key]) for name, tensor in tensors.items()}


def _storage(file: IO[bytes], dtype: np.dtype[Any]) -> Array:
    size = int.from_bytes(file.read(8), "little") * dtype.itemsize
    content = file.read(size)
    if len(content) != size:
        raise RefusedFile("the file is truncated")
    return np.frombuffer(content, dtype)


def _tensor(storage: Storage, offset: int, shape: Any, strides: Any, *_rest: Any) -> Tensor:
    return Tensor(storage, offset, tuple(shape), tuple(strides))


#: What a pickle may call: it is bound by name here and nowhere looked up.
KNOWN: dict[tuple[str, str], Callable[..., Any]] = {
    ("torch._utils", "_rebuild_tensor_v2"): _tensor,
    ("collections", "OrderedDict"): OrderedDict,
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str, /) -> Any:
        if (module, name) in KNOWN:
            return KNOWN[module, name]
        if module == "torch" and name in STORAGES:
            return STORAGES[name]
        raise RefusedFile(f"the file's pickle asks for {module}.{name}, which is refused")

    def persistent_load(self, reference: Any, /) -> Storage:
        """``("storage", dtype, key, device, number of elements, None)``."""
        return Storage(reference[1], str(reference[2]))
