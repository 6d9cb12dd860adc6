"""Write ``rerank_answers.json``: what sentence-transformers' CrossEncoder and transformers' pipeline score.

It needs torch, which the tests' environment does not have::

    pip install torch==2.13.0 sentence-transformers==6.2.0
    python -m tests.unit.client.make_rerank_answers

The model is the graph that the tests give to ``text-classification``, in place of BERT's network.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import onnxruntime
import torch
from sentence_transformers import CrossEncoder  # type: ignore[import-not-found]
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    PreTrainedTokenizerFast,
    TextClassificationPipeline,
)
from transformers.modeling_outputs import SequenceClassifierOutput

from tests.support.rerankers import DOCUMENTS, MAX_LENGTH, QUERY
from tests.support.task_models import WORDS, write_text_model
from tests.unit.client.pipelines import compact

ACTIVATIONS = {"default": None, "Identity": torch.nn.Identity(), "Sigmoid": torch.nn.Sigmoid()}


def main() -> None:
    """Ask both, and keep the files that say what they are."""
    pairs = [(QUERY, document) for document in DOCUMENTS]
    answers: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        session = onnxruntime.InferenceSession(
            write_text_model(folder / "graph", "text-classification", ("relevant",))
        )
        config = BertConfig(
            vocab_size=len(WORDS), hidden_size=8, num_hidden_layers=1, num_attention_heads=2,
            intermediate_size=8, num_labels=1, max_position_embeddings=MAX_LENGTH,
        )  # fmt: skip
        tokenizer = PreTrainedTokenizerFast(
            tokenizer_file=str(folder / "graph" / "tokenizer.json"),
            model_max_length=MAX_LENGTH,
            **{f"{name.lower()}_token": f"[{name}]" for name in ("PAD", "UNK", "CLS", "SEP", "MASK")},
        )
        BertForSequenceClassification(config).save_pretrained(folder / "base")
        tokenizer.save_pretrained(folder / "base")

        def forward(input_ids: Any, attention_mask: Any, **_others: Any) -> Any:
            asked = {"input_ids": input_ids.numpy(), "attention_mask": attention_mask.numpy()}
            return SequenceClassifierOutput(logits=torch.from_numpy(session.run(["logits"], asked)[0]))

        for name, activation in ACTIVATIONS.items():
            encoder = CrossEncoder(str(folder / "base"), activation_fn=activation, device="cpu")
            encoder.model.forward = forward
            encoder.save_pretrained(folder / name)
            files = (
                "config.json",
                "config_sentence_transformers.json",
                "modules.json",
                "tokenizer_config.json",
            )
            answers[name] = {
                "files": {file: json.loads((folder / name / file).read_text()) for file in files},
                "scores": encoder.predict(pairs).tolist(),
            }
        model = encoder.model
        pipeline = TextClassificationPipeline(model=model, tokenizer=tokenizer, device="cpu")
        asked = [{"text": text, "text_pair": pair} for text, pair in pairs]
        answers["pipeline"] = [row["score"] for row in pipeline(asked, truncation=True)]
    Path(__file__).with_name("rerank_answers.json").write_text(compact(answers, 3) + "\n")


if __name__ == "__main__":
    main()
