"""The default functions of AWS's containers, for those that a script does not define.

The model's class decides: a torch module gets the defaults of the PyTorch container, models of scikit-learn
and XGBoost those of their containers, and any other model those of the plain toolkit. The libraries come with
the user's model, not with the box.
"""

from __future__ import annotations

import csv
import importlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.lib.recfunctions import structured_to_unstructured

from sm.errors import BadInput, ClientFailed, StartError
from sm.plugins.toolkit import codecs, libsvm, recordio

#: Suffixes of TorchScript files, and the name that is preferred if there are several.
TORCH_SUFFIXES = (".pt", ".pth")
TORCH_FILE = "model.pt"
#: Characters of a CSV in which XGBoost's container searches for the delimiter.
SNIFFED_CHARACTERS = 512


class Defaults:
    """The plain toolkit's defaults: arrays in, ``model.predict`` or a call of the model, arrays out."""

    def decode(self, body: str | bytes, content_type: str, _model: Any) -> Any:
        return codecs.decode(body, content_type)

    def predict(self, data: Any, model: Any) -> Any:
        call = getattr(model, "predict", model)
        if not callable(call):
            raise ClientFailed(
                f"the script has no predict_fn, and its model ({type(model).__name__}) cannot be called"
            )
        return call(data)

    def encode(self, prediction: Any, accept: str) -> str | bytes:
        return codecs.encode(prediction, accept)


class PyTorchDefaults(Defaults):
    """Tensors, on the GPU if there is one, without gradients."""

    def decode(self, body: str | bytes, content_type: str, _model: Any) -> Any:
        """Return a tensor: float32 from text, the array's own type from ``.npy``."""
        torch = import_torch()
        array = codecs.decode(body, content_type)
        if not isinstance(array, np.ndarray):
            # A JSON object or a sparse matrix, which a tensor cannot hold.
            return array
        try:
            if content_type == codecs.NPY:
                tensor = torch.from_numpy(array)
            else:
                tensor = torch.from_numpy(to_plain_array(array).astype(np.float32))
        except (TypeError, ValueError):
            raise BadInput(
                f"the body has values ({array.dtype}) that cannot be in a tensor: numbers are expected"
            ) from None
        return tensor.to(device(torch))

    def predict(self, data: Any, model: Any) -> Any:
        if not callable(getattr(model, "to", None)):
            return super().predict(data, model)
        torch = import_torch()
        with torch.no_grad():
            model = model.to(device(torch))
            model.eval()
            return model(data.to(device(torch)) if hasattr(data, "to") else data)

    def encode(self, prediction: Any, accept: str) -> str | bytes:
        if isinstance(prediction, import_torch().Tensor):
            prediction = prediction.detach().cpu().tolist()
        return codecs.encode(prediction, accept)


class ScikitLearnDefaults(Defaults):
    """Rows of float32 from text, and ``model.predict``."""

    def decode(self, body: str | bytes, content_type: str, model: Any) -> Any:
        if content_type in libsvm.TYPES:
            columns = getattr(model, "n_features_in_", 0)
            return libsvm.read(codecs.to_text(body)).dense(columns if isinstance(columns, int) else 0)
        array = codecs.decode(body, content_type)
        if not isinstance(array, np.ndarray):
            return array
        if content_type != codecs.NPY:
            try:
                array = to_plain_array(array).astype(np.float32)
            except (TypeError, ValueError):
                # Strings, which a pipeline with a vectorizer accepts.
                return array
        return array.reshape(1, -1) if array.ndim == 1 else array


class XGBoostDefaults(Defaults):
    """A ``DMatrix`` from CSV or LibSVM, and ``Booster.predict``."""

    def decode(self, body: str | bytes, content_type: str, _model: Any) -> Any:
        if content_type == codecs.CSV:
            return csv_to_dmatrix(body)
        if content_type in libsvm.TYPES:
            return libsvm_to_dmatrix(body)
        if content_type == recordio.RECORDIO:
            return recordio_protobuf_to_dmatrix(body)
        array = codecs.decode(body, content_type)
        if isinstance(array, dict):
            raise BadInput("the body is a JSON object: XGBoost takes rows of numbers")
        return dmatrix(array)

    def predict(self, data: Any, model: Any) -> Any:
        return model.predict(data, validate_features=False)


def choose_defaults(model: Any, script: ModuleType | None = None) -> Defaults:
    """Choose the defaults by the model's class, or by the script's imports if no library is recognised."""
    classes = {f"{kind.__module__}.{kind.__name__}" for kind in type(model).__mro__}
    libraries = {name.partition(".")[0] for name in classes}
    if "torch.nn.modules.module.Module" in classes:
        return PyTorchDefaults()
    if "xgboost.core.Booster" in classes:
        return XGBoostDefaults()
    if libraries & {"sklearn", "xgboost"}:
        return ScikitLearnDefaults()
    imported = set(_imported_libraries(script)) if script else set()
    # Scripts for the Hugging Face container import both, and expect JSON objects instead of tensors.
    if "torch" in imported and "transformers" not in imported:
        return PyTorchDefaults()
    return Defaults()


def load_torchscript(folder: Path) -> Any:
    """Load the TorchScript model in ``model.pt``, or in the only file of its kind: the default ``model_fn``.

    Raises :class:`StartError` if there is none, or if torch is missing.
    """
    names = sorted(path.name for path in folder.glob("*") if path.suffix in TORCH_SUFFIXES and path.is_file())
    if not names:
        raise StartError(
            "it has no model_fn, and the default for one needs a TorchScript model: "
            f"there is no {TORCH_FILE} and no other .pt or .pth file in {folder}."
        )
    if TORCH_FILE not in names and len(names) > 1:
        raise StartError(
            f"it has no model_fn, and the default for one takes {TORCH_FILE} or the only .pt or .pth file: "
            f"there are {', '.join(names)}."
        )
    path = folder / (TORCH_FILE if TORCH_FILE in names else names[0])
    try:
        torch = import_torch()
    except ImportError:
        raise StartError(
            f"it has no model_fn, and torch, which would load {path.name}, is not installed: name it in "
            "code/requirements.txt and set TRIREME_INSTALL_REQUIREMENTS=true, or build an image that has it."
        ) from None
    target = device(torch)
    try:
        return torch.jit.load(str(path), map_location=target).to(target)
    except (RuntimeError, ValueError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise StartError(
            f"it has no model_fn, and {path.name} is not a TorchScript model "
            f"as torch.jit.save writes it: {reason}"
        ) from error


def import_torch() -> Any:
    return importlib.import_module("torch")


def device(torch: Any) -> Any:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def to_plain_array(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Convert records to rows and columns: NumPy creates records from a CSV with integers and floats."""
    if array.dtype.names is None:
        return array
    table: np.ndarray[Any, Any] = structured_to_unstructured(array, dtype=np.float64)
    return table


def csv_to_dmatrix(body: str | bytes) -> Any:
    """Parse rows of numbers with any delimiter; an empty cell is a missing value."""
    text = codecs.to_text(body).strip("\r\n")
    if not text.strip():
        raise BadInput("the body has no line of CSV")
    lines = text.splitlines()
    try:
        delimiter = csv.Sniffer().sniff(lines[0][:SNIFFED_CHARACTERS]).delimiter
    except csv.Error:
        delimiter = ","
    delimiter = "," if delimiter.isalnum() or delimiter in ".-+" else delimiter
    try:
        rows = [[float(cell) if cell.strip() else np.nan for cell in line.split(delimiter)] for line in lines]
    except ValueError as error:
        raise BadInput(f"the body is not CSV of numbers: {str(error)[:100]}") from None
    if len(set(map(len, rows))) > 1:
        raise BadInput("the lines of the body differ in their number of cells")
    return dmatrix(np.array(rows))


def libsvm_to_dmatrix(body: str | bytes) -> Any:
    """Parse LibSVM. Values that are not written are missing, and indices are columns, as in XGBoost's
    training.
    """
    return _sparse_dmatrix(libsvm.read(codecs.to_text(body)))


def recordio_protobuf_to_dmatrix(body: str | bytes) -> Any:
    """Parse rows of SageMaker's protobuf records."""
    return _sparse_dmatrix(recordio.read(body.encode() if isinstance(body, str) else body))


def _sparse_dmatrix(rows: libsvm.Rows) -> Any:
    columns = int(rows.indices.max()) + 1 if len(rows.indices) else 0
    sparse = importlib.import_module("scipy.sparse")
    matrix = sparse.csr_matrix((rows.values, rows.indices, rows.starts), shape=(rows.count, columns))
    return dmatrix(matrix)


def dmatrix(rows: Any) -> Any:
    """Create a ``DMatrix`` from rows of numbers. Raises :class:`BadInput`."""
    xgboost = importlib.import_module("xgboost")
    try:
        if isinstance(rows, np.ndarray):
            rows = to_plain_array(rows).astype(np.float64)
            rows = rows.reshape(1, -1) if rows.ndim == 1 else rows
        return xgboost.DMatrix(rows)
    except (TypeError, ValueError, xgboost.core.XGBoostError) as error:
        raise BadInput(f"the body is not a table of numbers: {str(error).strip()[:100]}") from None


def _imported_libraries(script: ModuleType) -> Iterator[str]:
    """Yield the libraries that a script imports, in whole or in part."""
    for value in vars(script).values():
        # Compare types only: another object may define ``__getattr__`` with side effects.
        if type(value) is ModuleType:
            yield value.__name__.partition(".")[0]
        elif isinstance(value, type):
            yield str(value.__module__).partition(".")[0]
