"""Clients that read one output of their model, as the files in the model's folder say."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict
from typing_extensions import Self

from sm.client.base import TensorClient, TensorMetadata, Tensors
from sm.client.payloads import read_description
from sm.client.preprocessing import Preprocessing
from sm.client.tensor_roles import ImageInput, find_image
from sm.errors import StartError

log = logging.getLogger(__name__)
#: How scores become probabilities. ``none``: the graph has done it, or they are a regression's. ``auto``:
#: sigmoid for one class, else softmax, as transformers' pipelines do.
Activation = Literal["auto", "softmax", "sigmoid", "none"]
#: How far the sum of a softmax in bf16 may be from 1.
SUM_TOLERANCE = 0.01
#: Rows of an output that are looked at for it, and the least probability that has a logarithm.
DOUBTED, SMALLEST = 4, 1e-38


class ModelOptions(BaseModel):
    """The options in a file of a model's folder. A client adds its own in a subclass."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    #: The name that chooses the client of a model without a client file.
    task: str = ""

    @classmethod
    def read(cls, model: Path, name: str) -> Self:
        """Read the file of this name in a model's folder; without one, return the defaults.

        Raises:
            StartError: A field is wrong; the sentence names it.
        """
        path = model / name
        return read_description(cls, path) if path.is_file() else cls()


class DescribedClient(TensorClient):
    """A client that reads one output of its model, as the files in the model's folder say."""

    #: The options of its file; None if it has no such file.
    options: ClassVar[type[ModelOptions] | None] = None
    options_file: ClassVar[str] = "preprocess.json"
    has_warned = False

    def setup(self) -> None:
        self.home, self.metadata = self.repository / self.model, self.triton.metadata(self.model)
        self.settings: Any = self.options.read(self.home, self.options_file) if self.options else None
        self.labels: tuple[str, ...] = ()
        self.output = self.find_output()

    @abstractmethod
    def find_output(self) -> TensorMetadata:
        """Find the output that the client reads, and read its labels.

        Raises:
            UnsuitableModel: The model does not have it.
        """

    def wanted(self, payload: Any) -> Sequence[str] | None:  # noqa: ARG002  # the same for all
        return (self.output.name,)

    def logits(self, scores: NDArray[np.floating[Any]]) -> NDArray[np.floating[Any]]:
        """Return scores for a softmax; their logarithms if the graph ends in one (``activation`` none)."""
        if self.settings.activation != "none":
            self.doubt(scores)
            return scores
        logarithms: NDArray[np.float64] = np.log(np.maximum(scores.astype(np.float64), SMALLEST))
        return logarithms

    def doubt(self, scores: NDArray[np.floating[Any]]) -> None:
        """Warn once if scores look like probabilities already, so that another softmax would flatten them."""
        is_chosen = self.has_warned or self.settings.activation != "auto"
        # Some rows tell: a text has one for each token.
        if not is_chosen and are_probabilities(scores.reshape(-1, scores.shape[-1])[:DOUBTED]):
            self.has_warned = True
            log.warning(
                "%s: the output %s has probabilities already, and a softmax makes others of them; if the "
                'graph ends in a softmax, set "activation": "none" in %s',
                self.model,
                self.output.name,
                self.options_file,
            )


class PictureClient(DescribedClient):
    """A client whose model takes one picture, which is prepared as ``preprocess.json`` says."""

    def setup(self) -> None:
        super().setup()
        image = find_image(self.metadata)
        self.input, preprocessing = image.name, self.read_preprocessing(image)
        self.decode_size = preprocessing.decode_size
        # A model that takes bytes scales and normalises them in its own graph.
        self.to_tensor = preprocessing.unscaled if image.datatype == "UINT8" else preprocessing

    def read_preprocessing(self, image: ImageInput) -> Any:
        """Read ``preprocess.json``.

        Raises:
            StartError: The file is missing or wrong, or has another size than the model's input.
        """
        path = self.home / "preprocess.json"
        preprocessing = Preprocessing.read(path)
        check_size(*preprocessing.output_size, image, path)
        return preprocessing

    def preprocess(self, payload: Any) -> Tensors:
        """Turn the picture into the model's input, float32 or uint8, such as [3, 224, 224]."""
        pixels = payload.pixels_at_least(*self.decode_size)
        return {self.input: self.to_tensor(pixels, payload.header.upright_size)}


def check_size(height: int, width: int, image: ImageInput, path: Path) -> None:
    """Raise :class:`StartError` if a model's input cannot have the height and width that a file says."""
    if image.height not in (-1, height) or image.width not in (-1, width):
        raise StartError(
            f"{path} has the size {height} by {width}, but the model's input {image.name!r} is "
            f"{image.height} by {image.width}."
        )


def read_lines(path: Path) -> tuple[str, ...]:
    """Read the lines of a file. Raises :class:`StartError`."""
    try:
        return tuple(path.read_text("utf-8-sig").splitlines())
    except (OSError, UnicodeDecodeError) as error:
        raise StartError(f"{path} cannot be read: {error}") from None


def softmax(logits: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
    """Return probabilities along the last axis, in float64."""
    powers = np.exp(logits.astype(np.float64) - logits.max(axis=-1, keepdims=True))
    probabilities: NDArray[np.float64] = powers / powers.sum(axis=-1, keepdims=True)
    return probabilities


def are_probabilities(scores: NDArray[np.floating[Any]]) -> bool:
    """True if the scores of several classes lie in 0..1 and have the sum 1, as a softmax makes them."""
    if scores.shape[-1] < 2 or not scores.size:
        return False
    is_within = bool(scores.min() >= 0 and scores.max() <= 1)
    return is_within and bool(np.allclose(scores.sum(axis=-1, dtype=np.float64), 1, atol=SUM_TOLERANCE))
