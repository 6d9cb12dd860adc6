"""Read ``.npz`` bodies with a sparse matrix, as ``scipy.sparse.save_npz`` writes them.

SciPy comes with the user's code; without it such a body is rejected. Its ``load_npz`` is not used: it unpacks
an archive of any size, and accepts indices outside of the matrix.
"""

from __future__ import annotations

import importlib
import io
import zipfile
import zlib
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sm.client.decode_budget import DECODED
from sm.client.npy import read_npy
from sm.errors import BadInput, TooLarge, UnsupportedType

NPZ = "application/x-npz"
#: Members of an archive; a sparse matrix has five or six.
MAX_MEMBERS = 16
#: Bytes of the unpacked members, unless the worker's decode budget is smaller.
MAX_UNPACKED_BYTES = 2**29
#: The signature of each entry in an archive's central directory.
MEMBER_SIGNATURE = b"PK\x01\x02"
#: The arrays of each sparse format, in the order of the arguments of SciPy's class.
ARRAY_NAMES = {
    "csr": ("data", "indices", "indptr"),
    "csc": ("data", "indices", "indptr"),
    "bsr": ("data", "indices", "indptr"),
    "coo": ("data", "row", "col"),
    "dia": ("data", "offsets"),
}
NOT_SPARSE = BadInput("the body is not a sparse matrix as scipy.sparse.save_npz writes it")


def read_sparse(body: bytes) -> Any:
    """Return the matrix as an object of SciPy.

    Raises:
        BadInput: The body holds no sparse matrix.
        TooLarge: It unpacks to more than is allowed.
        UnsupportedType: SciPy is not installed.
    """
    sparse = _scipy_sparse()
    if body.count(MEMBER_SIGNATURE) > MAX_MEMBERS:
        raise BadInput(f"the body is an archive of more than {MAX_MEMBERS} members")
    try:
        with zipfile.ZipFile(io.BytesIO(body)) as archive:
            size = sum(member.file_size for member in archive.infolist())
            if size > MAX_UNPACKED_BYTES:
                raise TooLarge(
                    f"the archive unpacks to {size / 2**20:,.0f} MiB; "
                    f"at most {MAX_UNPACKED_BYTES / 2**20:,.0f} MiB are accepted"
                )
            # Each member is in memory twice for a moment.
            with DECODED.reserve(2 * size):
                arrays = {
                    member.filename.removesuffix(".npy"): read_npy(archive.read(member))
                    for member in archive.infolist()
                }
                return _matrix(sparse, arrays)
    except (BadInput, TooLarge):
        raise
    except (
        zipfile.BadZipFile,
        zlib.error,
        ValueError,
        TypeError,
        KeyError,
        IndexError,
        OverflowError,
        NotImplementedError,
        RuntimeError,
        EOFError,
    ):
        raise NOT_SPARSE from None


def _matrix(sparse: ModuleType, arrays: dict[str, NDArray[Any]]) -> Any:
    value = arrays["format"].item()
    format_name = value.decode("ascii") if isinstance(value, bytes) else str(value)
    parts = [arrays[name] for name in ARRAY_NAMES[format_name]]
    rows, columns = (int(size) for size in arrays["shape"])
    matrix_class = getattr(sparse, f"{format_name}_{'array' if '_is_array' in arrays else 'matrix'}")
    if format_name == "coo":
        parts = [parts[0], (parts[1], parts[2])]  # type: ignore[list-item]
    if not all(np.issubdtype(part.dtype, np.integer) for part in index_arrays(arrays)):
        raise NOT_SPARSE
    matrix = matrix_class(tuple(parts), shape=(rows, columns))
    if format_name in ("csr", "csc", "bsr"):
        # SciPy would follow an index outside of the matrix into other memory.
        matrix.check_format(full_check=True)
    return matrix


def index_arrays(arrays: dict[str, NDArray[Any]]) -> list[NDArray[Any]]:
    return [arrays[name] for name in ("indices", "indptr", "row", "col", "offsets") if name in arrays]


def _scipy_sparse() -> ModuleType:
    try:
        return importlib.import_module("scipy.sparse")
    except ImportError:
        raise UnsupportedType(
            f"{NPZ} can be read where SciPy is installed, and it is not: "
            "the archive's code/requirements.txt has to name it"
        ) from None
