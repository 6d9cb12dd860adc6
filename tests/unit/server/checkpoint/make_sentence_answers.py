"""Write ``sentence_answers.json``: the vectors that sentence-transformers' own modules make of token vectors.

It needs torch, which the tests' environment does not have::

    pip install torch==2.13.0 sentence-transformers==6.2.0
    python tests/unit/server/checkpoint/make_sentence_answers.py
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from sentence_transformers.base.modules.dense import Dense  # type: ignore[import-not-found]
from sentence_transformers.sentence_transformer.modules.layer_norm import LayerNorm  # type: ignore[import-not-found]
from sentence_transformers.sentence_transformer.modules.pooling import Pooling  # type: ignore[import-not-found]

SIZE, TOKENS, SKIPPED = 4, 6, 2
MODES = ["cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken", ["cls", "max"], ["mean", "lasttoken"]]  # fmt: skip
ACTIVATIONS = ["Identity", "Tanh", "ReLU", "GELU", "Sigmoid"]


def main() -> None:
    """Pool and transform fixed vectors."""
    random = np.random.default_rng(0)
    tokens = random.standard_normal((TOKENS, SIZE)).astype(np.float32)
    weight, bias = (random.standard_normal(shape).astype(np.float32) for shape in ((3, SIZE), (3,)))
    scale, shift = (random.standard_normal(SIZE).astype(np.float32) for _ in range(2))
    answers: dict[str, object] = {}
    with torch.no_grad():
        for mode in MODES:
            for skipped in (0, SKIPPED):
                features = {
                    "token_embeddings": torch.from_numpy(tokens)[None],
                    "attention_mask": torch.ones(1, TOKENS, dtype=torch.int64),
                    "prompt_length": skipped,
                }
                pooled = Pooling(SIZE, mode, include_prompt=not skipped)(features)["sentence_embedding"][0]
                answers[f"{'+'.join(np.atleast_1d(mode))} {skipped}"] = pooled.tolist()
        vector = torch.from_numpy(tokens[:1])
        for name in ACTIVATIONS:
            dense = Dense(
                SIZE, 3, True, getattr(torch.nn, name)(), torch.from_numpy(weight), torch.from_numpy(bias)
            )
            answers[name] = dense({"sentence_embedding": vector})["sentence_embedding"][0].tolist()
        norm = LayerNorm(SIZE)
        norm.norm.weight.data, norm.norm.bias.data = torch.from_numpy(scale), torch.from_numpy(shift)
        answers["LayerNorm"] = norm({"sentence_embedding": vector})["sentence_embedding"][0].tolist()
    parts = {"tokens": tokens, "weight": weight, "bias": bias, "scale": scale, "shift": shift}
    content = {name: array.tolist() for name, array in parts.items()}
    Path(__file__).with_name("sentence_answers.json").write_text(
        json.dumps({**content, "answers": answers}) + "\n"
    )


if __name__ == "__main__":
    main()
