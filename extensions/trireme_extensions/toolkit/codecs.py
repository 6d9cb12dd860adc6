"""The toolkit's codecs: JSON, CSV and NPY to arrays and back; sparse matrices to arrays.

They return what ``sagemaker-inference`` 1.10 returns, down to the dtype and to ``NaN`` in JSON, with two
exceptions: a ``.npy`` body is never unpickled, and a JSON object stays a ``dict``, as in the Hugging Face
container. The toolkit wraps such an object into an array without dimensions.

The toolkit does not support JSON lines, which batch transform sends. They are decoded and encoded like a JSON
list of them.
"""

from __future__ import annotations

import importlib
import io
import json
import zipfile
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sm.client import results
from sm.client.decode_budget import DECODED, bytes_of_marks
from sm.client.payloads import MAX_TEXT_BYTES, array_of, read_npy, write_npy
from sm.errors import BadInput, ClientFailed, NotAcceptable, TooLarge, TriremeError, UnsupportedType
from sm.http.media_types import CANONICAL
from sm.http.messages import CSV, JSON, JSON_LINES, NPY, NPZ, strict_json

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
                    f"at most {MAX_UNPACKED_BYTES / 2**20:,.0f} MiB are accepted: send fewer rows at once"
                )
            # Each member is in memory twice for a moment.
            with DECODED.reserve(2 * size):
                arrays = {
                    member.filename.removesuffix(".npy"): read_npy(archive.read(member))
                    for member in archive.infolist()
                }
                return _matrix(sparse, arrays)
    except TriremeError:
        raise
    except Exception:  # zipfile, zlib, NumPy and SciPy raise anything for a damaged file
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


#: The memory that a body's strings may take as an array, in multiples of the body's size. In NumPy each
#: string takes 4 bytes a character, and as many characters as the longest.
MAX_TEXT_GROWTH = 16
#: Content types whose bodies a script gets as ``str``; others are ``bytes``.
TEXT_TYPES = (JSON, CSV)


def decode_text(body: bytes) -> str:
    """Decode a body as UTF-8. Raises :class:`BadInput`."""
    try:
        return body.decode()
    except UnicodeDecodeError:
        raise BadInput("the body is not UTF-8 text") from None


def to_text(data: str | bytes) -> str:
    """Return a body as ``str``, whether it came as ``str`` or as ``bytes``."""
    return data if isinstance(data, str) else decode_text(data)


def decode(data: str | bytes, content_type: str) -> Any:
    """Decode a body to an array, or to a ``dict`` if it is a JSON object.

    Raises :class:`UnsupportedType` for another content type, and :class:`BadInput` for a body that does not
    match its type.
    """
    decoder = DECODERS.get(CANONICAL.get(content_type, content_type))
    if decoder is None:
        raise UnsupportedType(
            f"the script has no input_fn: {', '.join(DECODERS)} can be read, not {content_type[:100]!r}"
        )
    return decoder(data)


def encode(value: Any, content_type: str) -> str | bytes:
    """Encode an array, or a value that can become one, as ``content_type``.

    Raises :class:`NotAcceptable` for another type, and :class:`ClientFailed` for a value that the type cannot
    express.
    """
    encoder = ENCODERS.get(CANONICAL.get(content_type, content_type))
    if encoder is None:
        raise NotAcceptable(
            f"the script has no output_fn: {', '.join(ENCODERS)} are supported, not {content_type[:100]!r}"
        )
    try:
        return encoder(value)
    except (TypeError, ValueError) as error:
        sentence = f"the prediction cannot be sent as {content_type}"
        if content_type in (JSON, JSON_LINES):
            raise results.error(sentence, "prediction", value, to_json) from error
        raise ClientFailed(f"{sentence}: {error}") from error


def to_json(value: Any) -> str:
    """Encode JSON, including objects with ``tolist``. NaN and infinity become null, as JSON has neither."""
    return strict_json(json.dumps(value, default=_to_list).encode()).decode()


def _decode_json(data: str | bytes) -> Any:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"the body is not JSON: {error}") from None
    return value if isinstance(value, dict) else _to_array(value)


def _decode_json_lines(data: str | bytes) -> Any:
    lines = to_text(data)
    # Bodies that begin with a brace were counted already: they may be JSON that names its model.
    marks = 0 if lines.lstrip().startswith("{") else sum(map(lines.count, ",[{\n"))
    with DECODED.reserve(bytes_of_marks(marks)):
        values = []
        # Do not use splitlines: strings in JSON may contain other line separators.
        for number, line in enumerate(io.StringIO(lines, newline="\n"), 1):
            try:
                values += [json.loads(line)] if line.strip() else []
            except (ValueError, RecursionError) as error:
                raise BadInput(f"line {number} of the body is not JSON: {error}") from None
        if not values:
            raise BadInput("the body has no line")
        return _to_array(values)


def _to_array(value: object) -> Any:
    try:
        return array_of(value)
    except (ValueError, OverflowError):
        raise BadInput(
            "the lists in the body differ in length, or its strings differ too much in length"
        ) from None


def _decode_csv(data: str | bytes) -> Any:
    table = to_text(data)
    # genfromtxt treats everything after a # as a comment.
    lines = [line for row in table.splitlines() if (line := row.partition("#")[0]).strip()]
    if not lines:
        raise BadInput("the body has no line of CSV")
    if _csv_text_bytes(lines) > max(MAX_TEXT_BYTES, MAX_TEXT_GROWTH * len(table)):
        raise BadInput("the body is not CSV: its strings differ too much in length")
    try:
        return np.genfromtxt(io.StringIO(table), dtype=None, delimiter=",", encoding="utf-8")
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        raise BadInput(f"the body is not CSV: {reason}") from None


def _csv_text_bytes(lines: list[str]) -> int:
    """Return the bytes that NumPy takes for the strings of a CSV; 0 if they are few.

    Each string has the size of the longest in its column or, if no column is numeric, of the longest of all.
    """
    cells = sum(line.count(",") + 1 for line in lines)
    if 4 * max(map(len, lines)) * cells <= MAX_TEXT_BYTES:
        return 0
    # If lines differ in length, genfromtxt refuses them before it allocates anything.
    columns = list(zip(*(line.split(",") for line in lines), strict=False))
    widths = [max(map(len, column)) for column in columns if not _is_numeric(column)]
    width_of_row = sum(widths) if len(widths) < len(columns) else max(widths) * len(widths)
    return 4 * width_of_row * len(lines)


def _is_numeric(column: tuple[str, ...]) -> bool:
    return all(_is_number(cell.strip() or "0") for cell in column)


def to_bytes(data: str | bytes) -> bytes:
    """Return a body as ``bytes``, whether it came as ``str`` or as ``bytes``."""
    return data.encode() if isinstance(data, str) else data


def _encode_json_lines(value: Any) -> str:
    """Encode each of several results as a line; a result that is not a list is one line.

    The last line has no line end; batch transform adds it.
    """
    value = value.tolist() if hasattr(value, "tolist") else value
    rows = value if isinstance(value, (list, tuple)) else [value]
    return "\n".join(map(to_json, rows))


def _encode_csv(value: Any) -> str:
    stream = io.StringIO()
    np.savetxt(stream, value, delimiter=",", fmt="%s")
    return stream.getvalue()


def _to_list(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} cannot be sent as JSON")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


DECODERS: dict[str, Callable[[str | bytes], Any]] = {
    JSON: _decode_json,
    CSV: _decode_csv,
    NPY: lambda data: read_npy(to_bytes(data)),
    NPZ: lambda data: read_sparse(to_bytes(data)),
    JSON_LINES: _decode_json_lines,
}
ENCODERS: dict[str, Callable[[Any], str | bytes]] = {
    JSON: to_json,
    CSV: _encode_csv,
    NPY: write_npy,
    JSON_LINES: _encode_json_lines,
}
