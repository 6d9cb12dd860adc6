"""Spans of a text: its tokens get labels, and neighbours of one label are joined."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, PrivateAttr

from sm.client.base import TensorMetadata, Tensors
from sm.client.described import softmax
from sm.client.payloads import Parameters
from sm.client.results import Table
from sm.client.texts import Ids
from sm.errors import WrongPayload
from trireme_extensions.tasks.task_file import LowerCase
from trireme_extensions.tasks.text import TaskText
from trireme_extensions.tasks.windows import TokenTable, WindowedTask, slide

Strategy = Literal["none", "simple", "first", "average", "max"]


class SpanOptions(Parameters):
    """How tokens become spans, by transformers' names."""

    aggregation_strategy: LowerCase[Strategy] | None = Field(
        default=None, description="Answer with the rows of transformers' pipeline, joined in this way."
    )
    ignore_labels: tuple[str, ...] = Field(default=("O",), description="Labels that the answer leaves out.")
    stride: int | None = Field(
        default=None,
        ge=0,
        description="Read a text that is too long in windows, which have so many tokens in common.",
    )


class LabelledText(TaskText):
    """A text whose tokens get labels."""

    parameters: SpanOptions = Field(default_factory=SpanOptions)
    _table: TokenTable | None = PrivateAttr(default=None)
    #: The places of the tokens of each window.
    _windows: tuple[Ids, ...] = PrivateAttr(default=())


@dataclass
class LabelledSpan:
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


class TokenClassification(WindowedTask):
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

    def find_windows(self, payload: LabelledText) -> None:
        """Tokenize a text, and choose the tokens of each window: one, unless it is too long and has a stride.

        Raises:
            WrongPayload: The stride leaves too little of a window.
        """
        stride = payload.parameters.stride
        if stride is None:
            (encoding,) = self.encode([payload])
            payload._table = TokenTable(encoding)
            payload._windows = (np.arange(len(encoding)),)
            return
        (encoding,) = self.whole.encode_batch(self.texts_of([payload]))
        payload._table = table = TokenTable(encoding)
        (own,) = np.nonzero(~table.is_special)
        payload._windows = slide(own, len(table), self.max_length, stride)
        if not payload._windows:
            raise WrongPayload(
                f"the model reads {self.max_length} tokens; with {stride} in common too few are new",
                field=("parameters", "stride"),
            )

    def join(self, windows: Sequence[Any], payload: LabelledText) -> list[dict[str, Any]]:  # noqa: ARG002
        """Return the rows of all windows; of overlapping ones the longer, else the likelier, as there."""
        if len(windows) == 1:
            return list(windows[0])
        joined: list[dict[str, Any]] = []
        for row in sorted((row for rows in windows for row in rows), key=lambda row: row["start"]):
            if not joined or row["start"] >= joined[-1]["end"]:
                joined.append(row)
            elif _strength(row) > _strength(joined[-1]):
                joined[-1] = row
        return joined

    def postprocess(self, outputs: Tensors, payload: LabelledText) -> list[dict[str, Any]]:
        """Return the spans of the one window of a part."""
        (window,), table, options = payload._windows, payload._table, payload.parameters
        assert table is not None  # find_windows has set it
        logits, strategy = outputs[self.output.name], options.aggregation_strategy
        rows = self.logits(logits.reshape(-1, logits.shape[-1]))
        scores = np.zeros((len(table), logits.shape[-1]))
        scores[window] = softmax(rows[self.padding.own(len(window), len(rows))])
        groups = [[place] for place in window[~table.is_special[window]].tolist()]
        if strategy in ("first", "average", "max"):
            groups = [*self.join_words(groups, table, payload.text)]
        spans = [self.find_label(group, scores, strategy) for group in groups]
        if strategy != "none":
            spans = join_spans(spans)
        named = (self.describe(span, table, payload) for span in spans)
        return [row for label, row in named if label not in options.ignore_labels]

    def join_words(self, groups: Iterable[list[int]], table: TokenTable, text: str) -> Iterator[list[int]]:
        """Yield the places of each word's tokens, as transformers tells words apart."""
        word: list[int] = []
        for (place,) in groups:
            start, end = table.offsets[place]
            token = table.tokens[place]
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

    def find_label(
        self, places: list[int], scores: NDArray[np.float64], strategy: Strategy | None
    ) -> LabelledSpan:
        """Return a token, or a word of several, with its label."""
        own = scores[places]
        row = own[0]
        if strategy == "max":
            row = own[own.max(axis=1).argmax()]
        elif strategy == "average":
            row = own.mean(axis=0)
        best = int(row.argmax())
        return LabelledSpan(self.labels[best], [float(row[best])], places)

    def describe(
        self, span: LabelledSpan, table: TokenTable, payload: LabelledText
    ) -> tuple[str, dict[str, Any]]:
        """Return a span's label and its row of the answer."""
        start, end = table.offsets[span.places[0]][0], table.offsets[span.places[-1]][1]
        score, offsets = float(np.mean(span.scores)), {"start": start, "end": end}
        strategy = payload.parameters.aggregation_strategy
        if strategy is None:
            row = {"label": span.kind, "score": score, "text": payload.text[start:end], **offsets}
            return span.kind, row
        words = [self.word_of(place, table, payload.text) for place in span.places]
        if strategy == "none":
            index = int(np.searchsorted(payload._windows[0], span.places[0]))  # among the window's tokens
            row = {"entity": span.label, "score": score, "index": index, "word": words[0], **offsets}
            return span.label, row
        label, decoder = span.label.split("-", 1)[-1], self.tokenizer.decoder
        word = " ".join(words) if decoder is None else decoder.decode(words)
        return label, {"entity_group": label, "score": score, "word": word, **offsets}

    def word_of(self, place: int, table: TokenTable, text: str) -> str:
        """Return a token as transformers shows it: one that the tokenizer does not know as it is sent."""
        token: str = table.tokens[place]
        return text[slice(*table.offsets[place])] if token == self.unknown else token


def _strength(row: Mapping[str, Any]) -> tuple[int, float]:
    return row["end"] - row["start"], row["score"]


def join_spans(spans: Sequence[LabelledSpan]) -> list[LabelledSpan]:
    """Join neighbours of one kind."""
    joined: list[LabelledSpan] = []
    for span in spans:
        if joined and joined[-1].kind == span.kind and not span.begins:
            joined[-1].scores += span.scores
            joined[-1].places += span.places
        else:
            joined.append(span)
    return joined
