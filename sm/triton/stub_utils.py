"""``triton_python_backend_utils`` for models of the wheel's Triton on NumPy 2.

The wheel's stubs are compiled for NumPy 1 and read an item's size where NumPy 2 keeps flags. Without an
error, every tensor read with ``as_numpy`` is its first element repeated, and every tensor made from an array
is empty. This module passes numbers through DLPack instead, whose layout is the same on both sides. Strings
cannot be passed at all, so they raise an error here.

This file is linked into the backend folder in place of the original, which lies beside it. On NumPy 1 it
changes nothing. It runs in the models' processes, so it imports nothing of the box.
"""

from __future__ import annotations

import ctypes
import importlib
import sys
from types import ModuleType
from typing import Any

import numpy as np

REMEDY = f"with NumPy {np.__version__}; it can with numpy<2"
#: DLPack's name for a capsule whose tensor was consumed.
USED_CAPSULE = ctypes.c_char_p(b"used_dltensor")
ORIGINAL = "triton_original_backend_utils"


class Utils(ModuleType):
    """The module into which the stub puts its compiled classes; ``Tensor`` is corrected when it is set."""

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, correct_tensor_class(value) if name == "Tensor" else value)


class WritableMemory:
    """Lets NumPy use an array's memory as writable, and keeps the memory while an array refers to it."""

    def __init__(self, array: Any) -> None:
        self._array = array
        address = array.__array_interface__["data"][0]
        self.__array_interface__ = {**array.__array_interface__, "data": (address, False)}


def correct_tensor_class(tensor: Any) -> Any:
    """Return a class in the place of the compiled ``Tensor``, which passes arrays through DLPack."""
    compiled_as_numpy = tensor.as_numpy

    def as_numpy(self: Any) -> Any:
        array = compiled_as_numpy(self)
        if not array.dtype.hasobject:
            return np.asarray(WritableMemory(np.from_dlpack(self)))
        if array.size and array.flat[0] is LOST:
            raise TypeError(f"Triton's wheel cannot read strings {REMEDY}")
        return array

    class Meta(type(tensor)):  # type: ignore[misc]
        """Makes ``Tensor(name, array)`` create a compiled tensor, which is an instance of ``Tensor``."""

        def __call__(cls, name: str, array: Any) -> Any:
            if array.dtype.kind in "OSU":
                raise TypeError(f"Triton's wheel cannot write strings {REMEDY}")
            capsule = np.require(array, requirements=["C", "W"]).__dlpack__()
            created = tensor.from_dlpack(name, capsule)
            # The stub marks a used capsule with a name of its own, about which NumPy would warn.
            ctypes.pythonapi.PyCapsule_SetName(ctypes.py_object(capsule), USED_CAPSULE)
            return created

        def __instancecheck__(cls, instance: Any) -> bool:
            return isinstance(instance, tensor)

    tensor.as_numpy = as_numpy
    return Meta("Tensor", (tensor,), {})


class LostStrings:
    """Stands for strings that the stub lost. An exception at this point would end the stub's process."""

    def reshape(self, shape: Any) -> Any:
        return np.full(shape, LOST, dtype=object)


def deserialize_lost_strings(_encoded: Any) -> LostStrings:
    """Called by the stub with a tensor of strings, in which every byte is a copy of the first one."""
    return LostStrings()


LOST = object()
original = importlib.import_module(ORIGINAL)
module: Any = sys.modules[__name__]
vars(module).update({name: value for name, value in vars(original).items() if not name.startswith("__")})
if int(np.__version__.partition(".")[0]) >= 2:
    module.__class__ = Utils
    module.deserialize_bytes_tensor = deserialize_lost_strings
