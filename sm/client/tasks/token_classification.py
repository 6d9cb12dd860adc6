"""Token classification: the parts of a text that are names of persons, places and the like."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from sm.client.base import TensorMetadata, Tensors
from sm.client.results import Table
from sm.client.tasks.task_file import read_labels, softmax
from sm.client.tasks.text_task import TaskText, TextTask
from sm.client.tensor_roles import find_output

#: The label of a token that belongs to no span.
OUTSIDE = "O"


class TokenClassification(TextTask):
    """``[{"label", "score", "text", "start", "end"}]`` in the text's order; the offsets count characters.

    Neighbouring tokens of one label are one span, as in the strategy ``simple`` of transformers: ``B-``
    begins another one. A span's score is the mean of its tokens'.
    """

    result = Table()

    def find_output(self, folder: Path) -> TensorMetadata:
        output = find_output(self.triton.metadata(self.model), 2, ("logits",))
        self.labels = read_labels(folder, output.name, output.shape[1])
        return output

    def postprocess(self, outputs: Tensors, payload: TaskText) -> list[dict[str, Any]]:
        encoding = payload._encoding
        assert encoding is not None  # preprocess has set it
        logits = outputs[self.output.name]
        probabilities = softmax(logits.reshape(-1, logits.shape[-1])[: len(encoding.ids)])
        spans: list[tuple[str, int, int, list[float]]] = []
        for index, row in enumerate(probabilities):
            if encoding.special_tokens_mask[index]:
                continue
            best = int(row.argmax())
            prefix, _, rest = self.labels[best].partition("-")
            begins, label = (
                (prefix == "B", rest) if prefix in ("B", "I") and rest else (False, self.labels[best])
            )
            start, end = encoding.offsets[index]
            if spans and spans[-1][0] == label and not begins:
                label, start, _, scores = spans.pop()
                spans.append((label, start, end, [*scores, float(row[best])]))
            else:
                spans.append((label, start, end, [float(row[best])]))
        return [
            {
                "label": label,
                "score": float(np.mean(scores)),
                "text": payload.text[start:end],
                "start": start,
                "end": end,
            }
            for label, start, end, scores in spans
            if label != OUTSIDE
        ]
