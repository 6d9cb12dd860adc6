"""Write ``generation_answers.json``: what transformers' ``generate`` answers for each of the rules.

It needs torch, which the tests' environment does not have::

    pip install torch==2.13.0 transformers==5.23.0
    python tests/unit/client/tasks/make_generation_answers.py

The model is a table: the scores of the next token are the row of the last one. The tests give the same table to
the task as an ONNX graph.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from transformers import GenerationConfig, GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput

WORDS, START, END = 12, 0, 1
SOURCE = [[4, 7, 2, 1], [3, 3, 9, 5, 1], [11, 1]]
TABLES = 6
RULES = {
    "nothing": {},
    "max_length": {"max_length": 5},
    "max_new_tokens": {"max_new_tokens": 3},
    "min_length": {"min_length": 8},
    "min_new_tokens": {"min_new_tokens": 6},
    "num_beams": {"num_beams": 4},
    "early_stopping": {"num_beams": 3, "early_stopping": True},
    "never": {"num_beams": 3, "early_stopping": "never"},
    "length_penalty": {"num_beams": 4, "length_penalty": 2.0, "min_length": 4},
    "short": {"num_beams": 4, "length_penalty": -1.0},
    "repetition_penalty": {"repetition_penalty": 1.7},
    "encoder_repetition_penalty": {"encoder_repetition_penalty": 1.7},
    "no_repeat_ngram_size": {"no_repeat_ngram_size": 2},
    "encoder_no_repeat_ngram_size": {"encoder_no_repeat_ngram_size": 1},
    "bad_words_ids": {"bad_words_ids": [[3], [5, 6], [8], [1]]},
    "sequence_bias": {"sequence_bias": [[[4], 2.5], [[6, 7], 9.0]]},
    "forced_bos_token_id": {"forced_bos_token_id": 6},
    "forced_eos_token_id": {"forced_eos_token_id": 1, "max_length": 6},
    "exponential_decay_length_penalty": {"exponential_decay_length_penalty": [2, 1.5]},
    "suppress_tokens": {"suppress_tokens": [2, 9, 10]},
    "begin_suppress_tokens": {"begin_suppress_tokens": [2, 9, 10, 1]},
    "begin_after_forced": {"begin_suppress_tokens": [2, 9, 10, 1], "forced_bos_token_id": 6},
    "renormalize_logits": {"num_beams": 3, "renormalize_logits": True, "suppress_tokens": [2, 9]},
    "several_ends": {"eos_token_id": [1, 5]},
    "several_ends_beams": {"eos_token_id": [1, 5], "num_beams": 3},
    "as_bart": {
        "num_beams": 4, "length_penalty": 2.0, "min_length": 6, "max_length": 12, "no_repeat_ngram_size": 3,
        "forced_bos_token_id": 0, "forced_eos_token_id": 1, "early_stopping": True,
    },
    "as_marian": {"num_beams": 6, "bad_words_ids": [[0]], "forced_eos_token_id": 1, "max_length": 16},
}  # fmt: skip


def table(seed: int) -> np.ndarray:
    """Return the scores of each next token by the last one."""
    return np.random.default_rng(seed).standard_normal((WORDS, WORDS)).astype(np.float32) * 2


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
    """Ask the model by each of the rules."""
    answers: dict[str, list[list[int]]] = {}
    for name, rules in RULES.items():
        answers[name] = []
        for seed in range(TABLES):
            config = PretrainedConfig(is_encoder_decoder=True, vocab_size=WORDS)
            model = Table(config, table(seed)).eval()
            for source in SOURCE:
                ends = {"eos_token_id": END, "pad_token_id": 0, "decoder_start_token_id": START}
                generation = GenerationConfig(**{**ends, "max_length": 20, "use_cache": False, **rules})
                if "max_new_tokens" in rules:
                    generation.max_length = None
                tokens = model.generate(torch.tensor([source]), generation_config=generation)[0].tolist()[1:]
                stops = {END, *np.atleast_1d(rules.get("eos_token_id", END)).tolist()}
                end = next((place for place, token in enumerate(tokens) if token in stops), len(tokens))
                answers[name].append(tokens[:end])
    content = {
        "words": WORDS,
        "start": START,
        "end": END,
        "sources": SOURCE,
        "rules": RULES,
        "answers": answers,
    }
    Path(__file__).with_name("generation_answers.json").write_text(json.dumps(content) + "\n")


if __name__ == "__main__":
    main()
