"""Which files of a repository of the hub are fetched."""

from __future__ import annotations

import pytest

from trireme_extensions.tasks.hub import checkpoint_files

DESCRIPTIONS = ["config.json", "1_Pooling/config.json", "vocab.txt"]
#: Other variants of the graph, other formats, code and pickles.
OTHERS = [
    *("onnx/model_int8.onnx", "onnx/model_fp16.onnx", "onnx/model_fp16.onnx_data", "model_quantized.onnx"),
    *("onnx/decoder_model_merged.onnx", "onnx/decoder_with_past_model.onnx", "openvino/openvino_model.bin"),
    *("pytorch_model.bin", "tf_model.h5", "modeling.py", "README.md", "model_optimized.onnx"),
]


@pytest.mark.parametrize(
    ("present", "chosen"),
    [
        (["model.onnx"], ["model.onnx"]),
        (["onnx/model.onnx", "onnx/model.onnx_data"], ["onnx/model.onnx", "onnx/model.onnx_data"]),
        (["onnx/model.onnx", "onnx/model.onnx.data"], ["onnx/model.onnx", "onnx/model.onnx.data"]),
        (["model.onnx", "model.onnx_data", "model.onnx_data_1"], None),
        (["model.onnx", "onnx/model.onnx", "onnx/model.onnx_data"], ["model.onnx"]),
        (["model.onnx", "model.safetensors"], ["model.onnx"]),
        (["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"], None),
        (["onnx/encoder_model.onnx", "onnx/decoder_model.onnx", "onnx/decoder_model.onnx_data"], None),
        (["encoder_model.onnx", "model.safetensors"], ["model.safetensors"]),
    ],
)
def test_one_variant_of_a_graph_is_fetched(present: list[str], chosen: list[str] | None) -> None:
    names = [*DESCRIPTIONS, *OTHERS, *present]
    assert checkpoint_files(names) == [*DESCRIPTIONS, *(present if chosen is None else chosen)]
