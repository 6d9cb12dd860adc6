"""Fill-mask: the most likely words in the place of ``[MASK]``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import AliasChoices, Field, PrivateAttr

from sm.client.base import TensorMetadata, Tensors
from sm.client.described import ModelOptions, softmax
from sm.client.payloads import Parameters, TextPayload
from sm.client.results import Text
from sm.client.tensor_roles import UnsuitableModel, find_output
from sm.client.texts import Ids, TextClient, TextOptions
from sm.errors import WrongPayload

Scores = NDArray[np.float64]
#: The first character of a part of a text, and the one after its last.
Span = tuple[int, int]

#: Marks a word piece that continues the word before it.
CONTINUATION = "##"


def choose_window(length: int, positions: Sequence[int], size: int) -> slice:
    """Choose ``size`` of ``length`` word pieces so that ``positions`` are as near its middle as possible.

    Raises:
        ValueError: The positions are further apart than ``size``.
    """
    if positions[-1] - positions[0] >= size:
        raise ValueError(f"the masks lie further apart than {size} word pieces")
    centred = (positions[0] + positions[-1] + 1 - size) // 2
    start = max(0, min(centred, length - size))
    return slice(start, start + size)


def top_words(logits: NDArray[Any], excluded: Ids, top: int) -> tuple[Ids, Scores]:
    """Return the ``top`` ids of one row of logits [words], best first, and their log probabilities.

    The words in ``excluded`` are never among the ids and have no share of the probability.
    """
    scores = logits.astype(np.float32)
    scores[excluded] = -np.inf
    best = scores.max()
    with np.errstate(over="ignore"):  # a logit far below the best one underflows to probability 0
        # float32 is precise enough for the powers and much faster; only the sum needs float64.
        total = np.exp(scores - best).sum(dtype=np.float64)
    top = min(top, int(np.count_nonzero(scores > -np.inf)))
    # Equal scores keep the order of the ids, so that the answer does not depend on how they were found.
    best_ids = np.flatnonzero(scores >= np.partition(scores, -top)[-top])
    best_ids = best_ids[np.argsort(-scores[best_ids], kind="stable")][:top]
    return best_ids, scores[best_ids].astype(np.float64) - np.float64(best) - np.log(total)


def combine(candidates: Sequence[tuple[Ids, Scores]], top: int) -> tuple[Ids, Scores]:
    """Choose one candidate for every mask: the ``top`` best choices, ids [n, masks] and scores [n].

    The masks count as independent: the score of a choice is the sum of its log probabilities. A best
    choice for all masks begins with a best choice for the first ones, so ``top`` partial choices are enough.
    """
    if len(candidates) == 1:
        ids, scores = candidates[0]
        return ids[:top, None], scores[:top]
    choices, totals = np.empty((1, 0), np.int64), np.zeros(1)
    for ids, scores in candidates:
        sums = (totals[:, None] + scores).ravel()
        order = np.argsort(-sums, kind="stable")[:top]
        previous, last = np.divmod(order, len(ids))
        choices = np.column_stack((choices[previous], ids[last]))
        totals = sums[order]
    return choices, totals


def fill(text: str, spans: Sequence[Span], words: Iterable[str | None]) -> str:
    """Replace each span of ``text`` by a word, or by nothing; everything else stays as it is.

    A word piece that continues a word (``##ing``) joins the text before it without a space.
    """
    filled, end_of_last = "", 0
    for (start, end), found in zip(spans, words, strict=True):
        word = found or ""
        filled += text[end_of_last:start]
        if word.startswith(CONTINUATION):
            word = word.removeprefix(CONTINUATION)
            if text[:start].strip():
                filled = filled.rstrip(" ")
        filled += word
        end_of_last = end
    return filled + text[end_of_last:]


#: The outputs of a graph built with ``--masks``: the best words of each mask, their log probabilities.
MASK_OUTPUTS = ("word_ids", "word_scores")

#: Entries of the vocabulary that are not words: [CLS], [unused7]. They are never an answer.
RESERVED = re.compile(r"\[.+\]")


class MaskOptions(TextOptions):
    """The options of a model whose masks are filled."""

    mask_token: str = Field(default="[MASK]", min_length=1)


class Options(Parameters):
    """How many sentences to answer with, and whether a text that is too long is truncated."""

    top: int = Field(
        default=5,
        ge=1,
        le=100,
        validation_alias=AliasChoices("top", "top_k"),
        description="How many sentences to answer with.",
    )
    truncate: bool = Field(
        default=False,
        description="If the text is too long for the model, read only the part around the masks.",
    )
    max_input_tokens: int | None = Field(
        default=None,
        ge=1,
        le=2**20,
        description="Tokens to read at most, special ones included: the end of the text is cut off.",
    )
    separate: bool = Field(
        default=False,
        description="Answer with the rows of transformers' pipeline, which fills each mask by itself.",
    )
    targets: tuple[str, ...] | None = Field(
        default=None, min_length=1, max_length=1000, description="With separate, the words that are scored."
    )


@dataclass(frozen=True)
class TokenizedText:
    """A text as the model reads it."""

    #: Word pieces, int64 [s].
    ids: Ids
    #: Where the masks are among the ids.
    positions: tuple[int, ...]
    #: Where the masks are in the text.
    spans: tuple[Span, ...]


class MaskedText(TextPayload):
    """A text with at least one ``[MASK]``."""

    parameters: Options = Field(default_factory=Options)
    #: Set by ``preprocess``, so that ``postprocess`` does not tokenize again.
    _tokenized: TokenizedText | None = PrivateAttr(default=None)


class MaskClient(TextClient):
    """Fill-mask: sentences with ``[MASK]`` filled, best first, each with its probability.

    Serves any model that takes ``input_ids`` and has one output with a score for each word.
    """

    options: ClassVar[type[ModelOptions] | None] = MaskOptions
    payload = MaskedText
    result = Text(text="token", mark="[MASK]")

    def setup(self) -> None:
        super().setup()
        vocabulary, token = self.tokenizer.get_vocab(), self.settings.mask_token
        if token not in vocabulary:
            raise UnsuitableModel(f"the tokenizer of {self.model!r} has no token {token}.")
        self.mask_id = vocabulary[token]
        reserved = [index for word, index in vocabulary.items() if RESERVED.fullmatch(word)]
        self.excluded: Ids = np.array(reserved)

    def find_output(self) -> TensorMetadata:
        outputs = self.metadata.outputs
        self.gives_logits = not outputs.keys() >= set(MASK_OUTPUTS)
        if self.gives_logits:
            return find_output(self.metadata, 2, ("logits", "output"))
        return outputs[MASK_OUTPUTS[0]]

    def takes_batches(self) -> bool:
        return False  # Triton batches texts of equal length

    def preprocess(self, payload: MaskedText) -> Tensors:
        payload._tokenized = tokenized = self.find_masks(payload)
        return {name: rows[0] for name, rows in self.pad([tokenized.ids]).items()}

    def wanted(self, payload: MaskedText) -> tuple[str, ...]:  # noqa: ARG002  # the same for all
        return (self.output.name,) if self.gives_logits else MASK_OUTPUTS

    def postprocess(self, outputs: Tensors, payload: MaskedText) -> list[Any]:
        tokenized, top = payload._tokenized or self.find_masks(payload), payload.parameters.top
        if payload.parameters.separate:
            return self.fill_each(outputs, tokenized, payload.parameters)
        ids, scores = combine(self.find_candidates(outputs, tokenized, top), top)
        to_word, rows = self.tokenizer.id_to_token, []
        for row, score in zip(ids.tolist(), np.exp(scores).tolist(), strict=True):
            rows.append({"token": fill(payload.text, tokenized.spans, map(to_word, row)), "score": score})
        return rows

    def find_candidates(
        self, outputs: Tensors, tokenized: TokenizedText, top: int
    ) -> list[tuple[Ids, Scores]]:
        """Return the best ids [top] and their log probabilities [top] for each mask, in the text's order."""
        positions = tokenized.positions
        if self.gives_logits:
            logits = self.own_logits(outputs, tokenized)
            return [top_words(logits[position], self.excluded, top) for position in positions]
        # One row per mask; a longer text in the same batch may have added rows.
        ids, scores = (outputs[name][: len(positions), :top] for name in MASK_OUTPUTS)
        return list(zip(ids, scores.astype(np.float64), strict=True))

    def fill_each(self, outputs: Tensors, tokenized: TokenizedText, options: Options) -> list[Any]:
        """Return transformers' rows of one mask, or a list of them for each of several."""
        positions, targets, filled = tokenized.positions, self.find_targets(options.targets), []
        decode = self.tokenizer.decode
        for number, position in enumerate(positions):
            if self.gives_logits:
                scores = softmax(self.own_logits(outputs, tokenized)[position])
                asked = np.arange(len(scores)) if targets is None else targets
                ids = asked[np.argsort(-scores[asked], kind="stable")[: options.top]]
                found = zip(ids.tolist(), scores[ids].tolist(), strict=True)
            else:
                best, logarithms = (outputs[name][number, : options.top] for name in MASK_OUTPUTS)
                found = zip(best.tolist(), np.exp(logarithms.astype(np.float64)).tolist(), strict=True)
            rows = []
            for word, score in found:
                ids = tokenized.ids.copy()
                ids[position] = word
                row = {"score": score, "token": word, "token_str": decode([word], skip_special_tokens=False)}
                rows.append(
                    {**row, "sequence": decode(ids.tolist(), skip_special_tokens=len(positions) == 1)}
                )
            filled.append(rows)
        return filled[0] if len(filled) == 1 else filled

    def find_targets(self, targets: Sequence[str] | None) -> Ids | None:
        """Return the tokens of words, of each the first; None without any.

        Raises:
            WrongPayload: The graph does not score all words, or no word has a token.
        """
        if targets is None:
            return None
        if not self.gives_logits:
            raise WrongPayload(
                "parameters.targets: this model's graph gives the best words only", field="parameters.targets"
            )
        found = set()
        for word in targets:
            token = self.tokenizer.token_to_id(word)
            ids = [token] if token is not None else self.tokenizer.encode(word, add_special_tokens=False).ids
            found.update(ids[:1])
        if not found:
            raise WrongPayload("parameters.targets: has no word of the model", field="parameters.targets")
        return np.array(sorted(found))

    def own_logits(self, outputs: Tensors, tokenized: TokenizedText) -> NDArray[Any]:
        """Return the logits of a text's own tokens [tokens, words]."""
        logits = outputs[self.output.name]
        logits = self.logits(logits.reshape(-1, logits.shape[-1]))
        own: NDArray[Any] = logits[self.padding.own(len(tokenized.ids), len(logits))]
        return own

    def find_masks(self, payload: MaskedText) -> TokenizedText:
        """Tokenize the text and find its masks.

        Raises:
            WrongPayload: The text has no mask, or is longer than the model takes.
        """
        (encoding,) = self.tokenize([payload])
        ids: Ids = np.array(encoding.ids, np.int64)
        most = payload.parameters.max_input_tokens
        if most and len(ids) > min(most, self.max_length):  # before the token that ends it
            ids = np.concatenate((ids[: min(most, self.max_length) - 1], ids[-1:]))
        positions = tuple(np.flatnonzero(ids == self.mask_id).tolist())
        if not positions:
            raise self.wrong_text(f"has no {self.settings.mask_token} to fill")
        spans = tuple(map(encoding.offsets.__getitem__, positions))  # each look makes the whole list
        tokenized = TokenizedText(ids, positions, spans)
        return tokenized if len(ids) <= self.max_length else self.truncate(tokenized, payload)

    def truncate(self, tokenized: TokenizedText, payload: MaskedText) -> TokenizedText:
        """Keep the part around the masks, between [CLS] and [SEP], if the request allows it."""
        if not payload.parameters.truncate:
            raise self.wrong_text(
                f"is {len(tokenized.ids)} word pieces long, the model takes {self.max_length}; "
                "with truncate it reads the part around the masks"
            )
        first, inner, last = np.split(tokenized.ids, (1, len(tokenized.ids) - 1))
        try:
            window = choose_window(
                len(inner), [position - 1 for position in tokenized.positions], self.max_length - 2
            )
        except ValueError as error:
            raise self.wrong_text(f"cannot be truncated: {error}") from None
        ids = np.concatenate((first, inner[window], last))
        positions = tuple(position - window.start for position in tokenized.positions)
        return TokenizedText(ids, positions, tokenized.spans)
