"""Answers to questions: the likeliest parts of a context."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import AliasChoices, Field, PrivateAttr
from tokenizers import Encoding

from sm.client.base import TensorMetadata, Tensors
from sm.client.payloads import Parameters, Payload
from sm.client.results import Text
from sm.client.tasks.task_file import softmax
from sm.client.tasks.text import Ids, TextTask
from sm.client.tensor_roles import UnsuitableModel, find_output
from sm.errors import WrongPayload

OUTPUTS = ("start_logits", "end_logits")
#: What transformers' pipeline has for its parameters ``max_seq_len`` and ``doc_stride``.
WINDOW_TOKENS, OVERLAP_TOKENS = 384, 128
#: What transformers' pipeline gives to tokens that are not counted.
NOT_COUNTED = -10000.0
#: Windows of a question at most; 32,768 characters of text have some 130.
MAX_WINDOWS = 200


class Candidates(NamedTuple):
    """What a window says."""

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
    _encoding: Encoding | None = PrivateAttr(default=None)
    #: The places of the tokens of each window.
    _windows: tuple[Ids, ...] = PrivateAttr(default=())


class QuestionAnswering(TextTask):
    """``[{"answer", "score", "start", "end"}]``, the best first; the offsets count in the context.

    A long context is read in windows, as transformers' pipeline does.
    """

    payload = Question
    result = Text(text="answer")

    def setup(self) -> None:
        super().setup()
        self.tokenizer.no_truncation()  # what is too long is read in windows
        self.window = min(WINDOW_TOKENS, self.max_length)

    def find_output(self) -> TensorMetadata:
        found = self.metadata.outputs
        for name in OUTPUTS:
            if name not in found:
                raise UnsuitableModel(f"{self.model!r} has no output {name}; it has {', '.join(found)}.")
        return find_output(self.metadata, 1, OUTPUTS)

    def text_of(self, payload: Question) -> tuple[str, str]:
        return payload.question, payload.context

    def wrong_text(self, problem: str) -> WrongPayload:
        return WrongPayload(f"payload.context: with the question it {problem}", field="payload.context")

    def wanted(self, payload: Question) -> tuple[str, ...]:  # noqa: ARG002  # the same for all
        return OUTPUTS

    def inference(self, payload: Any) -> list[dict[str, Any]]:
        self.find_windows(payload)
        answer = super().inference
        return self.join([answer(part) for part in parts_of(payload)], payload)

    def preprocess_batch(self, payloads: Sequence[Question]) -> Tensors:
        ids, types = [], []
        for payload in payloads:
            if not payload._windows:
                self.find_windows(payload)
            encoding = payload._encoding
            assert encoding is not None  # find_windows has set it
            for window in payload._windows:
                ids.append(np.array(encoding.ids)[window])
                types.append(np.array(encoding.type_ids)[window].tolist())
        return self.pad(ids, types)

    def find_windows(self, payload: Question) -> None:
        """Tokenize a question and its context, and choose the tokens of each window.

        Raises:
            WrongPayload: The question is too long.
        """
        (encoding,) = self.tokenize([payload])
        places = np.arange(len(encoding.ids))
        of_context = np.array(encoding.sequence_ids, object) == 1
        context = places[of_context]
        room = self.window - (len(places) - len(context))
        step = room - min(OVERLAP_TOKENS, self.window // 2)
        payload._encoding, payload._windows = encoding, (places,)
        if len(context) <= room:
            return
        if step < 1 or len(context) > MAX_WINDOWS * step:
            raise WrongPayload(
                f"payload.question: with {len(places) - len(context)} tokens it leaves too little of the "
                f"{self.window} of a window for the context",
                field="payload.question",
            )
        before, behind = places[: context[0]], places[context[-1] + 1 :]
        starts = range(0, len(context) - room + step, step)
        payload._windows = tuple(
            np.concatenate((before, context[start : start + room], behind)) for start in starts
        )

    def postprocess_batch(self, outputs: Tensors, payloads: Sequence[Question]) -> list[list[dict[str, Any]]]:
        rows, answers = iter(range(len(outputs[OUTPUTS[0]]))), []
        for payload in payloads:
            found = [
                self.postprocess({name: outputs[name][next(rows)] for name in OUTPUTS}, part)
                for part in parts_of(payload)
            ]
            answers.append(self.join(found, payload))
        return answers

    def postprocess(self, outputs: Tensors, payload: Question) -> Candidates:
        """Return the likeliest answers in the one window of a part."""
        (window,), encoding, options = payload._windows, payload._encoding, payload.parameters
        assert encoding is not None  # find_windows has set it
        in_context = (np.array(encoding.sequence_ids, object) == 1)[window]
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
                        find(encoding, places[0])[0],
                        find(encoding, places[1])[1],
                        float(scores[first, further]),
                    )
                )
        return Candidates(found, nothing)

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
        own = logits.reshape(-1)[self.padding.own(len(counted), logits.size)]
        return softmax(np.where(counted, own, NOT_COUNTED))

    def word(self, encoding: Encoding, token: int) -> tuple[int, int]:
        """Return the characters of the word that a token is of."""
        word = encoding.token_to_word(token)
        characters = None if word is None else encoding.word_to_chars(word, 1)
        return characters or encoding.offsets[token]


def offsets_of(encoding: Encoding, token: int) -> tuple[int, int]:
    """Return the characters of a token."""
    offsets: tuple[int, int] = encoding.offsets[token]
    return offsets


def parts_of(payload: Question) -> Iterator[Question]:
    """Yield a copy for each window of a question."""
    for window in payload._windows:
        part = payload.model_copy()
        part._windows = (window,)
        yield part
