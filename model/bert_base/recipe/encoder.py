"""A BERT encoder in plain torch, its weights read from an ONNX export, with low-rank adapters.

The ONNX file's matrices carry no names (``onnx::MatMul_1525``): each is found by the bias that the
following Add uses, which does. They are stored [in, out]; so are the adapters' products.
"""

import math
from pathlib import Path

import numpy as np
import onnx
import torch
import torch.nn.functional as functional
from onnx import numpy_helper
from torch import Tensor, nn

HIDDEN, HEADS, LAYERS, EPSILON = 384, 12, 12, 1e-12

#: The six matrices of a layer, by the name of their bias.
MATRICES = (
    "attention.self.query",
    "attention.self.key",
    "attention.self.value",
    "attention.output.dense",
    "intermediate.dense",
    "output.dense",
)


def onnx_weights(path: Path) -> dict[str, np.ndarray]:
    """Every named weight of the export, plus each MatMul's matrix under ``<bias name>.weight``."""
    graph = onnx.load(path).graph
    weights = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    products = {node.output[0]: node for node in graph.node if node.op_type == "MatMul"}
    for node in graph.node:
        if node.op_type != "Add":
            continue
        bias = next((name for name in node.input if name.endswith(".bias")), None)
        product = next((products[name] for name in node.input if name in products), None)
        if bias and product:
            weights[bias.removesuffix("bias") + "weight"] = weights[product.input[1]]
    return weights


class AdaptedLinear(nn.Module):
    """``x @ (W + down @ up) + b`` with W and b frozen; W is [in, out]."""

    def __init__(self, weight: np.ndarray, bias: np.ndarray, rank: int) -> None:
        super().__init__()
        self.register_buffer("weight", torch.tensor(weight))
        self.register_buffer("bias", torch.tensor(bias))
        self.down = nn.Parameter(torch.randn(weight.shape[0], rank) / math.sqrt(weight.shape[0]))
        self.up = nn.Parameter(torch.zeros(rank, weight.shape[1]))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight + self.bias + (x @ self.down) @ self.up


class Norm(nn.Module):
    """The encoder's layer norm, frozen."""

    def __init__(self, weight: np.ndarray, bias: np.ndarray) -> None:
        super().__init__()
        self.register_buffer("weight", torch.tensor(weight))
        self.register_buffer("bias", torch.tensor(bias))

    def forward(self, x: Tensor) -> Tensor:
        return functional.layer_norm(x, (HIDDEN,), self.weight, self.bias, EPSILON)


class Layer(nn.Module):
    """One transformer layer, post-norm, GELU by erf as the original has it."""

    def __init__(self, weights: dict[str, np.ndarray], prefix: str, rank: int) -> None:
        super().__init__()
        names = [f"{prefix}.{name}" for name in MATRICES]
        linears = [AdaptedLinear(weights[f"{n}.weight"], weights[f"{n}.bias"], rank) for n in names]
        self.query, self.key, self.value, self.attended, self.widen, self.narrow = linears
        self.first = Norm(*_norm(weights, f"{prefix}.attention.output.LayerNorm"))
        self.second = Norm(*_norm(weights, f"{prefix}.output.LayerNorm"))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        heads = [_split(project(x)) for project in (self.query, self.key, self.value)]
        mixed = functional.scaled_dot_product_attention(*heads, attn_mask=mask)
        x = self.first(x + self.attended(mixed.transpose(1, 2).flatten(2)))
        return self.second(x + self.narrow(functional.gelu(self.widen(x))))


class MaskedLanguageModel(nn.Module):
    """Encoder, transform and a decoder tied to the (adapted) word embeddings.

    ``forward`` takes int64 ``input_ids`` and ``attention_mask`` [b, s] and a bool ``wanted`` [b, s];
    it returns the logits float32 [n, vocabulary] of the wanted places alone.
    """

    def __init__(self, weights: dict[str, np.ndarray], rank: int, embedding_rank: int) -> None:
        super().__init__()
        embeddings = weights["embeddings.word_embeddings.weight"]
        places = weights["embeddings.position_embeddings.weight"]
        kind = weights["embeddings.token_type_embeddings.weight"][0]
        self.register_buffer("words", torch.tensor(embeddings))
        self.register_buffer("places", torch.tensor(places + kind))
        self.word_down = nn.Parameter(torch.zeros(embeddings.shape[0], embedding_rank))
        self.word_up = nn.Parameter(torch.randn(embedding_rank, HIDDEN) / math.sqrt(HIDDEN))
        self.norm = Norm(*_norm(weights, "embeddings.LayerNorm"))
        self.layers = nn.ModuleList(Layer(weights, f"encoder.layer.{i}", rank) for i in range(LAYERS))
        self.transform = nn.Linear(HIDDEN, HIDDEN)
        self.transform_norm = nn.LayerNorm(HIDDEN, eps=EPSILON)
        self.output_bias = nn.Parameter(torch.zeros(embeddings.shape[0]))

    def forward(self, input_ids: Tensor, attention_mask: Tensor, wanted: Tensor) -> Tensor:
        words = functional.embedding(input_ids, self.words)
        words = words + functional.embedding(input_ids, self.word_down) @ self.word_up
        x = self.norm(words + self.places[: input_ids.shape[1]])
        mask = attention_mask[:, None, None, :].bool()
        for layer in self.layers:
            x = layer(x, mask)
        x = self.transform_norm(functional.gelu(self.transform(x[wanted])))
        return x @ self.words.T + (x @ self.word_up.T) @ self.word_down.T + self.output_bias


def _norm(weights: dict[str, np.ndarray], name: str) -> tuple[np.ndarray, np.ndarray]:
    return weights[f"{name}.weight"], weights[f"{name}.bias"]


def _split(x: Tensor) -> Tensor:
    batch, length, _ = x.shape
    return x.view(batch, length, HEADS, HIDDEN // HEADS).transpose(1, 2)
