"""Answers to questions: the likeliest parts of a context."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import AliasChoices, Field, PrivateAttr

from sm.client.base import TensorMetadata, Tensors
from sm.client.described import softmax
from sm.client.payloads import Parameters, Payload
from sm.client.results import Text
from sm.client.tensor_roles import UnsuitableModel, find_output
from sm.client.texts import Ids
from sm.errors import WrongPayload
from trireme_extensions.tasks.windows import TokenTable, WindowedTask, slide

OUTPUTS = ("start_logits", "end_logits")
#: The defaults of ``max_seq_len`` and ``doc_stride`` in transformers' pipeline.
WINDOW_TOKENS, OVERLAP_TOKENS = 384, 128
#: The score that transformers' pipeline gives to tokens that are not counted.
NOT_COUNTED = -10000.0


class WindowAnswers(NamedTuple):
    """The answers that one window of a context offers."""

    #: Where each answer begins and ends in the context, and its score.
    found: list[tuple[int, int, float]]
    #: The score of no answer.
    nothing: float


class AnswerOptions(Parameters):
    """Which answers, by transformers' names."""

    top: int = Field(
        default=1,
        ge=1,
        le=100,
        validation_alias=AliasChoices("top", "top_k", "topk"),
        description="How many answers to return.",
    )
    max_seq_len: int = Field(
        default=WINDOW_TOKENS, ge=1, description="Tokens of a window, if the model takes so many."
    )
    doc_stride: int | None = Field(
        default=None,
        ge=0,
        description="Tokens of the context that two windows share; by default 128, or half a window.",
    )
    max_answer_len: int = Field(default=15, ge=1, le=WINDOW_TOKENS, description="Tokens of an answer.")
    handle_impossible_answer: bool = Field(
        default=False, description="An empty answer says that the context has none."
    )
    align_to_words: bool = Field(default=True, description="An answer has whole words.")


class Question(Payload):
    """A question, and the text that may answer it."""

    question: str = Field(min_length=1, examples=["Where does she live?"])
    context: str = Field(min_length=1, examples=["My sister Ada lives in Paris."])
    parameters: AnswerOptions = Field(default_factory=AnswerOptions)
    _table: TokenTable | None = PrivateAttr(default=None)
    #: The places of the tokens of each window.
    _windows: tuple[Ids, ...] = PrivateAttr(default=())


class QuestionAnswering(WindowedTask):
    """``[{"answer", "score", "start", "end"}]``, the best first; the offsets count in the context.

    A long context is read in windows, as transformers' pipeline does.
    """

    payload = Question
    result = Text(text="answer")

    def setup(self) -> None:
        super().setup()
        self.tokenizer.no_truncation()  # what is too long is read in windows

    def find_output(self) -> TensorMetadata:
        found = self.metadata.outputs
        for name in OUTPUTS:
            if name not in found:
                raise UnsuitableModel(f"{self.model!r} has no output {name}; it has {', '.join(found)}.")
        return find_output(self.metadata, 1, OUTPUTS)

    def text_of(self, payload: Question) -> tuple[str, str]:
        return payload.question, payload.context

    def wrong_text(self, problem: str) -> WrongPayload:
        return WrongPayload(f"with the question it {problem}", field=("payload", "context"))

    def wanted(self, payload: Question) -> tuple[str, ...]:  # noqa: ARG002  # the same for all
        return OUTPUTS

    def find_windows(self, payload: Question) -> None:
        """Tokenize a question and its context, and choose the tokens of each window.

        Raises:
            WrongPayload: The question is too long.
        """
        (encoding,) = self.tokenize([payload])
        payload._table = table = TokenTable(encoding)
        (context,) = np.nonzero(table.is_second)
        options = payload.parameters
        window = min(options.max_seq_len, self.max_length)
        overlap = min(OVERLAP_TOKENS, window // 2) if options.doc_stride is None else options.doc_stride
        payload._windows = slide(context, len(table), window, overlap)
        if not payload._windows or overlap > window:
            raise WrongPayload(
                f"a window has {window} tokens, {len(table) - len(context)} of them the "
                f"question's; with {overlap} in common too little is left for the context",
                field=("payload", "question") if options.doc_stride is None else ("parameters", "doc_stride"),
            )

    def postprocess(self, outputs: Tensors, payload: Question) -> WindowAnswers:
        """Return the likeliest answers in the one window of a part."""
        (window,), table, options = payload._windows, payload._table, payload.parameters
        assert table is not None  # find_windows has set it
        in_context = table.is_second[window]
        start, end = (self.probabilities(outputs[name], in_context) for name in OUTPUTS)
        nothing = float(start[0] * end[0])
        # Every answer that begins before it ends, and is short: [first token, further tokens].
        longest = options.max_answer_len
        ends = np.pad(np.where(in_context, end, 0.0), (0, longest - 1))
        scores = np.where(in_context, start, 0.0)[:, None] * np.lib.stride_tricks.sliding_window_view(
            ends, longest
        )
        found = []
        # Several may be of the same words.
        most = options.top * 2 + 10 if options.align_to_words else options.top
        for flat in np.argsort(-scores, axis=None, kind="stable")[:most]:
            first, further = divmod(int(flat), longest)
            if scores[first, further] > 0:
                places = int(window[first]), int(window[first + further])
                find = self.word if options.align_to_words else offsets_of
                found.append(
                    (
                        find(table, places[0])[0],
                        find(table, places[1])[1],
                        float(scores[first, further]),
                    )
                )
        return WindowAnswers(found, nothing)

    def join(self, windows: Sequence[Any], payload: Question) -> list[dict[str, Any]]:
        """Return the best answers of all windows; equal texts are one answer with the sum of their scores."""
        options = payload.parameters
        answers: dict[str, dict[str, Any]] = {}
        for start, end, score in (each for window in windows for each in window.found):
            text = payload.context[start:end]
            answer = answers.setdefault(
                text.lower(), {"answer": text, "score": 0.0, "start": start, "end": end}
            )
            answer["score"] += score
        rows = [*answers.values()]
        if options.handle_impossible_answer:
            nothing = min(window.nothing for window in windows)
            rows.append({"answer": "", "score": nothing, "start": 0, "end": 0})
        return sorted(rows, key=lambda row: -row["score"])[: options.top]

    def probabilities(self, logits: Any, in_context: Any) -> NDArray[np.float64]:
        """Return the probability of each token of a window: of the context, and of the first.

        The first token, which stands for no answer, takes its share, as in transformers' pipeline.
        """
        counted = in_context.copy()
        counted[0] = True
        own = self.logits(logits.reshape(-1))[self.padding.own(len(counted), logits.size)]
        return softmax(np.where(counted, own, NOT_COUNTED))

    def word(self, table: TokenTable, token: int) -> tuple[int, int]:
        """Return the characters of the word that a token is of."""
        word = table.encoding.token_to_word(token)
        characters = None if word is None else table.encoding.word_to_chars(word, 1)
        return characters or table.offsets[token]


def offsets_of(table: TokenTable, token: int) -> tuple[int, int]:
    """Return the characters of a token."""
    return table.offsets[token]
