"""``bert-base-uncased`` itself in the place of gte-small with adapters, where a model hub is reachable.

    pip install torch transformers onnxscript
    python model/bert_base/recipe/bert_base_uncased.py --cache FOLDER [--model NAME-OR-FOLDER]
    TRIREME_MODEL_REPOSITORY=FOLDER/repository/cpu TRIREME_BROKEN_CLIENTS=skip .venv/bin/sm serve

Any ``BertForMaskedLM`` with a WordPiece vocabulary will do. The same client serves it: the tensors'
names, types and shapes are those of ``config.pbtxt``. The exported graph is compared with torch at
several shapes before anything is written to the repository: exporters have been wrong.
"""

import argparse
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import torch
from torch import Tensor, nn
from transformers import AutoTokenizer, BertForMaskedLM

from sm.settings import HERE
from trireme_tools.cache import Cache
from trireme_tools.prepare.cpu_repository import CpuRepository

SHAPES = ((1, 3), (1, 17), (4, 9), (8, 64), (1, 512))
TOLERANCE = 1e-3
INPUTS = ("input_ids", "attention_mask", "token_type_ids")


class Logits(nn.Module):
    """The model with three tensors in and one out. ``attention_mask`` is int64 [b, s], 0 for padding."""

    def __init__(self, model: BertForMaskedLM) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> Tensor:
        """Logits float32 [b, s, vocabulary]."""
        # In four dimensions a mask is taken as it is: transformers' own code for masks looks at their
        # values, which an exporter freezes into the graph.
        barred = torch.finfo(torch.float32).min
        mask = (1.0 - attention_mask[:, None, None, :].float()) * barred
        return self.model(input_ids, attention_mask=mask, token_type_ids=token_type_ids).logits


def load(name: str) -> Logits:
    return Logits(BertForMaskedLM.from_pretrained(name, attn_implementation="eager")).eval()


def sample(rows: int, length: int, vocabulary: int) -> tuple[Tensor, Tensor, Tensor]:
    """Random ids, rows padded to different degrees, and two kinds of token."""
    rng = np.random.default_rng([rows, length])
    ids = rng.integers(0, vocabulary, (rows, length))
    lengths = rng.integers(1, length + 1, rows)
    lengths[0] = length
    attention = (np.arange(length) < lengths[:, None]).astype(np.int64)
    return torch.tensor(ids), torch.tensor(attention), torch.tensor(rng.integers(0, 2, ids.shape))


def export(model: Logits, path: Path) -> None:
    """Write the graph, any number of sentences of any length."""
    batch, length = torch.export.Dim("batch_size"), torch.export.Dim("sequence_length", min=2, max=512)
    torch.onnx.export(
        model,
        sample(2, 9, model.model.config.vocab_size),
        path,
        input_names=list(INPUTS),
        output_names=["logits"],
        dynamic_shapes={name: {0: batch, 1: length} for name in INPUTS},
        dynamo=True,
        external_data=False,
    )


@torch.no_grad()
def difference(model: Logits, path: Path) -> float:
    """The largest difference of any logit that is not of padding, over all of ``SHAPES``."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    largest = 0.0
    for rows, length in SHAPES:
        tensors = sample(rows, length, model.model.config.vocab_size)
        given = {name: tensor.numpy() for name, tensor in zip(INPUTS, tensors, strict=True)}
        (served,) = session.run(["logits"], given)
        apart = np.abs(served - model(*tensors).numpy())[tensors[1].bool().numpy()]
        largest = max(largest, float(apart.max()))
    return largest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--model", default="bert-base-uncased")
    options = parser.parse_args()
    cache = Cache(options.cache.expanduser().absolute())
    with cache.locked(print), cache.workshop() as workshop:
        model = load(options.model)
        export(model, workshop / "model.onnx")
        AutoTokenizer.from_pretrained(options.model).backend_tokenizer.save(str(workshop / "tokenizer.json"))
        apart = difference(model, workshop / "model.onnx")
        print(f"largest difference of any logit from torch: {apart:.1e}")
        if not apart < TOLERANCE:
            sys.exit(f"over {TOLERANCE}: the graph is not the model, nothing was written")
        repository = CpuRepository(cache, HERE / "model")
        repository.assemble({"bert_base": workshop})
        print(repository.path)


if __name__ == "__main__":
    main()
