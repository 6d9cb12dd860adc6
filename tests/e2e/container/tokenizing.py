"""Write a client that tokenizes texts with ``transformers``, as the article does, from files beside it."""

from __future__ import annotations

import json
from pathlib import Path

CLIENT = '''
from transformers import AutoTokenizer

from sm.client import Client, TextPayload


class Tokens(Client):
    """Token ids of a text."""

    payload, models = TextPayload, ()

    def setup(self):
        self.tokenizer = AutoTokenizer.from_pretrained(self.folder)

    def inference(self, payload):
        return self.tokenizer(payload.text)["input_ids"]
'''
#: A client that lists the libraries that its process has loaded.
OTHER_CLIENT = """
import sys

from sm.client.base import Client


class Other(Client):
    models = ()

    def inference(self, payload):
        return sorted({name.partition(".")[0] for name in sys.modules})
"""
VOCABULARY = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "world", "has", "people", ".")
#: The article's text for BERT, and its tokens by this vocabulary.
TEXT, TOKENS = "The world has [MASK] people.", [2, 5, 6, 7, 4, 8, 9, 3]


def write_client(repository: Path) -> Path:
    """Write ``code/`` with the two clients into a repository without models."""
    tokens, other = repository / "code" / "tokens", repository / "code" / "other"
    for folder, text in ((tokens, CLIENT), (other, OTHER_CLIENT)):
        folder.mkdir(parents=True)
        (folder / "client.py").write_text(text)
    (tokens / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n")
    settings = {"tokenizer_class": "BertTokenizer", "do_lower_case": True}
    (tokens / "tokenizer_config.json").write_text(json.dumps(settings))
    return repository
