"""The default functions of AWS's containers, for those that a script does not define.

Which container's they are, its model says: PyTorch's for a module of torch, scikit-learn's and XGBoost's for
a model of theirs. For any other model they are the plain toolkit's. None of the libraries is the box's: a
model that is of one has brought it.
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

#: What a TorchScript model's file ends in, and the one that is taken where there are several.
TORCH_SUFFIXES = (".pt", ".pth")
TORCH_FILE = "model.pt"
#: Characters of a CSV in which XGBoost's container looks for the delimiter.
SNIFFED = 512


class Defaults:
    """The plain toolkit's: arrays in, ``model.predict`` or the model called, arrays out."""

    def decode(self, body: str | bytes, content_type: str, _model: Any) -> Any:
        return codecs.decode(body, content_type)

    def predict(self, data: Any, model: Any) -> Any:
        ask = getattr(model, "predict", model)
        if not callable(ask):
            raise ClientFailed(
                f"the script has no predict_fn, and its model ({type(model).__name__}) cannot be called"
            )
        return ask(data)

    def encode(self, prediction: Any, accept: str) -> str | bytes:
        return codecs.encode(prediction, accept)


class PyTorchDefaults(Defaults):
    """Tensors, on the GPU where there is one; no gradients."""

    def decode(self, body: str | bytes, content_type: str, _model: Any) -> Any:
        """A tensor: of 32-bit floats out of text, of the array's own type out of ``.npy``."""
        torch = import_torch()
        array = codecs.decode(body, content_type)
        if not isinstance(array, np.ndarray):
            # An object of JSON, or a sparse matrix, which a tensor cannot be.
            return array
        try:
            if content_type == codecs.NPY:
                tensor = torch.from_numpy(array)
            else:
                tensor = torch.from_numpy(plain(array).astype(np.float32))
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
    """Rows of 32-bit floats out of text, and ``model.predict``."""

    def decode(self, body: str | bytes, content_type: str, model: Any) -> Any:
        if content_type in libsvm.TYPES:
            columns = getattr(model, "n_features_in_", 0)
            return libsvm.read(codecs.text(body)).dense(columns if isinstance(columns, int) else 0)
        array = codecs.decode(body, content_type)
        if not isinstance(array, np.ndarray):
            return array
        if content_type != codecs.NPY:
            try:
                array = plain(array).astype(np.float32)
            except (TypeError, ValueError):
                # Texts, which a pipeline with a vectorizer takes.
                return array
        return array.reshape(1, -1) if array.ndim == 1 else array


class XGBoostDefaults(Defaults):
    """A ``DMatrix`` out of CSV or LibSVM, and ``Booster.predict``."""

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


def defaults_of(model: Any, script: ModuleType | None = None) -> Defaults:
    """The defaults that fit the model, or where it is of no known library the script."""
    classes = {f"{kind.__module__}.{kind.__name__}" for kind in type(model).__mro__}
    libraries = {name.partition(".")[0] for name in classes}
    if "torch.nn.modules.module.Module" in classes:
        return PyTorchDefaults()
    if "xgboost.core.Booster" in classes:
        return XGBoostDefaults()
    if libraries & {"sklearn", "xgboost"}:
        return ScikitLearnDefaults()
    imported = set(_imported(script)) if script else set()
    # Scripts for the Hugging Face container import both, and get JSON objects, not tensors.
    if "torch" in imported and "transformers" not in imported:
        return PyTorchDefaults()
    return Defaults()


def load_torchscript(folder: Path) -> Any:
    """The default ``model_fn``: the TorchScript model in ``model.pt``, or in the one file of its kind.

    Raises :class:`StartError` where there is none, or no torch to load it with.
    """
    found = sorted(path.name for path in folder.glob("*") if path.suffix in TORCH_SUFFIXES and path.is_file())
    if not found:
        raise StartError(
            "it has no model_fn, and the default for one needs a TorchScript model: "
            f"there is no {TORCH_FILE} and no other .pt or .pth file in {folder}."
        )
    if TORCH_FILE not in found and len(found) > 1:
        raise StartError(
            f"it has no model_fn, and the default for one takes {TORCH_FILE} or the only .pt or .pth file: "
            f"there are {', '.join(found)}."
        )
    path = folder / (TORCH_FILE if TORCH_FILE in found else found[0])
    try:
        torch = import_torch()
    except ImportError:
        raise StartError(
            f"it has no model_fn, and torch, which would load {path.name}, is not installed: name it in "
            "code/requirements.txt and set TRIREME_INSTALL_REQUIREMENTS=true, or build an image that has it."
        ) from None
    where = device(torch)
    try:
        return torch.jit.load(str(path), map_location=where).to(where)
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


def plain(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Rows and columns, where NumPy has made records of a CSV with whole numbers beside others."""
    if array.dtype.names is None:
        return array
    table: np.ndarray[Any, Any] = structured_to_unstructured(array, dtype=np.float64)
    return table


def csv_to_dmatrix(body: str | bytes) -> Any:
    """Rows of numbers, with any delimiter; an empty cell is a missing value."""
    text = codecs.text(body).strip("\r\n")
    if not text.strip():
        raise BadInput("the body has no line of CSV")
    lines = text.splitlines()
    try:
        delimiter = csv.Sniffer().sniff(lines[0][:SNIFFED]).delimiter
    except csv.Error:
        delimiter = ","
    delimiter = "," if delimiter.isalnum() or delimiter in ".-+" else delimiter
    try:
        rows = [[float(cell) if cell.strip() else np.nan for cell in line.split(delimiter)] for line in lines]
    except ValueError as error:
        raise BadInput(f"the body is not CSV of numbers: {str(error)[:100]}") from None
    if len(set(map(len, rows))) > 1:
        raise BadInput("the lines of the body have not as many cells each")
    return dmatrix(np.array(rows))


def libsvm_to_dmatrix(body: str | bytes) -> Any:
    """Rows in which what is not written is missing, and indices are the columns: as XGBoost trains on it."""
    return _sparse_dmatrix(libsvm.read(codecs.text(body)))


def recordio_protobuf_to_dmatrix(body: str | bytes) -> Any:
    """Rows of SageMaker's protobuf records."""
    return _sparse_dmatrix(recordio.read(body.encode() if isinstance(body, str) else body))


def _sparse_dmatrix(rows: libsvm.Rows) -> Any:
    columns = int(rows.indices.max()) + 1 if len(rows.indices) else 0
    sparse = importlib.import_module("scipy.sparse")
    matrix = sparse.csr_matrix((rows.values, rows.indices, rows.starts), shape=(rows.count, columns))
    return dmatrix(matrix)


def dmatrix(rows: Any) -> Any:
    xgboost = importlib.import_module("xgboost")
    try:
        if isinstance(rows, np.ndarray):
            rows = plain(rows).astype(np.float64)
            rows = rows.reshape(1, -1) if rows.ndim == 1 else rows
        return xgboost.DMatrix(rows)
    except (TypeError, ValueError, xgboost.core.XGBoostError) as error:
        raise BadInput(f"the body is no table of numbers: {str(error).strip()[:100]}") from None


def _imported(script: ModuleType) -> Iterator[str]:
    """The libraries that a script imports whole, or parts of."""
    for value in vars(script).values():
        # Only what no object of a stranger's answers itself.
        if type(value) is ModuleType:
            yield value.__name__.partition(".")[0]
        elif isinstance(value, type):
            yield str(value.__module__).partition(".")[0]
