"""The commands of the pages of recipes and of pipelines are run as written and give the answers that they show.

The recipe that needs PyTorch has a test of its own, as that is a gigabyte.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from sm.commands.golden import differences
from sm.settings import HERE
from tests.support.boxes import free_port
from tests.support.pages import code_block, code_blocks, run_commands
from tests.support.toolkit_libraries import EXPORT
from trireme_extensions.convert.graph_runner import session

PAGE = "clients/recipes.md"
#: Writes a checkpoint as a team may have one: a classifier of two labels with random weights, and its tokenizer.
#: Prints its inputs and the logits that PyTorch gives.
MAKE_CHECKPOINT = """
import json, sys
from pathlib import Path
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import BertConfig, BertForSequenceClassification

folder, text = Path(sys.argv[1]), sys.argv[2]
words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "good", "bad", "film"]
vocabulary = {word: number for number, word in enumerate(words)}
tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
marks = [("[CLS]", 2), ("[SEP]", 3)]
tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=marks)
torch.manual_seed(1)
config = BertConfig(
    vocab_size=len(words), hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
    intermediate_size=32, num_labels=2, initializer_range=0.5,
)
model = BertForSequenceClassification(config).eval()
model.save_pretrained(folder)
tokenizer.save(str(folder / "tokenizer.json"))
ids = tokenizer.encode(text).ids
inputs = {"input_ids": ids, "attention_mask": [1] * len(ids), "token_type_ids": [0] * len(ids)}
with torch.inference_mode():
    logits = model(**{name: torch.tensor([row]) for name, row in inputs.items()}).logits[0]
print(json.dumps([inputs, logits.tolist()]))
"""


@pytest.mark.exhaustive
@pytest.mark.parametrize(("page", "count"), [(PAGE, 6), ("clients/pipelines.md", 3)])
def test_models_are_built_and_served_as_the_page_says(tmp_path: Path, page: str, count: int) -> None:
    (tmp_path / ".venv").symlink_to(HERE / ".venv")
    answers = run_commands("\n".join(code_blocks(page)), tmp_path, free_port())
    expected = [json.loads(line) for line in code_blocks(page, "json")[0].splitlines()]
    assert len(expected) == count
    assert list(differences(answers, expected)) == []
    # The flowchart of a page that draws one.
    assert [file.read_text() for file in tmp_path.glob("*.mmd")] == code_blocks(page, "mermaid")


@pytest.mark.exhaustive
def test_a_checkpoint_of_hugging_face_is_built_as_the_page_says(tmp_path: Path) -> None:
    install, *commands = code_block(PAGE, "text", "./my-checkpoint").splitlines()
    packages = {line.partition("==")[0] for line in EXPORT.requirements_text.splitlines()}
    assert set(install.removeprefix("pip install ").split()) == packages
    (tmp_path / "make.py").write_text(MAKE_CHECKPOINT)
    printed = EXPORT.run(tmp_path / "make.py", tmp_path / "my-checkpoint", "a good film")
    inputs, expected = json.loads(printed.splitlines()[-1])
    EXPORT.write_sm(tmp_path / "sm")
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(HERE)}
    command = ["bash", "-euc", "\n".join(commands)]
    subprocess.run(command, cwd=tmp_path, env=environment, check=True, timeout=240)
    model = session(tmp_path / "model" / "sentiment" / "1" / "model.onnx")
    (logits,) = model.run(["logits"], {name: np.array([row]) for name, row in inputs.items()})
    assert logits[0].tolist() == pytest.approx(expected, abs=1e-4)
