"""Question answering: the part of a text that answers a question."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field, PrivateAttr
from tokenizers import Encoding

from sm.client.base import TensorMetadata, Tensors
from sm.client.payloads import Parameters, Payload
from sm.client.results import Text
from sm.client.tasks.task_file import softmax
from sm.client.tasks.text_task import TextTask
from sm.client.tensor_roles import UnsuitableModel, find_output
from sm.errors import WrongPayload

OUTPUTS = ("start_logits", "end_logits")
#: Tokens of an answer at most, as in transformers' pipeline.
MAX_ANSWER_TOKENS = 15


class AnswerOptions(Parameters):
    """How many answers."""

    top: int = Field(default=1, ge=1, le=100, description="How many answers to return.")


class Question(Payload):
    """A question, and the text that may answer it."""

    question: str = Field(min_length=1, examples=["Where does she live?"])
    context: str = Field(min_length=1, examples=["My sister Ada lives in Paris."])
    parameters: AnswerOptions = Field(default_factory=AnswerOptions)
    _encoding: Encoding | None = PrivateAttr(default=None)


class QuestionAnswering(TextTask):
    """``[{"answer", "score", "start", "end"}]``, the best first; the offsets count in the context."""

    payload = Question
    result = Text(text="answer")
    truncation = "only_second"

    def find_output(self, folder: Path) -> TensorMetadata:  # noqa: ARG002  # it has no labels
        metadata = self.triton.metadata(self.model)
        for name in OUTPUTS:
            if name not in metadata.outputs:
                raise UnsuitableModel(
                    f"{self.model!r} has no output {name}; it has {', '.join(metadata.outputs)}."
                )
        return find_output(metadata, 1, OUTPUTS)

    def text_of(self, payload: Question) -> tuple[str, str]:
        return payload.question, payload.context

    def too_long(self, problem: str) -> WrongPayload:
        return WrongPayload(f"payload.context: with the question it {problem}", field="payload.context")

    def wanted(self, payload: Question) -> tuple[str, ...]:  # noqa: ARG002  # the same for all
        return OUTPUTS

    def postprocess(self, outputs: Tensors, payload: Question) -> list[dict[str, Any]]:
        encoding = payload._encoding
        assert encoding is not None  # preprocess has set it
        in_context = np.array(encoding.sequence_ids, object) == 1
        start, end = (self.probabilities(outputs[name], in_context) for name in OUTPUTS)
        # Every answer that begins before it ends, and is short.
        scores = np.tril(np.triu(np.outer(start, end)), MAX_ANSWER_TOKENS - 1)
        answers: list[dict[str, Any]] = []
        for flat in np.argsort(-scores, axis=None, kind="stable")[: payload.parameters.top]:
            first, last = np.unravel_index(flat, scores.shape)
            if scores[first, last] > 0:
                begin, finish = self.word(encoding, int(first))[0], self.word(encoding, int(last))[1]
                answers.append(
                    {
                        "answer": payload.context[begin:finish],
                        "score": float(scores[first, last]),
                        "start": begin,
                        "end": finish,
                    }
                )
        return answers

    def probabilities(self, logits: Any, in_context: Any) -> Any:
        """Return the probability of each token; those outside of the context have none.

        The first token, which stands for no answer, takes its share, as in transformers' pipeline.
        """
        counted = in_context.copy()
        counted[0] = True
        result = softmax(np.where(counted, logits.reshape(-1)[: len(counted)], -10000.0))
        return np.where(in_context, result, 0.0)

    def word(self, encoding: Encoding, token: int) -> tuple[int, int]:
        """Return the characters of the word that a token is of."""
        word = encoding.token_to_word(token)
        characters = None if word is None else encoding.word_to_chars(word, 1)
        return characters or encoding.offsets[token]
