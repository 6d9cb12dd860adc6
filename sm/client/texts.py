"""Clients whose model reads the tokens of a text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from tokenizers import Encoding, Tokenizer

from sm.client.base import ModelMetadata, Tensors
from sm.client.described import Activation, DescribedClient, ModelOptions
from sm.client.tensor_roles import UnsuitableModel, format_tensors, record_shape
from sm.errors import StartError, WrongPayload
from sm.repository.manifest import Manifest

#: The names that exporters give to one input. Only the ids are required.
Role = tuple[str, ...]
IDS: Role = ("input_ids",)
ATTENTION: Role = ("attention_mask", "input_mask")
TYPES: Role = ("token_type_ids", "segment_ids")
DTYPES: dict[str, type[np.signedinteger[Any]]] = {"INT64": np.int64, "INT32": np.int32}
Ids = NDArray[np.int64]
#: Usual names of the token that means nothing.
PADDING_TOKENS = ("[PAD]", "<pad>")


@dataclass(frozen=True)
class TextInputs:
    """The inputs of a model of texts by their role."""

    #: The role of each input, by the input's name.
    roles: Mapping[str, Role]
    dtype: type[np.signedinteger[Any]]
    #: Tokens of every text if the model takes one length only; 0: any length.
    length: int

    @classmethod
    def of(cls, model: ModelMetadata) -> TextInputs:
        """Read the inputs of a model.

        Raises:
            UnsuitableModel: It takes something else than a text's tokens.
        """
        known = {name: role for role in (IDS, ATTENTION, TYPES) for name in role}
        roles = {name: known[name] for name in model.inputs if name in known}
        shapes = {record_shape(model, model.inputs[name], 1) for name in roles}
        datatypes = {model.inputs[name].datatype for name in roles}
        if (
            IDS not in roles.values()
            or len(roles) < len(model.inputs)
            or None in shapes
            or len(datatypes) > 1
            or not datatypes <= DTYPES.keys()
        ):
            raise UnsuitableModel(
                f"{model.name!r} takes {format_tensors(model.inputs.values())}: input_ids, and at most "
                "attention_mask and token_type_ids, of one integer type are expected."
            )
        lengths = {shape[0] for shape in shapes if shape} - {-1}
        return cls(roles, DTYPES[datatypes.pop()], max(lengths, default=0))

    def to_tensors(self, ids: Ids, attention: Ids, types: Ids | None = None) -> Tensors:
        """Return the model's inputs; all arrays have the shape of ``ids``. ``types`` are 0 by default."""
        values = {IDS: ids, ATTENTION: attention, TYPES: np.zeros_like(ids) if types is None else types}
        return {name: values[role].astype(self.dtype, copy=False) for name, role in self.roles.items()}


@dataclass(frozen=True)
class Padding:
    """The tokens that fill a row up to the longest of a batch."""

    #: None: no token is known to be padding.
    token: int | None
    type_id: int = 0
    on_left: bool = False

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Padding:
        """Read the padding that ``tokenizer.json`` asks for; without any, look for BERT's and T5's token."""
        found = tokenizer.padding
        if found is not None:
            return cls(found["pad_id"], found["pad_type_id"], found["direction"] == "left")
        known = map(tokenizer.token_to_id, PADDING_TOKENS)
        return cls(next((index for index in known if index is not None), None))

    def own(self, count: int, length: int) -> slice:
        """Return where a text's own tokens are in a padded row."""
        start = length - count if self.on_left else 0
        return slice(start, start + count)


class TextOptions(ModelOptions):
    """The options of every client that reads texts."""

    max_length: int = Field(default=512, ge=3, description="Tokens of a text, special ones included.")
    max_characters: int = Field(default=2**15, ge=1, description="A longer text is not tokenized.")
    truncate: bool = Field(default=False, description="Read the beginning of a text that is too long.")
    activation: Activation = Field(
        default="auto", description="none: the scores are probabilities, as the graph ends in a softmax."
    )


def load_tokenizer(model: Path) -> Tokenizer:
    """Load ``tokenizer.json`` of a model's folder. Nothing else is: no code and no pickle of a repository.

    Raises:
        StartError: The file is missing or damaged.
    """
    path = model / "tokenizer.json"
    if not path.is_file():
        raise StartError(
            f"{path} is missing: save_pretrained() of a fast tokenizer of transformers writes it. A "
            "tokenizer that needs Python code of its repository is not loaded"
        )
    try:
        return Tokenizer.from_str(path.read_text("utf-8-sig"))
    except Exception as error:  # the library raises no narrower class
        raise StartError(f"{path} cannot be read: {error}") from None


def minimum_length(model: Path) -> int:
    """Return the least number of tokens that every version of the model takes.

    A TensorRT plan may be built for a fixed length; its manifest says so.
    """
    manifests = filter(None, map(Manifest.read, (path for path in model.glob("*") if path.is_dir())))
    profiles = (profile for manifest in manifests for profile in manifest.profiles)
    return max((profile.minimum[-1] for profile in profiles if profile.input == "input_ids"), default=1)


class TextClient(DescribedClient):
    """A client whose model reads the tokens of a text."""

    options: ClassVar[type[ModelOptions] | None] = TextOptions

    def setup(self) -> None:
        super().setup()
        self.inputs_of_text = TextInputs.of(self.metadata)
        self.tokenizer = self.load_tokenizer()
        self.padding = Padding.of(self.tokenizer)
        self.cut_end: str = (self.tokenizer.truncation or {}).get("direction", "right")
        # tokenizer.json may ask for both, but the length depends on the records that go together.
        self.tokenizer.no_padding()
        self.tokenizer.no_truncation()
        settings, length = self.settings, self.inputs_of_text.length
        self.max_length = min(settings.max_length, length or settings.max_length)
        self.min_length = max(minimum_length(self.home), length)
        if self.min_length > 1 and self.padding.token is None:
            raise UnsuitableModel(
                f"{self.model!r} takes at least {self.min_length} tokens, and {self.home / 'tokenizer.json'} "
                "does not say which token fills a shorter text: write its padding into that file, as "
                "enable_padding() of a tokenizer does."
            )

    def load_tokenizer(self) -> Tokenizer:
        """Load the tokenizer of the model's folder."""
        return load_tokenizer(self.home)

    def text_of(self, payload: Any) -> str | tuple[str, str]:
        """Return the text of a record, or its pair of texts."""
        text: str = payload.text
        return text

    def texts_of(self, payloads: Sequence[Any]) -> list[str | tuple[str, str]]:
        """Return the texts. Raises :class:`WrongPayload` for one with too many characters."""
        texts, most = [self.text_of(payload) for payload in payloads], self.settings.max_characters
        for text in texts:
            characters = len(text) if isinstance(text, str) else sum(map(len, text))
            if characters > most:
                raise self.wrong_text(f"has over {most:,} characters")
        return texts

    def tokenize(self, payloads: Sequence[Any]) -> list[Encoding]:
        """Tokenize the texts, in parallel. Raises :class:`WrongPayload` for one with too many characters."""
        texts = self.texts_of(payloads)
        encodings: list[Encoding] = self.tokenizer.encode_batch(texts)
        return encodings

    def wrong_text(self, problem: str) -> WrongPayload:
        """Return the error for a text that the model cannot read."""
        return WrongPayload(f"payload.text: {problem}", field="payload.text")

    def pad(self, ids: Sequence[Any], types: Sequence[Sequence[int]] = ()) -> Tensors:
        """Return the model's inputs [records, longest], in which the attention to padding is 0."""
        length, padding = max(self.min_length, *map(len, ids)), self.padding
        padded = np.full((len(ids), length), padding.token or 0, np.int64)
        attention, padded_types = np.zeros_like(padded), np.full_like(padded, padding.type_id)
        for row, record in enumerate(ids):
            own = padding.own(len(record), length)
            padded[row, own], attention[row, own] = record, 1
            padded_types[row, own] = types[row] if types else 0
        return self.inputs_of_text.to_tensors(padded, attention, padded_types)
