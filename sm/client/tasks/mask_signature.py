"""Find out which tensors of the served model are the ids, the attention and the scores of the words."""

from __future__ import annotations

from dataclasses import dataclass

from sm.client.base import ModelMetadata
from sm.client.tasks.text_inputs import TextInputs
from sm.client.tensor_roles import find_output

#: The outputs of a graph built with ``--masks``: the best words of each mask, their log probabilities.
MASK_OUTPUTS = ("word_ids", "word_scores")


@dataclass(frozen=True)
class Signature:
    """The inputs of a fill-mask model by their role, and the outputs to ask for."""

    inputs: TextInputs
    #: :data:`MASK_OUTPUTS`, or the one output of logits.
    outputs: tuple[str, ...]
    #: 0: unknown.
    vocabulary_size: int

    @classmethod
    def of(cls, model: ModelMetadata) -> Signature:
        """Read the signature of a model.

        Raises:
            UnsuitableModel: It is not a model that fills masks.
        """
        inputs = TextInputs.of(model)
        if model.outputs.keys() >= set(MASK_OUTPUTS):
            return cls(inputs, MASK_OUTPUTS, vocabulary_size=0)
        logits = find_output(model, 2, ("logits", "output"))
        return cls(inputs, (logits.name,), vocabulary_size=max(0, logits.shape[1]))

    @property
    def gives_logits(self) -> bool:
        return self.outputs != MASK_OUTPUTS
