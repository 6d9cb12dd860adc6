"""T5 on ONNX Runtime with greedy decoding: always the most likely token. Both models here use it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

#: T5's special tokens: an answer starts with PAD and is padded with it; END ends it.
PAD, END = 0, 1
#: Word pieces of an input, as the encoder was trained, and of an answer.
MAX_INPUT_TOKENS, MAX_ANSWER_TOKENS = 512, 256
#: Word pieces in the vocabulary.
VOCABULARY_SIZE = 32128


class BadInput(ValueError):
    """The request is wrong; the message tells the caller what."""


class T5:
    """Encoder and decoder of one folder. Threads may share it: a run keeps no state."""

    def __init__(self, folder: Path) -> None:
        self.encoder = open_session(folder / "encoder.onnx")
        self.decoder = open_session(folder / "decoder.onnx")

    def generate(self, ids: Any, mask: Any, max_tokens: int) -> Iterator[Any]:
        """Yield the next token of each row, int64 [b], until all rows have ended or have ``max_tokens``.

        ``ids`` and ``mask`` are integers [b, s]. A row that has ended continues with PAD.
        """
        check(ids, mask)
        mask = mask.astype(np.int64)
        (hidden,) = self.encoder.run(None, {"input_ids": ids.astype(np.int64), "attention_mask": mask})
        encoded = {"encoder_hidden_states": hidden, "encoder_attention_mask": mask}
        tokens = np.full((len(ids), 1), PAD, np.int64)
        ended = np.zeros(len(ids), bool)
        for _ in range(max_tokens):
            # The graph has no cache of the past: it takes the whole answer so far, which is short.
            (logits,) = self.decoder.run(None, {"input_ids": tokens, **encoded})
            token = np.where(ended, PAD, logits[:, -1].argmax(axis=-1))
            yield token
            ended |= token == END
            if ended.all():
                return
            tokens = np.concatenate((tokens, token[:, None]), axis=1)


def check(ids: Any, mask: Any) -> None:
    """Raise :class:`BadInput` for tensors at which the graphs would fail, or answer with nonsense."""
    if ids.shape != mask.shape:
        raise BadInput(f"input_ids are {list(ids.shape)}, attention_mask is {list(mask.shape)}: not the same")
    if not 1 <= ids.shape[-1] <= MAX_INPUT_TOKENS:
        raise BadInput(f"there are {ids.shape[-1]} word pieces; the model takes 1 to {MAX_INPUT_TOKENS}")
    if ids.min() < 0 or ids.max() >= VOCABULARY_SIZE:
        raise BadInput(f"input_ids has a number that is not from 0 to {VOCABULARY_SIZE - 1}")
    if not np.isin(mask, (0, 1)).all() or not mask.any(axis=-1).all():
        raise BadInput("attention_mask is 1 where there is text, 0 where there is none, and not all 0")


def open_session(graph: Path) -> onnxruntime.InferenceSession:
    """Open a graph with one thread for each run; different requests run at the same time."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # errors are raised; its own lines are not JSON
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(str(graph), options, providers=["CPUExecutionProvider"])
