"""``triton_python_backend_utils`` for models of the wheel's Triton on NumPy 2.

The wheel's stubs are compiled against NumPy 1 and look for an item's size where NumPy 2 keeps flags: every
tensor read with ``as_numpy`` is its first element repeated, every tensor made from an array is empty, and
no error says so. Numbers go by DLPack here instead, which both sides lay out alike. Strings are lost
between the stub and Python in both directions: that is an error here.

Linked into the backend folder in the original's place, with the original beside it. On NumPy 1 it adds
nothing. It runs in the models' processes, so it imports nothing of the box.
"""

from __future__ import annotations

import ctypes
import importlib
import sys
from types import ModuleType
from typing import Any

import numpy as np

REMEDY = f"with NumPy {np.__version__}; it can with numpy<2"
#: DLPack's name of a capsule whose tensor was consumed.
USED = ctypes.c_char_p(b"used_dltensor")
ORIGINAL = "triton_original_backend_utils"


class Utils(ModuleType):
    """The module into which the stub puts its compiled classes; ``Tensor`` is corrected when it is set."""

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, mended(value) if name == "Tensor" else value)


class Owned:
    """Memory of a tensor that NumPy can adopt: writable, and alive while an array refers to it."""

    def __init__(self, array: Any) -> None:
        self._array = array
        address = array.__array_interface__["data"][0]
        self.__array_interface__ = {**array.__array_interface__, "data": (address, False)}


def mended(tensor: Any) -> Any:
    """Return the compiled ``Tensor``, with its arrays passed through DLPack."""
    compiled_as_numpy = tensor.as_numpy

    def as_numpy(self: Any) -> Any:
        array = compiled_as_numpy(self)
        if not array.dtype.hasobject:
            return np.asarray(Owned(np.from_dlpack(self)))
        if array.size and array.flat[0] is LOST:
            raise TypeError(f"Triton's wheel cannot read strings {REMEDY}")
        return array

    class Meta(type(tensor)):  # type: ignore[misc]
        """``Tensor(name, array)`` creates a compiled one, and each compiled one is an instance of
        ``Tensor``.
        """

        def __call__(cls, name: str, array: Any) -> Any:
            if array.dtype.kind in "OSU":
                raise TypeError(f"Triton's wheel cannot write strings {REMEDY}")
            capsule = np.require(array, requirements=["C", "W"]).__dlpack__()
            created = tensor.from_dlpack(name, capsule)
            # The stub marks the capsule as used with its own name, and NumPy would warn about it.
            ctypes.pythonapi.PyCapsule_SetName(ctypes.py_object(capsule), USED)
            return created

        def __instancecheck__(cls, instance: Any) -> bool:
            return isinstance(instance, tensor)

    tensor.as_numpy = as_numpy
    return Meta("Tensor", (tensor,), {})


class Strings:
    """Stands for strings that the stub lost before Python saw them; an exception here would end the stub."""

    def reshape(self, shape: Any) -> Any:
        return np.full(shape, LOST, dtype=object)


def deserialized(_encoded: Any) -> Strings:
    """The stub calls this with a tensor of strings, in which each byte is already the first one."""
    return Strings()


LOST = object()
original = importlib.import_module(ORIGINAL)
module: Any = sys.modules[__name__]
vars(module).update({name: value for name, value in vars(original).items() if not name.startswith("__")})
if int(np.__version__.partition(".")[0]) >= 2:
    module.__class__ = Utils
    module.deserialize_bytes_tensor = deserialized
