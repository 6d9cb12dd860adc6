"""The words that adapters are judged by: one masked in each of many held-out sentences. No torch here."""

import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain

from corpus import is_held_out, sentences
from tokenizers import Tokenizer

SEED = 20

#: Word pieces of the longest sentence, [CLS] and [SEP] included.
LONGEST = 64

#: Ids below this are special tokens, digits, punctuation and single letters of many scripts.
FIRST_WORD = 1997


@dataclass(frozen=True)
class Question:
    """A sentence's ids and the place of the word to guess."""

    ids: tuple[int, ...]
    place: int

    @property
    def answer(self) -> int:
        return self.ids[self.place]


def encoded(tokenizer: Tokenizer) -> list[tuple[str, list[int]]]:
    """Every sentence of the corpus that is short enough, with its ids."""
    tokenizer.no_padding()
    tokenizer.no_truncation()
    texts = sentences()
    pairs = zip(texts, (encoding.ids for encoding in tokenizer.encode_batch(texts)), strict=True)
    return [(text, ids) for text, ids in pairs if len(ids) <= LONGEST]


def questions(tokenizer: Tokenizer, pairs: Iterable[tuple[str, list[int]]], count: int) -> list[Question]:
    """The first ``count`` questions of a fixed shuffle of the held-out sentences."""
    words = {index for word, index in tokenizer.get_vocab().items() if word.isalpha() and word.isascii()}
    held_out = [ids for text, ids in pairs if is_held_out(text)]
    rng = random.Random(SEED)
    found: list[Question] = []
    for ids in rng.sample(held_out, len(held_out)):
        # A whole word: itself a word piece, and not followed by a continuation of it.
        places = [
            place
            for place in range(1, len(ids) - 1)
            if ids[place] in words and (ids[place + 1] in words or ids[place + 1] < FIRST_WORD)
        ]
        if places:
            found.append(Question(tuple(ids), rng.choice(places)))
        if len(found) == count:
            break
    return found


def frequent(pairs: Iterable[tuple[str, list[int]]], count: int) -> set[int]:
    """The ``count`` most frequent word ids of the sentences that are trained on."""
    seen = Counter(chain.from_iterable(ids for text, ids in pairs if not is_held_out(text)))
    words = [index for index, _ in seen.most_common() if index >= FIRST_WORD]
    return set(words[:count])
