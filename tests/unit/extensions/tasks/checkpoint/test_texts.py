"""Tokens, padding and lengths are those of transformers' own tokenizers, loaded from the same files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import AutoTokenizer

from sm.client.texts import Padding
from sm.errors import CommandError
from trireme_extensions.tasks.checkpoint.files import fields_of
from trireme_extensions.tasks.checkpoint.texts import configured_tokenizer, max_length

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


#: A value for each field that the page calls without effect, unlike its default.
UNUSED = {
    "add_bos_token": True,
    "add_eos_token": True,
    "auto_map": {"AutoTokenizer": [None, "tokenizing.Own"]},
    "backend": "tokenizers",
    "chat_control_tokens": ["ada"],
    "chat_template": "{{ messages }}",
    "files_loaded": ["vocab.txt"],
    "fix_mistral_regex": True,
    "legacy": False,
    "max_length": 4,
    "model_input_names": ["input_ids"],
    "name_or_path": "owner/name",
    "pad_to_multiple_of": 8,
    "processor_class": "Processor",
    "response_schema": {},
    "response_template": {},
    "special_tokens_map_file": "special_tokens_map.json",
    "stride": 2,
    "tokenizer_file": "tokenizer.json",
    "truncation_strategy": "only_first",
    "verbose": False,
}
#: A class reads the file that it wrote, so the class itself is not to be tried with another's file.
TRIED_ELSEWHERE = {"tokenizer_class"}
ROBERTA = {"tokenizer_class": "RobertaTokenizer"}


def write_byte_level(folder: Path) -> None:
    """Write a tokenizer as RoBERTa's."""
    words = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    merges = [("i", "t"), ("Ġ", "it"), ("Ġ", "s")]
    words += ["".join(pair) for pair in merges]
    tokenizer = Tokenizer(models.BPE({word: number for number, word in enumerate(words)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
    tokenizer.add_special_tokens(words[:5])
    tokenizer.save(str(folder / "tokenizer.json"))


def tokens(folder: Path, described: dict[str, Any]) -> tuple[Any, Any]:
    """Return the tokens of texts by transformers and by us, and what they decode to."""
    (folder / "tokenizer_config.json").write_text(json.dumps(described))
    texts = ["it s it", "ada lives in paris", "wé"]
    reference = AutoTokenizer.from_pretrained(folder)
    ids = [reference(text, truncation=True, max_length=5)["input_ids"] for text in texts]
    text = (folder / "tokenizer.json").read_text()
    ours = Tokenizer.from_str(configured_tokenizer(folder, {}, text, "fill-mask"))
    ours.no_padding()
    ours.enable_truncation(5)
    own = [encoding.ids for encoding in ours.encode_batch(texts)]
    return [ids, [reference.decode(row) for row in ids]], [
        own,
        [ours.decode(row, skip_special_tokens=False) for row in own],
    ]


@pytest.mark.parametrize("field", sorted({*fields_of("tokenizer")} - TRIED_ELSEWHERE))
def test_a_field_that_is_called_without_effect_has_none_in_transformers(tmp_path: Path, field: str) -> None:
    if fields_of("tokenizer")[field].effect != "without effect":
        return
    for write, described in ((write_byte_level, ROBERTA), (write_tokenizer, FAST)):
        write(tmp_path)
        theirs, ours = tokens(tmp_path, described)
        assert tokens(tmp_path, {**described, field: UNUSED[field]}) == (theirs, ours)
        assert theirs == ours


@pytest.mark.parametrize("kind", ["RobertaTokenizer", "GPT2TokenizerFast", "PreTrainedTokenizerFast"])
@pytest.mark.parametrize("spaced", [True, False])
def test_the_space_before_a_text_is_that_of_transformers(tmp_path: Path, kind: str, spaced: bool) -> None:
    write_byte_level(tmp_path)
    theirs, ours = tokens(tmp_path, {"tokenizer_class": kind, "add_prefix_space": spaced})
    assert theirs == ours


@pytest.mark.parametrize("spaced", [True, False])
def test_the_mark_of_a_space_before_a_text_is_that_of_transformers(tmp_path: Path, spaced: bool) -> None:
    words = ["<s>", "<pad>", "</s>", "<unk>", "▁it", "▁s", "it", "s", "▁", "<mask>"]
    tokenizer = Tokenizer(models.Unigram([(word, -1.0) for word in words], unk_id=3))
    steps = [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.add_special_tokens([*words[:4], "<mask>"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    described = {"tokenizer_class": "CamembertTokenizer", "add_prefix_space": spaced}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(described))
    reference = AutoTokenizer.from_pretrained(tmp_path)
    ours = Tokenizer.from_str(configured_tokenizer(tmp_path, {}, (tmp_path / "tokenizer.json").read_text()))
    for text in ("it s it", "s"):
        assert ours.encode(text, add_special_tokens=False).tokens == reference.tokenize(text)
