"""Spans of a text: its tokens get labels, and neighbours of one label are joined."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from tokenizers import Encoding

from sm.client.base import TensorMetadata, Tensors
from sm.client.payloads import Parameters
from sm.client.results import Table
from sm.client.tasks.task_file import LowerCase, softmax
from sm.client.tasks.text import TaskText, TextTask

Strategy = Literal["none", "simple", "first", "average", "max"]


class SpanOptions(Parameters):
    """How tokens become spans, by transformers' names."""

    aggregation_strategy: LowerCase[Strategy] | None = Field(
        default=None, description="Answer with the rows of transformers' pipeline, joined in this way."
    )
    ignore_labels: tuple[str, ...] = Field(default=("O",), description="Labels that the answer leaves out.")


class LabelledText(TaskText):
    """A text whose tokens get labels."""

    parameters: SpanOptions = Field(default_factory=SpanOptions)


@dataclass
class Span:
    """Neighbouring tokens with one label."""

    label: str
    #: The label's score for each token or word that it was given to.
    scores: list[float]
    #: The places of the tokens.
    places: list[int]

    @property
    def begins(self) -> bool:
        """True if the label says that a span begins here."""
        return self.label.startswith("B-")

    @property
    def kind(self) -> str:
        """The label without ``B-`` and ``I-``."""
        return self.label[2:] if self.label.startswith(("B-", "I-")) else self.label


class TokenClassification(TextTask):
    """``[{"label", "score", "text", "start", "end"}]`` in the text's order; the offsets count characters.

    Neighbouring tokens of one label are one span, as in the strategy ``simple`` of transformers: ``B-``
    begins another one. A span's score is the mean of its tokens'. With ``aggregation_strategy`` the rows are
    those of transformers' pipeline: ``entity_group`` and ``word``, or ``entity``, ``index`` and ``word``.
    """

    payload = LabelledText
    result = Table()

    def setup(self) -> None:
        super().setup()
        model = self.tokenizer.model
        #: True if a prefix tells which token goes on with a word.
        self.has_prefix = bool(getattr(model, "continuing_subword_prefix", None))
        self.unknown = getattr(model, "unk_token", None)

    def find_output(self) -> TensorMetadata:
        return self.find_classes(2)

    def postprocess(self, outputs: Tensors, payload: LabelledText) -> list[dict[str, Any]]:
        encoding, options = payload._encoding, payload.parameters
        assert encoding is not None  # preprocess has set it
        logits, strategy = outputs[self.output.name], options.aggregation_strategy
        rows = logits.reshape(-1, logits.shape[-1])
        scores = softmax(rows[self.padding.own(len(encoding.ids), len(rows))])
        groups = [[place] for place, special in enumerate(encoding.special_tokens_mask) if not special]
        if strategy in ("first", "average", "max"):
            groups = [*self.join_words(groups, encoding, payload.text)]
        spans = [self.find_label(group, scores, strategy) for group in groups]
        if strategy != "none":
            spans = join_spans(spans)
        named = (self.describe(span, encoding, payload) for span in spans)
        return [row for label, row in named if label not in options.ignore_labels]

    def join_words(self, groups: Iterable[list[int]], encoding: Encoding, text: str) -> Iterator[list[int]]:
        """Yield the places of each word's tokens, as transformers tells words apart."""
        word: list[int] = []
        for (place,) in groups:
            start, end = encoding.offsets[place]
            token = encoding.tokens[place]
            if self.has_prefix:
                goes_on = len(token) != end - start
            else:
                goes_on = start > 0 and " " not in text[start - 1 : start + 1]
            if word and (not goes_on or token == self.unknown):
                yield word
                word = []
            word.append(place)
        if word:
            yield word

    def find_label(self, places: list[int], scores: NDArray[np.float64], strategy: Strategy | None) -> Span:
        """Return a token, or a word of several, with its label."""
        own = scores[places]
        row = own[0]
        if strategy == "max":
            row = own[own.max(axis=1).argmax()]
        elif strategy == "average":
            row = own.mean(axis=0)
        best = int(row.argmax())
        return Span(self.labels[best], [float(row[best])], places)

    def describe(self, span: Span, encoding: Encoding, payload: LabelledText) -> tuple[str, dict[str, Any]]:
        """Return a span's label and its row of the answer."""
        start, end = encoding.offsets[span.places[0]][0], encoding.offsets[span.places[-1]][1]
        score, offsets = float(np.mean(span.scores)), {"start": start, "end": end}
        strategy = payload.parameters.aggregation_strategy
        if strategy is None:
            row = {"label": span.kind, "score": score, "text": payload.text[start:end], **offsets}
            return span.kind, row
        words = [self.word_of(place, encoding, payload.text) for place in span.places]
        if strategy == "none":
            row = {"entity": span.label, "score": score, "index": span.places[0], "word": words[0], **offsets}
            return span.label, row
        label, decoder = span.label.split("-", 1)[-1], self.tokenizer.decoder
        word = " ".join(words) if decoder is None else decoder.decode(words)
        return label, {"entity_group": label, "score": score, "word": word, **offsets}

    def word_of(self, place: int, encoding: Encoding, text: str) -> str:
        """Return a token as transformers shows it: one that the tokenizer does not know as it is sent."""
        token: str = encoding.tokens[place]
        return text[slice(*encoding.offsets[place])] if token == self.unknown else token


def join_spans(spans: Sequence[Span]) -> list[Span]:
    """Join neighbours of one kind."""
    joined: list[Span] = []
    for span in spans:
        if joined and joined[-1].kind == span.kind and not span.begins:
            joined[-1].scores += span.scores
            joined[-1].places += span.places
        else:
            joined.append(span)
    return joined
