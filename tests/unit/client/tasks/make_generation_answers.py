"""Write the answers of ``generation_answers.json``: what transformers' ``generate`` answers by each set of rules.

It needs torch, which the tests' environment does not have::

    pip install torch==2.13.0 transformers==5.23.0
    python -m tests.unit.client.tasks.make_generation_answers

The model is a table: the scores of the next token are the row of the last one. The tests give the same table to
the task as an ONNX graph.
"""

from __future__ import annotations

import numpy as np
import torch
from transformers import GenerationConfig, GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput

from tests.unit.client.pipelines import compact
from tests.unit.client.tasks.token_tables import CASES, END, FILE, SOURCES, START, TABLES


class Table(PreTrainedModel, GenerationMixin):
    """An encoder that says nothing, and a decoder that looks its scores up."""

    config_class = PretrainedConfig
    main_input_name = "input_ids"

    def __init__(self, config: PretrainedConfig, scores: np.ndarray) -> None:
        super().__init__(config)
        self.scores = torch.nn.Parameter(torch.from_numpy(scores))
        self.encoder = Encoder()

    def get_encoder(self, *_args: object, **_options: object) -> torch.nn.Module:
        return self.encoder

    def prepare_inputs_for_generation(self, input_ids: torch.Tensor, **options: object) -> dict[str, object]:
        return {"decoder_input_ids": input_ids, "encoder_outputs": options.get("encoder_outputs")}

    def forward(self, decoder_input_ids: torch.Tensor, **_options: object) -> Seq2SeqLMOutput:
        return Seq2SeqLMOutput(logits=self.scores[decoder_input_ids])


class Encoder(torch.nn.Module):
    """Gives a hidden state of nothing."""

    main_input_name = "input_ids"

    def forward(self, input_ids: torch.Tensor, **_options: object) -> BaseModelOutput:
        return BaseModelOutput(last_hidden_state=torch.zeros(*input_ids.shape, 1))


def main() -> None:
    """Ask the models by each of the rules."""
    for case in CASES.values():
        case["answers"] = []
        for scores in TABLES:
            config = PretrainedConfig(is_encoder_decoder=True, vocab_size=len(scores))
            model = Table(config, scores).eval()
            for source in SOURCES:
                ends = {"eos_token_id": END, "pad_token_id": 0, "decoder_start_token_id": START}
                rules = {**ends, "max_length": 20, "use_cache": False, **case["rules"]}
                generation = GenerationConfig(**rules)
                if "max_new_tokens" in rules:
                    generation.max_length = None
                tokens = model.generate(torch.tensor([source]), generation_config=generation)[0].tolist()[1:]
                stops = {END, *np.atleast_1d(rules["eos_token_id"]).tolist()}
                end = next((place for place, token in enumerate(tokens) if token in stops), len(tokens))
                case["answers"].append(tokens[:end])
    FILE.write_text(compact(CASES, 1) + "\n")


if __name__ == "__main__":
    main()
