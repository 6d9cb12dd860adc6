"""T5 on ONNX Runtime: the likeliest token, one after the other. For both models here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

#: T5's own numbers: what an answer starts with and is filled up with, and what it ends with.
PAD, END = 0, 1
#: Word pieces that the encoder was trained with, and those that an answer may have.
LONGEST, MOST = 512, 256
#: The tokenizer's and the embedding's; the numbers above stand for no word piece.
VOCABULARY = 32128


class Refused(ValueError):
    """The caller's mistake, in a sentence."""


class T5:
    """Encoder and decoder of one folder. Threads may share it: a run keeps nothing."""

    def __init__(self, folder: Path) -> None:
        self.encoder = session(folder / "encoder.onnx")
        self.decoder = session(folder / "decoder.onnx")

    def answer(self, ids: Any, mask: Any, most: int) -> Iterator[Any]:
        """The next token of each row, int64 [b], until all rows have ended or ``most`` tokens are there.

        ``ids`` and ``mask`` are integers [b, s]. A row that has ended goes on with PAD.
        """
        check(ids, mask)
        mask = mask.astype(np.int64)
        (hidden,) = self.encoder.run(None, {"input_ids": ids.astype(np.int64), "attention_mask": mask})
        given = {"encoder_hidden_states": hidden, "encoder_attention_mask": mask}
        said = np.full((len(ids), 1), PAD, np.int64)
        ended = np.zeros(len(ids), bool)
        for _ in range(most):
            # No past is kept: the graph takes the whole answer so far, which is short.
            (logits,) = self.decoder.run(None, {"input_ids": said, **given})
            token = np.where(ended, PAD, logits[:, -1].argmax(axis=-1))
            yield token
            ended |= token == END
            if ended.all():
                return
            said = np.concatenate((said, token[:, None]), axis=1)


def check(ids: Any, mask: Any) -> None:
    """:class:`Refused` for what the graphs would answer with nonsense or fail at."""
    if ids.shape != mask.shape:
        raise Refused(f"input_ids are {list(ids.shape)}, attention_mask is {list(mask.shape)}: not the same")
    if not 1 <= ids.shape[-1] <= LONGEST:
        raise Refused(f"there are {ids.shape[-1]} word pieces; the model takes 1 to {LONGEST}")
    if ids.min() < 0 or ids.max() >= VOCABULARY:
        raise Refused(f"input_ids has a number that is not from 0 to {VOCABULARY - 1}")
    if not np.isin(mask, (0, 1)).all() or not mask.any(axis=-1).all():
        raise Refused("attention_mask is 1 where there is text, 0 where there is none, and not all 0")


def session(graph: Path) -> onnxruntime.InferenceSession:
    """One thread for each run: what runs at the same time are the callers."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(str(graph), options, providers=["CPUExecutionProvider"])
