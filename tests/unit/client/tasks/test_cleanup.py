"""Decoded text is what transformers' own tokenizers make of the same tokens and files."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models
from transformers import AutoTokenizer

from trireme_extensions.tasks.checkpoint.texts import configured_tokenizer
from trireme_extensions.tasks.cleanup import clean_up, cleans_up
from trireme_extensions.tasks.text_to_text import TextToText

BERT = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    "it",
    "'",
    "s",
    "good",
    "##ness",
    ".",
    "don",
    "t",
    "do",
    "n't",
    ",",
    "yes",
    "!",
    "we",
    "ve",
    "##s",
    "?",
    "##.",
    "'m",
    "i",
]
T5 = [
    "<pad>",
    "</s>",
    "<unk>",
    "▁it",
    "▁'",
    "▁s",
    "▁good",
    "ness",
    "▁.",
    "▁do",
    "▁n't",
    "▁,",
    "▁yes",
    "▁!",
    "▁we",
    "▁'ve",
    "s",
    "▁?",
    "▁I",
    "▁'m",
    "▁'re",
]
FAST = {"tokenizer_class": "PreTrainedTokenizerFast"}
BPE_TOO = "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output"


def write(folder: Path, kind: str, **described: Any) -> list[str]:
    """Write a checkpoint's tokenizer, and return its words."""
    words = T5 if kind == "unigram" else BERT
    numbers = {word: number for number, word in enumerate(words)}
    if kind == "unigram":
        tokenizer = Tokenizer(models.Unigram([(word, -1.0) for word in words], unk_id=2))
        tokenizer.decoder = decoders.Metaspace()
    elif kind == "bpe":
        tokenizer = Tokenizer(models.BPE(numbers, []))
        tokenizer.decoder = decoders.WordPiece(cleanup=False)
    elif kind == "words":
        tokenizer = Tokenizer(models.WordLevel(numbers, "[UNK]"))
    else:
        tokenizer = Tokenizer(models.WordPiece(numbers, unk_token="[UNK]"))
        tokenizer.decoder = decoders.WordPiece(cleanup=kind == "cleaned")
    folder.mkdir(exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({**FAST, **described}))
    return words


def ours(folder: Path, task: str = "text2text-generation") -> Tokenizer:
    text = (folder / "tokenizer.json").read_text()
    return Tokenizer.from_str(configured_tokenizer(folder, {}, text, task))


@pytest.mark.parametrize("kind", ["pieces", "cleaned", "unigram", "words", "bpe"])
@pytest.mark.parametrize(
    "described",
    [{}, {"clean_up_tokenization_spaces": True}, {"clean_up_tokenization_spaces": True, BPE_TOO: True}],
)
def test_the_text_and_its_joined_parts_are_transformers(
    tmp_path: Path, kind: str, described: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = write(tmp_path, kind, **described)
    reference, tokenizer = AutoTokenizer.from_pretrained(tmp_path), ours(tmp_path)
    client = TextToText.__new__(TextToText)
    monkeypatch.setattr(client, "tokenizer", tokenizer, raising=False)
    monkeypatch.setattr(client, "cleans_up", cleans_up(tokenizer), raising=False)
    monkeypatch.setattr(client, "settings", client.options(task="text2text-generation"), raising=False)
    drawn = random.Random(1)
    for length in (1, 2, 3, 5, 8, 13) * 20:
        tokens = drawn.choices(range(3, len(words)), k=length)
        right = reference.decode(tokens)
        assert tokenizer.decode(tokens) == right
        monkeypatch.setattr(client, "generate", lambda _, tokens=tokens: iter(tokens), raising=False)
        parts = [*client.stream(client.payload(text="a"))]
        assert "".join(parts) == right
        assert len(parts) <= length
    if described and kind != "bpe":
        assert cleans_up(tokenizer) and not cleans_up(ours(tmp_path, "token-classification"))


def test_a_text_is_cleaned_up_as_transformers_does(tmp_path: Path) -> None:
    write(tmp_path, "words")
    reference, drawn = AutoTokenizer.from_pretrained(tmp_path), random.Random(2)
    pieces = ["it", "'", "s", "n't", ".", "?", "!", ",", "'m", "'ve", "'re", " ", "a"]
    for _ in range(500):
        text = "".join(drawn.choice([" ", ""]) + drawn.choice(pieces) for _ in range(8))
        assert clean_up(text) == reference.clean_up_tokenization(text)
