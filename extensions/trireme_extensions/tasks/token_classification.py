"""Spans of a text: its tokens get labels, and neighbours of one label are joined."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, PrivateAttr

from sm.client.base import TensorMetadata, Tensors
from sm.client.described import softmax
from sm.client.results import Table
from sm.client.texts import Ids
from sm.errors import WrongPayload
from trireme_extensions.tasks.task_file import LowerCase
from trireme_extensions.tasks.text import TaskText, Truncate
from trireme_extensions.tasks.windows import TokenTable, WindowedTask, slide

Strategy = Literal["none", "simple", "first", "average", "max"]


class SpanOptions(Truncate):
    """How tokens become spans, by transformers' names."""

    aggregation_strategy: LowerCase[Strategy] | None = Field(
        default=None, description="Answer with the rows of transformers' pipeline, joined in this way."
    )
    ignore_labels: tuple[str, ...] = Field(
        default=("O",), max_length=1000, description="Labels to leave out."
    )
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
        #: The labels without ``B-`` and ``I-``, and which of them say that a span begins.
        self.kinds = [re.sub("^[BI]-", "", label) for label in self.labels]
        self.kind_numbers = np.array([self.kinds.index(kind) for kind in self.kinds])
        self.begins = np.array([label.startswith("B-") for label in self.labels])

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
        """Return the spans of the one window of a part.

        All tokens at once: a loop over those of a long text would keep the interpreter from other requests.
        """
        (window,), table, options = payload._windows, payload._table, payload.parameters
        assert table is not None  # find_windows has set it
        logits, strategy = outputs[self.output.name], options.aggregation_strategy
        rows = self.logits(logits.reshape(-1, logits.shape[-1]))
        (own,) = np.nonzero(~table.is_special[window])
        if not len(own):
            return []
        places, scores = window[own], softmax(rows[self.padding.own(len(window), len(rows))])[own]
        units = np.arange(len(places))  # the first token of each unit that has a label: a token, or a word
        if strategy in ("first", "average", "max"):
            units = np.flatnonzero(self.begin_words(places.tolist(), table, payload.text))
            scores = join_scores(scores, units, strategy)
        labels, score = scores.argmax(axis=1), scores.max(axis=1)
        begins = np.append(True, self.begins[labels[1:]])
        begins[1:] |= np.diff(self.kind_numbers[labels]) != 0
        spans = np.flatnonzero(begins | (strategy == "none"))  # the first unit of each
        score = np.add.reduceat(score, spans) / lengths(spans, len(units))
        ends = np.append(units[spans[1:]], len(places)) - 1
        names = self.names(strategy)
        is_named = np.array([name not in options.ignore_labels for name in names])
        (kept,) = np.nonzero(is_named[labels[spans]])
        firsts = units[spans[kept]]
        found = (labels[spans[kept]], score[kept], own[firsts], places[firsts], places[ends[kept]])
        return [
            self.describe(names[label], mean, index, range(first, last + 1), table, payload)
            for label, mean, index, first, last in zip(*map(np.ndarray.tolist, found), strict=True)
        ]

    def names(self, strategy: Strategy | None) -> Sequence[str]:
        """Return what a span with each label is called in the answer."""
        if strategy is None:
            return self.kinds
        return self.labels if strategy == "none" else [label.split("-", 1)[-1] for label in self.labels]

    def begin_words(self, places: Sequence[int], table: TokenTable, text: str) -> list[bool]:
        """Return which tokens begin a word, as transformers tells words apart."""
        begin: list[bool] = []
        for place in places:
            (start, end), token = table.offsets[place], table.tokens[place]
            if self.has_prefix:
                goes_on = len(token) != end - start
            else:
                goes_on = start > 0 and " " not in text[start - 1 : start + 1]
            begin.append(not begin or not goes_on or token == self.unknown)
        return begin

    def describe(
        self, name: str, score: float, index: int, places: range, table: TokenTable, payload: LabelledText
    ) -> dict[str, Any]:
        """Return a span's row of the answer.

        Args:
            name: What it is called.
            score: The mean of its tokens' or words'.
            index: Its first token in the window.
            places: Its tokens in the text.
            table: Those of the text.
            payload: The text.
        """
        start, end = table.offsets[places[0]][0], table.offsets[places[-1]][1]
        strategy, offsets = payload.parameters.aggregation_strategy, {"start": start, "end": end}
        if strategy is None:
            return {"label": name, "score": score, "text": payload.text[start:end], **offsets}
        words = [self.word_of(place, table, payload.text) for place in places]
        if strategy == "none":
            return {"entity": name, "score": score, "index": index, "word": words[0], **offsets}
        decoder = self.tokenizer.decoder
        word = " ".join(words) if decoder is None else decoder.decode(words)
        return {"entity_group": name, "score": score, "word": word, **offsets}

    def word_of(self, place: int, table: TokenTable, text: str) -> str:
        """Return a token as transformers shows it: one that the tokenizer does not know as it is sent."""
        token: str = table.tokens[place]
        return text[slice(*table.offsets[place])] if token == self.unknown else token


def _strength(row: Mapping[str, Any]) -> tuple[int, float]:
    return row["end"] - row["start"], row["score"]


def lengths(firsts: Ids, count: int) -> Ids:
    """Return how many of ``count`` items each group has, by the first item of each."""
    return np.diff(np.append(firsts, count))


def join_scores(scores: NDArray[np.float64], words: Ids, strategy: Strategy) -> NDArray[np.float64]:
    """Return a row of scores for each word, of which ``words`` has the first token."""
    if strategy == "first":
        return scores[words]
    counts = lengths(words, len(scores))
    if strategy == "average":
        means: NDArray[np.float64] = np.add.reduceat(scores, words) / counts[:, None]
        return means
    # The token of each word that has the highest score of all; of equal ones the first.
    numbers = np.repeat(np.arange(len(words)), counts)
    best = np.lexsort((-scores.max(axis=1), numbers))[words]
    return np.asarray(scores[best])
