"""Read what a checkpoint says of its texts: their length, their tokens, and what pads them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, normalizers

from sm.errors import CommandError
from trireme_extensions.tasks.checkpoint.files import fields_of, read_object, read_table, refuse
from trireme_extensions.tasks.checkpoint.sentences import transformer
from trireme_extensions.tasks.cleanup import add_clean_up

#: Transformers writes a number beyond this if a tokenizer has no limit.
NO_LIMIT = 10**9
#: The padding token of a model whose positions begin behind it, if ``config.json`` does not say it.
OFFSET_PADDING = 1
#: The classes of no model's own, which change nothing in ``tokenizer.json``.
GENERIC_CLASSES = frozenset({"", "PreTrained", "TokenizersBackend"})
#: The tasks whose answers are decoded tokens. (Labelled words are joined, and never cleaned up.)
DECODING_TASKS = frozenset({"fill-mask", "text2text-generation"})
CLEAN_UP = "clean_up_tokenization_spaces"
#: In the order in which transformers adds them.
SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


def max_length(folder: Path, config: Mapping[str, Any]) -> dict[str, int]:
    """Return the option with the most tokens of a text; none if no file limits it."""
    lengths = [
        transformer(folder)[1].get("max_seq_length"),
        *map(read_object(folder / "tokenizer_config.json").get, ("model_max_length", "max_len")),
        positions(config),
    ]
    known = [int(length) for length in lengths if length and 0 < length < NO_LIMIT]
    return {"max_length": min(known)} if known else {}


def positions(config: Mapping[str, Any]) -> int | None:
    """Return how many tokens have a position in a model; None if any number has."""
    kind, known = config.get("model_type"), read_table("types")["positions"]
    if kind in known["relative"]:
        return None
    found = next((config[name] for name in known["fields"] if config.get(name)), None)
    if found is None or kind not in known["offset"]:
        return found
    padding = config.get("pad_token_id")
    return int(found) - (OFFSET_PADDING if padding is None else int(padding)) - 1


def configured_tokenizer(folder: Path, config: Mapping[str, Any], text: str, task: str = "") -> str:
    """Return ``tokenizer.json`` with what the files beside it say of its tokens.

    Args:
        task: What the model does: only some tasks decode tokens.
        folder: A folder with ``tokenizer_config.json`` and ``special_tokens_map.json``, or without.
        config: The model's ``config.json``.
        text: Its ``tokenizer.json``.

    Raises:
        CommandError: The files ask for what is not obeyed, or contradict each other.
    """
    path = folder / "tokenizer_config.json"
    described = {**read_object(folder / "special_tokens_map.json"), **read_object(path)}
    refuse(path, described, fields_of("tokenizer"))
    described = {**read_table("types")["tokenizers"].get(_kind(described), {}), **described}
    tokenizer = Tokenizer.from_str(_normalised(text, described))
    if transformer(folder)[1].get("do_lower_case"):
        before = [] if tokenizer.normalizer is None else [tokenizer.normalizer]
        tokenizer.normalizer = normalizers.Sequence([normalizers.Lowercase(), *before])
    _add_tokens(path, tokenizer, described)
    padding = _padding(tokenizer, config, described)
    if padding is not None:
        tokenizer.enable_padding(**padding)
    side = described.get("truncation_side")
    if side:
        length = (tokenizer.truncation or {}).get("max_length", 512)  # the task's own counts
        tokenizer.enable_truncation(length, direction=side)
    if task in DECODING_TASKS and described.get(CLEAN_UP) and _may_clean_up(tokenizer, described):
        add_clean_up(tokenizer)
    written: str = tokenizer.to_str()
    return written


def _may_clean_up(tokenizer: Tokenizer, described: Mapping[str, Any]) -> bool:
    """True unless the tokenizer is of BPE: its spaces are the text's own, and transformers 5 keeps them."""
    is_bpe = type(tokenizer.model).__name__ == "BPE"
    return not is_bpe or bool(described.get(f"{CLEAN_UP}_for_bpe_even_though_it_will_corrupt_output"))


def _normalised(text: str, described: Mapping[str, Any]) -> str:
    """Set what transformers' tokenizers of a model set in ``tokenizer.json`` when they are loaded."""
    try:
        content = json.loads(text)
    except ValueError as error:
        raise CommandError(f"tokenizer.json is not JSON: {error}.") from None
    if not isinstance(content, dict):
        return text
    normalizer = content.get("normalizer")
    if isinstance(normalizer, dict) and normalizer.get("type") == "BertNormalizer":
        names = {
            "lowercase": "do_lower_case",
            "strip_accents": "strip_accents",
            "handle_chinese_chars": "tokenize_chinese_chars",
        }
        normalizer.update({own: described[name] for own, name in names.items() if name in described})
    spaced = described.get("add_prefix_space")
    if spaced is not None and _kind(described) not in GENERIC_CLASSES:
        _set_prefix_space(content, bool(spaced))
    return json.dumps(content, ensure_ascii=False)


def _kind(described: Mapping[str, Any]) -> str:
    """Return the model that a tokenizer's class is for: ``Roberta``."""
    return str(described.get("tokenizer_class", "")).removesuffix("Fast").removesuffix("Tokenizer")


def _set_prefix_space(content: dict[str, Any], spaced: bool) -> None:
    """Say whether a text's first word is one that follows a space."""
    own = content.get("pre_tokenizer") or {}
    for step in own.get("pretokenizers", [own]):
        if step.get("type") == "ByteLevel":
            step["add_prefix_space"] = spaced
        elif step.get("type") == "Metaspace" and spaced == (step.get("prepend_scheme") == "never"):
            step["prepend_scheme"] = "always" if spaced else "never"
    normalizer = content.get("normalizer") or {}
    if not spaced and (steps := normalizer.get("normalizers")):
        normalizer["normalizers"] = [step for step in steps if step.get("type") != "Prepend"]


def _content(token: Any) -> str:
    """Return the text of a token, which a file may describe by its fields."""
    return str(token.get("content") if isinstance(token, dict) else token)


def _added(token: Any) -> AddedToken:
    """Return a token as the tokenizer takes it."""
    names = ("single_word", "lstrip", "rstrip", "normalized")
    fields = {name: token[name] for name in names if name in token} if isinstance(token, dict) else {}
    return AddedToken(_content(token), special=True, **fields)


def _add_tokens(path: Path, tokenizer: Tokenizer, described: Mapping[str, Any]) -> None:
    """Add the tokens that the files name and ``tokenizer.json`` lacks, in transformers' order."""
    numbered = described.get("added_tokens_decoder") or {}
    extra = [
        token
        for name in ("extra_special_tokens", "additional_special_tokens", "model_specific_special_tokens")
        for token in _listed(described.get(name))
    ]
    named = [described[name] for name in SPECIAL_TOKENS if described.get(name)]
    for token in (*(numbered[key] for key in sorted(numbered, key=int)), *named, *extra):
        if tokenizer.token_to_id(_content(token)) is None:
            tokenizer.add_tokens([_added(token)])
    for key, token in numbered.items():
        found = tokenizer.token_to_id(_content(token))
        if found != int(key):
            raise CommandError(
                f"{path}: the token {_content(token)!r} is number {key}, but {found} in tokenizer.json: "
                "save both files with save_pretrained() of one tokenizer."
            )


def _listed(tokens: Any) -> list[Any]:
    return list(tokens.values()) if isinstance(tokens, dict) else list(tokens or ())


def _padding(
    tokenizer: Tokenizer, config: Mapping[str, Any], described: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Return what pads a text: the model's own token first, as its graph may look for that one."""
    found = tokenizer.padding or {}
    number = config.get("pad_token_id")
    token = _content(described["pad_token"]) if described.get("pad_token") else None
    if isinstance(number, int) and number >= 0 and tokenizer.id_to_token(number) is not None:
        token = tokenizer.id_to_token(number)
    elif token is not None:
        number = tokenizer.token_to_id(token)
    elif found:
        number, token = found["pad_id"], found["pad_token"]
    else:
        return None
    return {
        "direction": described.get("padding_side") or found.get("direction") or "right",
        "pad_id": number,
        "pad_token": token,
        "pad_type_id": described.get("pad_token_type_id", found.get("pad_type_id", 0)),
    }
