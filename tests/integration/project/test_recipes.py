"""The commands of docs/clients/recipes.md are run as written and give the answers that the page shows.

The recipe that needs PyTorch has a test of its own, as that is a gigabyte.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sm.commands.golden import differences
from sm.settings import HERE
from tests.support.box_fixture import Boxes
from tests.support.boxes import free_port
from tests.support.pages import code_blocks, run_commands
from tests.support.toolkit_libraries import EXPORT

PAGE = "clients/recipes.md"
TEXT = "a good film"
#: Writes a checkpoint as a team may have one: a classifier of two labels with random weights, and its tokenizer.
#: Prints the logits that PyTorch gives.
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
ids = torch.tensor([tokenizer.encode(text).ids])
with torch.inference_mode():
    print(json.dumps(model(ids, attention_mask=torch.ones_like(ids)).logits[0].tolist()))
"""
#: The client, to be completed with the page's line for the tokenizer.
CLIENT = """
import numpy as np
from tokenizers import Tokenizer

from sm.client import TensorClient, TextPayload


class Sentiment(TensorClient):
    model, payload = "sentiment", TextPayload

    def setup(self):
        self.tokenizer = {tokenizer}

    def preprocess(self, payload):
        encoded = self.tokenizer.encode(payload.text)
        rows = (encoded.ids, encoded.attention_mask, encoded.type_ids)
        names = ("input_ids", "attention_mask", "token_type_ids")
        return {{name: np.array(row, np.int64) for name, row in zip(names, rows)}}

    def postprocess(self, outputs, payload):
        return outputs["logits"].tolist()
"""


@pytest.mark.exhaustive
def test_the_recipes_are_built_and_served_as_the_page_says(tmp_path: Path) -> None:
    (tmp_path / ".venv").symlink_to(HERE / ".venv")
    answers = run_commands("\n".join(code_blocks(PAGE)), tmp_path, free_port())
    expected = [json.loads(line) for line in code_blocks(PAGE, "json")[0].splitlines()]
    assert len(expected) == 6
    assert list(differences(answers, expected)) == []


@pytest.mark.exhaustive
def test_a_checkpoint_of_hugging_face_is_built_and_served_as_the_page_says(
    boxes: Boxes, tmp_path: Path
) -> None:
    install, *commands = next(
        block for block in code_blocks(PAGE, "text") if "./my-checkpoint" in block
    ).splitlines()
    packages = {line.partition("==")[0] for line in EXPORT.requirements_text.splitlines()}
    assert install == f"pip install {' '.join(install.split()[2:])}"
    assert set(install.split()[2:]) == packages
    (tmp_path / "make.py").write_text(MAKE_CHECKPOINT)
    expected = json.loads(EXPORT.run(tmp_path / "make.py", tmp_path / "my-checkpoint", TEXT).splitlines()[-1])
    (tmp_path / "bin").mkdir()
    EXPORT.write_sm(tmp_path / "bin" / "sm")
    path = f"{tmp_path / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    completed = subprocess.run(
        ["bash", "-euc", "\n".join(commands)],
        cwd=tmp_path,
        env={**os.environ, "PATH": path, "PYTHONPATH": str(HERE)},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert completed.returncode == 0, completed.stderr
    page = (HERE / "docs" / PAGE).read_text()
    tokenizer = re.findall(r"`tokenizers\.(Tokenizer\.from_file\(.*?\))`", page)
    (tmp_path / "clients").mkdir()
    (tmp_path / "clients" / "sentiment.py").write_text(CLIENT.format(tokenizer=tokenizer[0]))
    box = boxes(tmp_path / "model", (tmp_path / "clients",))
    response = box.invoke("sentiment", {"text": TEXT}).json()
    assert response["result"] == pytest.approx(expected, abs=1e-4), response
