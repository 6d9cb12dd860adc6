"""The text the masked-language adapters learn from: WordNet's examples and glosses, and fortunes.

Both are Debian packages (``apt-get install wordnet-base fortunes``), so that anyone can gather the
same sentences again. A sentence is held out of training by a hash of its text, never by its place
in a file: duplicates land on one side, and the split survives a new package version.
"""

import hashlib
import itertools
import re
from collections.abc import Iterator
from pathlib import Path

WORDNET = Path("/usr/share/wordnet")
FORTUNES = Path("/usr/share/games/fortunes")

#: One sentence in this many is held out of training.
HELD_OUT_SHARE = 50

#: Fortune files that are not prose: pictures, songs, lists, and the zippy and perl one-liners.
NOT_PROSE = {"ascii-art", "songs-poems", "translate-me", "zippy", "perl", "debian", "tao"}

_QUOTED = re.compile(r'"([^"]+)"')
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z\"'])")


def sentences() -> list[str]:
    """Every distinct sentence of 4 to 60 words, in a stable order."""
    found = {*glosses(), *_examples(), *_fortunes()}
    return sorted(text for text in found if 4 <= len(text.split()) <= 60)


def glosses() -> set[str]:
    """WordNet's definitions: most of the text, and the part that least resembles what people write."""
    parts = (_QUOTED.sub("", gloss).split(";") for gloss in _wordnet())
    return {part.strip() for part in itertools.chain.from_iterable(parts) if part.strip()}


def is_held_out(sentence: str) -> bool:
    """Whether a sentence belongs to the evaluation, by a hash of its lower-case text."""
    digest = hashlib.sha256(sentence.lower().encode()).digest()
    return int.from_bytes(digest[:4], "big") % HELD_OUT_SHARE == 0


def _examples() -> Iterator[str]:
    """WordNet's example sentences, which stand in quotes in its glosses."""
    return (example.strip() for gloss in _wordnet() for example in _QUOTED.findall(gloss))


def _wordnet() -> Iterator[str]:
    for part in ("noun", "verb", "adj", "adv"):
        for line in (WORDNET / f"data.{part}").read_text(encoding="latin-1").splitlines():
            if " | " in line and not line.startswith(" "):
                yield line.split(" | ", 1)[1].strip()


def _fortunes() -> Iterator[str]:
    for path in sorted(FORTUNES.glob("*.u8")):
        if path.stem in NOT_PROSE:
            continue
        for fortune in path.read_text(encoding="utf-8", errors="ignore").split("\n%\n"):
            prose = fortune.split("\n\t\t--")[0].replace("\b", "")
            yield from (part.strip() for part in _SENTENCE_END.split(" ".join(prose.split())))
