"""Zero-shot classification: labels that the caller names, scored by a model of natural language inference."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field, PrivateAttr
from tokenizers import Encoding

from sm.client.base import TensorMetadata, Tensors
from sm.client.payloads import Parameters, Payload
from sm.client.results import Classes
from sm.client.tasks.task_file import ranked, read_labels, softmax
from sm.client.tasks.text_task import TextTask
from sm.client.tensor_roles import UnsuitableModel, find_output

#: Candidates of a request: each is a text of its own for the model.
MAX_CANDIDATES = 100


class Hypothesis(Parameters):
    """How a label becomes a sentence, and whether labels exclude each other."""

    hypothesis: str = Field(default="This example is {}.", pattern=r"\{\}", description="{} is the label.")
    multi_label: bool = Field(default=False, description="Score each label by itself.")


class Candidates(Payload):
    """A text, and the labels that it may have."""

    text: str = Field(min_length=1, examples=["My parcel has not arrived."])
    labels: list[Annotated[str, Field(min_length=1)]] = Field(
        min_length=1, max_length=MAX_CANDIDATES, examples=[["delivery", "payment"]]
    )
    parameters: Hypothesis = Field(default_factory=Hypothesis)


class Pair(Payload):
    """The text and one label's sentence, as the model reads them."""

    text: str
    sentence: str
    _encoding: Encoding | None = PrivateAttr(default=None)


class ZeroShotClassification(TextTask):
    """``[{"label", "score"}]`` of the labels in the request, the best first.

    Serves a model of natural language inference: one of its labels begins with ``entail``.
    """

    payload = Candidates
    result = Classes()
    truncation = "only_first"

    def find_output(self, folder: Path) -> TensorMetadata:
        output = find_output(self.triton.metadata(self.model), 1, ("logits",))
        names = [label.lower() for label in read_labels(folder, output.name, output.shape[0])]
        entailed = [index for index, name in enumerate(names) if name.startswith("entail")]
        if not entailed or len(names) < 2:
            raise UnsuitableModel(f"{self.model!r} has no label that begins with entail; it has {names}.")
        self.entailment = entailed[0]
        # As transformers' pipeline does: the last label stands against it, unless that is it.
        contradicted = [index for index, name in enumerate(names) if name.startswith("contra")]
        self.contradiction = contradicted[0] if contradicted else (0 if self.entailment else len(names) - 1)
        return output

    def text_of(self, payload: Any) -> tuple[str, str]:
        return payload.text, payload.sentence

    def inference(self, payload: Any) -> list[dict[str, Any]]:
        """Score a sentence for each label, in one call or as many as the model's batch needs."""
        options = payload.parameters
        sentences = [options.hypothesis.replace("{}", label) for label in payload.labels]
        inputs = self.preprocess_batch([Pair(text=payload.text, sentence=each) for each in sentences])
        outputs = self.triton.infer(self.model, inputs, outputs=[self.output.name], split=True)
        return self.postprocess(outputs, payload)

    def takes_batches(self) -> bool:
        return False  # a record is a batch already

    def postprocess(self, outputs: Tensors, payload: Any) -> list[dict[str, Any]]:
        logits = outputs[self.output.name].reshape(len(payload.labels), -1)
        if payload.parameters.multi_label or len(payload.labels) == 1:
            scores = softmax(logits[:, [self.contradiction, self.entailment]])[:, 1]
        else:
            scores = softmax(logits[:, self.entailment])
        return ranked(np.asarray(scores), tuple(payload.labels), len(payload.labels))
