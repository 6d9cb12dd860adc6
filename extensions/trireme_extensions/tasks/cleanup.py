"""Remove the spaces that decoding leaves before marks and endings, where a checkpoint asks for it."""

from __future__ import annotations

import json

from tokenizers import Tokenizer, decoders

#: The texts that ``clean_up_tokenization`` of transformers 5.23's tokenizers replaces, in its order.
REPLACEMENTS = (
    (" .", "."),
    (" ?", "?"),
    (" !", "!"),
    (" ,", ","),
    (" ' ", "'"),
    (" n't", "n't"),
    (" 'm", "'m"),
    (" 's", "'s"),
    (" 've", "'ve"),
    (" 're", "'re"),
)
#: Begins no token: without a decoder, tokenizers join tokens by spaces, as this one does.
NO_PREFIX = "\0"


def clean_up(text: str) -> str:
    """Return a decoded text without the spaces."""
    for before, after in REPLACEMENTS:
        text = text.replace(before, after)
    return text


def add_clean_up(tokenizer: Tokenizer) -> None:
    """Make a tokenizer's decoder clean up what it decodes."""
    own = tokenizer.decoder or decoders.WordPiece(prefix=NO_PREFIX, cleanup=False)
    replaced = (decoders.Replace(before, after) for before, after in REPLACEMENTS)
    tokenizer.decoder = decoders.Sequence([own, decoders.Fuse(), *replaced])


def cleans_up(tokenizer: Tokenizer) -> bool:
    """True if the tokenizer's decoder cleans up: a later token may change the end of a text then."""
    if tokenizer.decoder is None:
        return False
    steps = json.loads(tokenizer.decoder.__getstate__()).get("decoders", [])
    contents = [step.get("content") for step in steps if step.get("type") == "Replace"]
    return contents[-len(REPLACEMENTS) :] == [after for _, after in REPLACEMENTS]
