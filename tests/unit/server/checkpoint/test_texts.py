"""Tokens, padding and lengths are those of transformers' own tokenizers, loaded from the same files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import AutoTokenizer

from sm.client.tasks.text import Padding
from sm.errors import CommandError
from sm.server.checkpoint.texts import configured_tokenizer, max_length

WORDS = "where ada lives in paris Ada <s> </s> <pad> ##s [UNK] [CLS] [SEP] [PAD] [MASK]"
TEXTS = ["ada", "Ada lives in paris", "paris", "wé <new> lives"]


def write_tokenizer(folder: Path, bert: bool = False) -> None:
    vocabulary = {word: index for index, word in enumerate(WORDS.split())}
    if bert:
        tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
        tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        tokenizer.post_processor = processors.BertProcessing(("[SEP]", 12), ("[CLS]", 11))
        tokenizer.add_special_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])
    else:
        tokenizer = Tokenizer(models.WordLevel(vocabulary, "where"))
        tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        tokenizer.add_special_tokens(["<s>", "</s>", "<pad>"])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))


BERT = {"tokenizer_class": "BertTokenizer"}
FAST = {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "<pad>"}


@pytest.mark.parametrize(
    ("described", "special"),
    [
        (BERT, {}),
        ({**BERT, "do_lower_case": False}, {}),
        ({**BERT, "padding_side": "left", "truncation_side": "left"}, {}),
        (FAST, {}),
        ({**FAST, "pad_token": {"content": "<pad>", "__type": "AddedToken"}}, {}),
        ({"tokenizer_class": "PreTrainedTokenizerFast"}, {"pad_token": "</s>"}),
        ({**FAST, "pad_token": "<new>"}, {}),
        ({**FAST, "padding_side": "left"}, {}),
        ({**FAST, "bos_token": "<s>", "eos_token": "</s>", "add_bos_token": True}, {}),
        ({**FAST, "extra_special_tokens": ["<new>"]}, {}),
        ({**FAST, "added_tokens_decoder": {"15": {"content": "<new>", "special": True}}}, {}),
    ],
)
def test_a_batch_is_what_transformers_makes_of_it(tmp_path: Path, described: Any, special: Any) -> None:
    write_tokenizer(tmp_path, bert=described["tokenizer_class"] == "BertTokenizer")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(described))
    (tmp_path / "special_tokens_map.json").write_text(json.dumps(special))
    written = configured_tokenizer(tmp_path, {}, (tmp_path / "tokenizer.json").read_text())

    reference = AutoTokenizer.from_pretrained(tmp_path)
    expected = reference(TEXTS, padding=True, max_length=3, truncation=True)
    ours = Tokenizer.from_str(written)
    padding = Padding.of(ours)
    assert padding.token == reference.pad_token_id
    ours.no_padding()
    ours.enable_truncation(3, direction=(ours.truncation or {}).get("direction", "right"))
    rows = ours.encode_batch(TEXTS)
    length = max(len(row.ids) for row in rows)
    for row, ids, mask in zip(rows, expected["input_ids"], expected["attention_mask"], strict=True):
        own = padding.own(len(row.ids), length)
        assert ids[own] == row.ids
        assert [index for index, counts in enumerate(mask) if counts] == [*range(length)][own]
        assert {*ids[: own.start], *ids[own.stop :]} <= {padding.token}


@pytest.mark.parametrize(
    "described", [{"split_special_tokens": True}, {"added_tokens_decoder": {"3": {"content": "ada"}}}]
)
def test_what_a_tokenizer_cannot_do_is_refused(tmp_path: Path, described: dict[str, Any]) -> None:
    write_tokenizer(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(described))
    with pytest.raises(CommandError, match="tokenizer_config.json"):
        configured_tokenizer(tmp_path, {}, (tmp_path / "tokenizer.json").read_text())


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"model_type": "bert", "max_position_embeddings": 512}, 512),
        ({"model_type": "roberta", "max_position_embeddings": 514, "pad_token_id": 1}, 512),
        ({"model_type": "xlm-roberta", "max_position_embeddings": 514}, 512),
        ({"model_type": "esm", "max_position_embeddings": 1026, "pad_token_id": 1}, 1024),
        ({"model_type": "roberta", "max_position_embeddings": 40, "pad_token_id": 0}, 39),
        ({"model_type": "gpt2", "n_positions": 1024}, 1024),
        ({"model_type": "led", "max_encoder_position_embeddings": 16384}, 16384),
        ({"model_type": "t5", "n_positions": 512}, None),
        ({"model_type": "bert"}, None),
    ],
)
def test_a_text_has_as_many_tokens_as_positions(tmp_path: Path, config: Any, expected: int | None) -> None:
    assert max_length(tmp_path, config).get("max_length") == expected
    (tmp_path / "tokenizer_config.json").write_text('{"model_max_length": 30}')
    assert max_length(tmp_path, config) == {"max_length": 30}
    (tmp_path / "sentence_xlm-roberta_config.json").write_text('{"max_seq_length": 25}')
    assert max_length(tmp_path, config) == {"max_length": 25}
    (tmp_path / "sentence_bert_config.json").write_text('{"max_seq_length": 20}')
    assert max_length(tmp_path, config) == {"max_length": 20}
