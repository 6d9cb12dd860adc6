"""Fill-mask: the likeliest words in the place of ``[MASK]``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr

from sm.client import Parameters, TensorClient, Tensors, Text, TextPayload
from sm.errors import WrongPayload
from sm.repository.manifest import Manifest

from .filling import Ids, Scores, Span, combine, fill, likeliest, window
from .form import MASKS, Form
from .words import tokenizer

#: Words of the vocabulary that stand for nothing: [CLS], [unused7].
RESERVED = re.compile(r"\[.+\]")


class Preprocess(BaseModel):
    """``preprocess.json`` beside the model's configuration; how it tells words apart, tokenizer.json says."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    mask_token: str = Field(default="[MASK]", min_length=1)
    #: Word pieces that the model takes at once, the two at the ends included.
    max_length: int = Field(default=512, ge=3)
    #: A text of more characters is refused unread.
    max_characters: int = Field(default=2**15, ge=1)

    @classmethod
    def read(cls, path: Path) -> Preprocess:
        """What the file says; BERT base's own where there is none."""
        return cls.model_validate_json(path.read_bytes()) if path.is_file() else cls()


class Options(Parameters):
    """How many answers, and what becomes of a text that the model cannot take whole."""

    top: int = Field(default=5, ge=1, le=100, description="How many sentences to answer with.")
    truncate: bool = Field(
        default=False,
        description="Let the model read only the part around the masks of a text that is too long for it.",
    )


@dataclass(frozen=True)
class Masked:
    """A text as the model reads it: ids int64 [s], and where the masks are in the ids and in the text."""

    ids: Ids
    places: tuple[int, ...]
    spans: tuple[Span, ...]


class MaskedText(TextPayload):
    """A text with ``[MASK]`` in it, once or more."""

    parameters: Options = Field(default_factory=Options)
    #: What ``preprocess`` read, for ``postprocess``.
    _masked: Masked | None = PrivateAttr(default=None)


class BertBase(TensorClient):
    """Fill-mask: sentences with ``[MASK]`` filled, best first, each with its probability.

    The model is any that takes ``input_ids`` and gives one output of a score for each word.
    """

    model = "bert_base"
    payload = MaskedText
    result = Text(text="token", mark="[MASK]")

    def setup(self) -> None:
        folder = self.repository / self.model
        self.form = Form.of(self.triton.metadata(self.model))
        self.limits = Preprocess.read(folder / "preprocess.json")
        self.tokenizer = tokenizer(folder, self.form.words)
        # What is too long is for this client to say; a tokenizer.json may come with its own idea.
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()
        vocabulary = self.tokenizer.get_vocab()
        self.mask = vocabulary[self.limits.mask_token]
        self.padding = vocabulary.get("[PAD]", 0)
        self.longest = min(self.limits.max_length, self.form.length or self.limits.max_length)
        self.shortest = max(least_length(folder), self.form.length)
        self.barred: Ids = np.array([index for word, index in vocabulary.items() if RESERVED.fullmatch(word)])

    def preprocess(self, payload: MaskedText) -> Tensors:
        payload._masked = masked = self.read(payload)
        length = len(masked.ids)
        ids = np.full(max(length, self.shortest), self.padding, np.int64)
        ids[:length] = masked.ids
        attention = np.zeros_like(ids)
        # Where the attention is 0 the model does not look.
        attention[:length] = 1
        return self.form.tensors(ids, attention)

    def wanted(self, payload: MaskedText) -> tuple[str, ...]:  # noqa: ARG002  # the same for all
        return self.form.outputs

    def postprocess(self, outputs: Tensors, payload: MaskedText) -> list[dict[str, object]]:
        masked, top = payload._masked or self.read(payload), payload.parameters.top
        ids, scores = combine(self.candidates(outputs, masked.places, top), top)
        return [
            {"token": fill(payload.text, masked.spans, self.words(row)), "score": score}
            for row, score in zip(ids.tolist(), np.exp(scores).tolist(), strict=True)
        ]

    def candidates(self, outputs: Tensors, places: Sequence[int], top: int) -> list[tuple[Ids, Scores]]:
        """For each mask, at its place in the text, the best ids [top] and their log probabilities [top]."""
        if self.form.gives_logits:
            (name,) = self.form.outputs
            logits = outputs[name].reshape(-1, outputs[name].shape[-1])
            return [likeliest(logits[place], self.barred, top) for place in places]
        # The rows are the masks' own, and those over are another text's in the batch.
        ids, scores = (outputs[name][: len(places), :top] for name in MASKS)
        return list(zip(ids, scores.astype(np.float64), strict=True))

    def words(self, ids: Sequence[int]) -> list[str]:
        return [self.tokenizer.id_to_token(index) or "" for index in ids]

    def read(self, payload: MaskedText) -> Masked:
        """:class:`~sm.errors.WrongPayload` if there is no mask, or more text than the model takes."""
        if len(payload.text) > self.limits.max_characters:
            raise _wrong(f"has over {self.limits.max_characters:,} characters")
        encoding = self.tokenizer.encode(payload.text)
        ids: Ids = np.array(encoding.ids, np.int64)
        places = tuple(np.flatnonzero(ids == self.mask).tolist())
        if not places:
            raise _wrong(f"has no {self.limits.mask_token} to fill")
        spans = tuple(encoding.offsets[place] for place in places)
        masked = Masked(ids, places, spans)
        return masked if len(ids) <= self.longest else self.shortened(masked, payload)

    def shortened(self, masked: Masked, payload: MaskedText) -> Masked:
        """The part around the masks, between the marks at both ends."""
        if not payload.parameters.truncate:
            raise _wrong(
                f"is {len(masked.ids)} word pieces long, the model takes {self.longest}; "
                "with truncate it reads the part around the masks"
            )
        try:
            part = window(len(masked.ids) - 2, [place - 1 for place in masked.places], self.longest - 2)
        except ValueError as error:
            raise _wrong(f"cannot be truncated: {error}") from None
        ids = np.concatenate((masked.ids[:1], masked.ids[1:-1][part], masked.ids[-1:]))
        return Masked(ids, tuple(place - part.start for place in masked.places), masked.spans)


def least_length(model: Path) -> int:
    """Word pieces that every version of the model takes: a plan may be built for no fewer than so many."""
    manifests = filter(None, map(Manifest.read, (path for path in model.iterdir() if path.is_dir())))
    profiles = (profile for manifest in manifests for profile in manifest.profiles)
    return max((profile.minimum[-1] for profile in profiles if profile.input == "input_ids"), default=1)


def _wrong(what: str) -> WrongPayload:
    return WrongPayload(f"payload.text: {what}", field="payload.text")
