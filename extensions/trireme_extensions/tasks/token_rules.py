"""Choose the next token of an answer as ``generation_config.json`` says, with transformers' own formulas."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

Scores = NDArray[np.float32]
Rows = Sequence[Sequence[int]]
#: Makes the scores of the next token [rows, words] for rows of tokens of one length.
Step = Callable[[Rows], Scores]
#: The number that transformers' beam search subtracts from the score of a token that it must not choose.
NEVER = 1e9


class TokenRules(BaseModel):
    """The rules, by transformers' names; ids are those of tokens."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    max_length: int | None = Field(default=None, ge=2)
    max_new_tokens: int | None = Field(default=None, ge=1)
    min_length: int = Field(default=0, ge=0)
    min_new_tokens: int = Field(default=0, ge=0)
    num_beams: int = Field(default=1, ge=1, le=16)
    early_stopping: bool | Literal["never"] = False
    length_penalty: float = 1.0
    repetition_penalty: float = Field(default=1.0, gt=0)
    encoder_repetition_penalty: float = Field(default=1.0, gt=0)
    no_repeat_ngram_size: int = Field(default=0, ge=0)
    encoder_no_repeat_ngram_size: int = Field(default=0, ge=0)
    bad_words_ids: tuple[tuple[int, ...], ...] = ()
    sequence_bias: tuple[tuple[tuple[int, ...], float], ...] = ()
    forced_bos_token_id: int | None = None
    forced_eos_token_id: int | tuple[int, ...] | None = None
    exponential_decay_length_penalty: tuple[int, float] | None = None
    suppress_tokens: tuple[int, ...] = ()
    begin_suppress_tokens: tuple[int, ...] = ()
    remove_invalid_values: bool = False
    renormalize_logits: bool = False

    def new_tokens(self) -> int | None:
        """Return how many tokens an answer has at most; None if the rules do not say."""
        if self.max_new_tokens is not None:
            return self.max_new_tokens
        return None if self.max_length is None else self.max_length - 1  # the first is not generated


class TokenChoice:
    """The choice of one answer's tokens."""

    def __init__(self, rules: TokenRules, end: Sequence[int], source: Sequence[int], limit: int) -> None:
        """Begin an answer.

        Args:
            rules: What is asked for.
            end: The tokens that end an answer.
            source: The tokens of the text.
            limit: Tokens of the answer at most, with the one before it.
        """
        self.rules, self.end, self.limit = rules, list(end), limit
        self.source, self.source_ids = list(source), sorted(set(source))
        bad = [tokens for tokens in rules.bad_words_ids if len(tokens) != 1 or tokens[0] not in end]
        self.biases = [*rules.sequence_bias, *((tokens, -np.inf) for tokens in bad)]

    def greedy(self, step: Step, row: list[int]) -> int:
        """Return the likeliest token that may follow a row."""
        return int(self.adjust(step([row]), [row])[0].argmax())

    def adjust(self, scores: Scores, rows: Rows) -> Scores:
        """Apply the rules to scores [rows, words], in transformers' order."""
        adjusted = np.array(scores, np.float32)
        for row, tokens in zip(adjusted, rows, strict=True):
            self._adjust_row(row, list(tokens))
        return log_softmax(adjusted) if self.rules.renormalize_logits else adjusted

    def _adjust_row(self, row: Scores, tokens: list[int]) -> None:
        rules, length, end = self.rules, len(tokens), self.end
        for sequence, bias in self.biases[: len(rules.sequence_bias)]:
            _add_bias(row, tokens, sequence, bias)
        _penalise(row, self.source_ids, 1 / rules.encoder_repetition_penalty)
        _penalise(row, sorted(set(tokens)), rules.repetition_penalty)
        row[_repeated(tokens, tokens, rules.no_repeat_ngram_size)] = -np.inf
        row[_repeated(self.source, tokens, rules.encoder_no_repeat_ngram_size)] = -np.inf
        for sequence, bias in self.biases[len(rules.sequence_bias) :]:
            _add_bias(row, tokens, sequence, bias)
        if length < rules.min_length or length - 1 < rules.min_new_tokens:
            row[end] = -np.inf
        if rules.forced_bos_token_id is not None and length == 1:
            _force(row, [rules.forced_bos_token_id])
        forced_end = rules.forced_eos_token_id
        if forced_end is not None and length == self.limit - 1:
            _force(row, [forced_end] if isinstance(forced_end, int) else list(forced_end))
        if rules.remove_invalid_values:
            most = float(np.finfo(np.float32).max)
            row[:] = np.nan_to_num(row, nan=0.0, posinf=most, neginf=-most)
        decay = rules.exponential_decay_length_penalty
        if decay is not None and length > decay[0] + 1:
            ends = row[end]
            row[end] = np.where(
                np.isfinite(ends), ends + np.abs(ends) * (decay[1] ** (length - decay[0] - 1) - 1), ends
            )
        row[list(rules.suppress_tokens)] = -np.inf
        first = 1 if rules.forced_bos_token_id is None else 2
        if length == first:
            row[list(rules.begin_suppress_tokens)] = -np.inf

    def beams(self, step: Step, start: int) -> list[int]:
        """Search for the likeliest answer with several beams; return its tokens behind ``start``."""
        rules, count = self.rules, self.rules.num_beams
        kept = max(2, 1 + len(self.end)) * count
        rows = [[start] for _ in range(count)]
        totals = np.array([0.0, *[-NEVER] * (count - 1)], np.float32)
        finished: list[tuple[float, bool, list[int]]] = [(-NEVER, False, [start])] * count
        may_improve = True
        while True:
            length = len(rows[0])
            scores = self.adjust(log_softmax(step(rows)), rows) + totals[:, None]
            order = np.argsort(-scores, axis=None, kind="stable")[:kept]
            found = [
                (float(scores.flat[index]), [*rows[index // scores.shape[1]], int(index % scores.shape[1])])
                for index in order
            ]
            hits = [tokens[-1] in self.end or len(tokens) >= self.limit for _, tokens in found]
            going = sorted(
                ((total - NEVER * hit, tokens) for (total, tokens), hit in zip(found, hits, strict=True)),
                key=lambda each: -each[0],
            )[:count]
            rows, totals = [tokens for _, tokens in going], np.array([each for each, _ in going], np.float32)
            is_full = rules.early_stopping is True and all(done for _, done, _ in finished)
            lost = NEVER * is_full + NEVER * (not may_improve)
            ended = [
                (total / length**rules.length_penalty - lost - NEVER * (not done), done, tokens)
                for (total, tokens), done in (
                    (each, hit and place < count)
                    for place, (each, hit) in enumerate(zip(found, hits, strict=True))
                )
            ]
            finished = sorted([*finished, *ended], key=lambda each: -each[0])[:count]
            may_improve = may_improve and self._may_improve(float(totals[0]), length, finished)
            is_full = rules.early_stopping is True and all(done for _, done, _ in finished)
            if not may_improve or is_full or all(hits):
                best: list[int] = finished[0][2][1:]
                return best

    def _may_improve(self, total: float, length: int, finished: list[tuple[float, bool, list[int]]]) -> bool:
        """True if a beam that goes on may become better than those that ended."""
        rules = self.rules
        longest = rules.early_stopping == "never" and rules.length_penalty > 0
        best = total / (self.limit - 1 if longest else length) ** rules.length_penalty
        worst = min(score for score, _, _ in finished)
        return any(best > (worst if done else -NEVER) for _, done, _ in finished)


def log_softmax(scores: Scores) -> Scores:
    """Return the logarithms of the probabilities along the last axis."""
    shifted = scores - scores.max(axis=-1, keepdims=True)
    logarithms: Scores = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return logarithms


def _add_bias(row: Scores, tokens: list[int], sequence: Sequence[int], bias: float) -> None:
    """Add a bias to the last token of a sequence whose others have just been chosen."""
    before = list(sequence[:-1])
    if not before or tokens[-len(before) :] == before:
        row[sequence[-1]] += bias


def _penalise(row: Scores, tokens: list[int], penalty: float) -> None:
    if penalty != 1:
        known = [token for token in tokens if token < len(row)]
        row[known] = np.where(row[known] < 0, row[known] * penalty, row[known] / penalty)


def _repeated(seen: list[int], tokens: list[int], size: int) -> list[int]:
    """Return the tokens that would end a sequence of ``size`` tokens which has been seen."""
    if not size or len(tokens) + 1 < size:
        return []
    before = tokens[len(tokens) + 1 - size :]
    return [
        seen[place + size - 1]
        for place in range(len(seen) - size + 1)
        if seen[place : place + size - 1] == before
    ]


def _force(row: Scores, tokens: list[int]) -> None:
    row[:] = -np.inf
    row[tokens] = 0
