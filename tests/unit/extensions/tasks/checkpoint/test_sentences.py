"""Modules of sentence-transformers and prompts are applied, or refused with their name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from sm.errors import CommandError
from tests.support.task_models import load_task, write_text_model
from trireme_extensions.tasks.checkpoint.sentences import ACTIVATIONS, POOLINGS, sentences
from trireme_extensions.tasks.hugging_face import read_folder
from trireme_extensions.tasks.text import Layer, pooled

TANH = "torch.nn.modules.activation.Tanh"
DENSE = {"in_features": 6, "out_features": 3, "bias": True, "activation_function": TANH}
RNG = np.random.default_rng(2)
WEIGHT, BIAS = (RNG.standard_normal(shape).astype(np.float32) for shape in ((3, 6), (3,)))
MODULES = "sentence_transformers.models"


def write_modules(folder: Path, *kinds: str, pooling: Any = None, package: str = MODULES) -> Path:
    write_text_model(folder, "sentence-embeddings")
    modules = [
        {"idx": index, "path": f"{index}_{kind}" if index else "", "type": f"{package}.{kind}"}
        for index, kind in enumerate(("Transformer", *kinds))
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    for index, kind in enumerate(kinds, 1):
        path = folder / f"{index}_{kind}"
        path.mkdir()
        if kind == "Pooling":
            (path / "config.json").write_text(json.dumps(pooling or {"pooling_mode_mean_tokens": True}))
        if kind == "Dense":
            (path / "config.json").write_text(json.dumps(DENSE))
            save_file({"linear.weight": WEIGHT, "linear.bias": BIAS}, path / "model.safetensors")
    return folder


def vector(folder: Path, text: str, **parameters: Any) -> Any:
    options, files = sentences(folder)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    client = load_task(folder, task="sentence-embeddings", **options)
    payload = client.payload.model_validate({"text": text, "parameters": parameters})
    answer: Any = client.inference(payload)
    return np.array(answer["embedding"])


def test_a_dense_layer_is_applied_before_the_vector_is_normalised(tmp_path: Path) -> None:
    plain = vector(write_modules(tmp_path / "plain", "Pooling"), "ada lives")
    dense = vector(write_modules(tmp_path / "dense", "Pooling", "Dense", "Normalize"), "ada lives")
    expected = np.tanh(WEIGHT @ plain + BIAS)
    np.testing.assert_allclose(dense, expected / np.linalg.norm(expected), atol=1e-6)


@pytest.mark.parametrize(
    ("pooling", "expected"),
    [
        ({"pooling_mode_cls_token": True}, "cls"),
        ({"pooling_mode": "lasttoken"}, "last"),
        ({"pooling_mode_max_tokens": True, "pooling_mode_cls_token": True}, ["cls", "max"]),
        ({"pooling_mode": ["weightedmean", "mean"]}, ["weightedmean", "mean"]),
    ],
)
def test_several_poolings_are_joined_in_their_order(tmp_path: Path, pooling: Any, expected: Any) -> None:
    options, _ = sentences(write_modules(tmp_path / "model", "Pooling", pooling=pooling))
    assert options["pooling"] == expected
    size = 6 if isinstance(expected, str) else 12
    assert vector(write_modules(tmp_path / "other", "Pooling", pooling=pooling), "ada").shape == (size,)


def test_the_modules_say_the_task_and_its_options(tmp_path: Path) -> None:
    folder = write_modules(tmp_path / "model", "Pooling", "Normalize", pooling={"pooling_mode": "cls"})
    task = {"task": "sentence-embeddings", "pooling": "cls", "normalise": True}
    assert json.loads(read_folder(folder, "").files["task.json"]) == task


def write_prompts(folder: Path, **more: Any) -> Path:
    write_modules(folder, "Pooling", pooling={"pooling_mode": "mean", **more})
    prompts = {"prompts": {"query": "where ", "passage": ""}, "default_prompt_name": "query"}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    return folder


def test_a_prompt_goes_before_the_text_and_a_request_chooses_another(tmp_path: Path) -> None:
    plain = write_modules(tmp_path / "plain", "Pooling")
    prompted = write_prompts(tmp_path / "prompted")
    np.testing.assert_allclose(vector(prompted, "ada"), vector(plain, "where ada"))
    np.testing.assert_allclose(vector(prompted, "ada", prompt_name="passage"), vector(plain, "ada"))
    np.testing.assert_allclose(vector(prompted, "ada", prompt="paris "), vector(plain, "paris ada"))


def test_a_prompts_tokens_may_be_left_out_of_the_pooling(tmp_path: Path) -> None:
    # The tokens are embedded one by one here: what is left are the text's own and the last.
    without = vector(write_prompts(tmp_path / "without", include_prompt=False), "ada")
    plain = vector(write_modules(tmp_path / "plain", "Pooling"), "ada")
    assert not np.allclose(without, vector(write_prompts(tmp_path / "with"), "ada"))
    cls = vector(write_modules(tmp_path / "cls", "Pooling", pooling={"pooling_mode": "cls"}), "ada")
    np.testing.assert_allclose(without * 2, plain * 3 - cls, atol=1e-5)


#: The modules of a folder, its package if it is another one, a file with a field, and what the error names.
NOT_APPLIED: list[tuple[tuple[str, ...], str, dict[str, Any], str]] = [
    (("Pooling", "LSTM"), MODULES, {}, "LSTM"),
    (("WeightedLayerPooling", "Pooling"), MODULES, {}, "WeightedLayerPooling"),
    (("Pooling", "LayerNorm"), MODULES, {}, "LayerNorm"),  # without weights
    (("Dense",), MODULES, {}, "Dense"),
    ((), MODULES, {}, "Pooling"),
    (("Pooling",), "custom_st", {}, "custom_st"),
    (("Pooling",), MODULES, {"config_sentence_transformers.json": {"default_prompt_name": "q"}}, "default_prompt_name"),
    (("Pooling",), MODULES, {"config_sentence_transformers.json": {"truncate_dim": 64}}, "truncate_dim"),
    (("Pooling",), MODULES, {"sentence_bert_config.json": {"transformer_task": "text-generation"}}, "transformer_task"),
    (("Pooling",), MODULES, {"sentence_bert_config.json": {"tokenizer_args": {"use_fast": False}}}, "tokenizer_args"),
    (("Pooling",), MODULES, {"sentence_roberta_config.json": {"query_length": 32}}, "query_length"),
    (("Pooling",), MODULES, {"1_Pooling/config.json": {"pooling_mode": "attention"}}, "pooling_mode"),
]  # fmt: skip


@pytest.mark.parametrize(("kinds", "package", "files", "named"), NOT_APPLIED)
def test_what_is_not_applied_is_refused(
    tmp_path: Path, kinds: Any, package: str, files: Any, named: str
) -> None:
    folder = write_modules(tmp_path / "model", *kinds, package=package)
    for file, fields in files.items():
        (folder / file).write_text(json.dumps(fields))
    with pytest.raises(CommandError, match=named):
        sentences(folder)


PUBLISHED: dict[str, Any] = json.loads(Path(__file__).with_name("sentence_answers.json").read_text())


@pytest.mark.parametrize("name", PUBLISHED["answers"])
def test_a_pooling_or_layer_is_sentence_transformers_own(tmp_path: Path, name: str) -> None:
    """The vectors were written with the modules of sentence-transformers 6.2.0 and torch 2.13.0."""
    tokens = np.array(PUBLISHED["tokens"], np.float32)
    if " " in name:
        modes, skipped = name.split()
        own: Any = [POOLINGS[mode] for mode in modes.split("+")]
        answer = np.concatenate([pooled(mode, tokens, int(skipped)) for mode in own])
    else:
        is_norm = name == "LayerNorm"
        kinds = ("scale", "shift") if is_norm else ("weight", "bias")
        client: Any = load_task(write_modules(tmp_path / "model", "Pooling"), task="sentence-embeddings")
        client.arrays = {
            f"a.{part}": np.array(PUBLISHED[kind], np.float32)
            for part, kind in zip(("weight", "bias"), kinds, strict=True)
        }
        activation = ACTIVATIONS.get(name, "none")
        layer = Layer(kind="layernorm" if is_norm else "dense", name="a", activation=activation)
        answer = client.apply(layer, tokens[0])
    np.testing.assert_allclose(answer, PUBLISHED["answers"][name], atol=1e-6)
