"""Tasks that read a text that is too long in windows: each is a row for the model, and all are one answer."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from tokenizers import Encoding

from sm.client.base import Tensors
from sm.client.texts import Ids
from trireme_extensions.tasks.text import TextTask

#: Windows of a text at most; 32,768 characters have some 130 of the usual size.
MAX_WINDOWS = 200


def slide(own: Ids, tokens: int, window: int, overlap: int) -> tuple[Ids, ...]:
    """Return the places of each window's tokens: what is around a text's own tokens, and some of these.

    Args:
        own: The places of its own tokens; around them are special ones, or a question.
        tokens: Of all.
        window: Tokens of a window.
        overlap: Its own tokens that the next window has too.

    Returns:
        One window of all tokens if it is not too long; none if there would be too many, or no end.
    """
    places, room = np.arange(tokens), window - tokens + len(own)
    if tokens <= window:
        return (places,)
    step = room - overlap
    if step < 1 or len(own) > MAX_WINDOWS * step:
        return ()
    before, behind = places[: own[0]], places[own[-1] + 1 :]
    starts = range(0, len(own) - room + step, step)
    return tuple(np.concatenate((before, own[start : start + room], behind)) for start in starts)


class TokenTable:
    """The lists of an encoding, each made once: the encoding makes its own again at each look.

    Seen with tokenizers 0.23.3: findings/tokenizers_lists.sh.
    """

    def __init__(self, encoding: Encoding) -> None:
        self.encoding = encoding
        self.ids: Ids = np.array(encoding.ids, np.int64)
        self.types: Ids = np.array(encoding.type_ids, np.int64)
        self.tokens: list[str] = encoding.tokens
        #: The first character of each token, and the one after its last.
        self.offsets: list[tuple[int, int]] = encoding.offsets
        self.is_special = np.array(encoding.special_tokens_mask, np.bool_)
        #: Which tokens are of the second text of a pair.
        self.is_second = np.array([sequence == 1 for sequence in encoding.sequence_ids], np.bool_)

    def __len__(self) -> int:
        return len(self.ids)


class WindowedTask(TextTask):
    """A task whose payload has ``_table`` and ``_windows``, the places of the tokens of each window."""

    @abstractmethod
    def find_windows(self, payload: Any) -> None:
        """Tokenize a record, and choose the tokens of each window. Raises :class:`WrongPayload`."""

    @abstractmethod
    def join(self, windows: Sequence[Any], payload: Any) -> list[dict[str, Any]]:
        """Return the answer of what :meth:`postprocess` returned for each window."""

    def prepare(self, payload: Any) -> int:
        self.find_windows(payload)
        return sum(map(len, payload._windows))

    def inference(self, payload: Any) -> list[dict[str, Any]]:
        if not payload._windows:
            self.find_windows(payload)
        answer = super().inference
        return self.join([answer(part) for part in parts_of(payload)], payload)

    def preprocess_batch(self, payloads: Sequence[Any]) -> Tensors:
        ids: list[Ids] = []
        types: list[Any] = []
        for payload in payloads:
            if not payload._windows:
                self.find_windows(payload)
            for window in payload._windows:
                ids.append(payload._table.ids[window])
                types.append(payload._table.types[window])
        return self.pad(ids, types)

    def postprocess_batch(self, outputs: Tensors, payloads: Sequence[Any]) -> list[list[dict[str, Any]]]:
        rows, answers = iter(range(len(next(iter(outputs.values()))))), []
        for payload in payloads:
            found = [
                self.postprocess({name: array[row] for name, array in outputs.items()}, part)
                for part, row in zip(parts_of(payload), rows, strict=False)
            ]
            answers.append(self.join(found, payload))
        return answers


def parts_of(payload: Any) -> Iterator[Any]:
    """Yield a copy for each window of a record."""
    for window in payload._windows:
        part = payload.model_copy()
        part._windows = (window,)
        yield part
