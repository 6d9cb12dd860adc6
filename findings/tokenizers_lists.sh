#!/usr/bin/env bash
# Each look at a list of a tokenizers Encoding (ids, tokens, offsets, special_tokens_mask) builds the whole list again.
# Why it matters: a loop over tokens that reads encoding.offsets[i] takes 16 times as long for 4 times the text. A
# text of 32,000 characters holds the interpreter for a second where its tokens were made in some milliseconds, and
# nothing in such a loop looks dear.
#
# Guess: offsets is an attribute: a second look gives the same list, and one element costs no more for a long text.
# Seen: tokenizers 0.23.3 makes another, equal list at each look; all offsets of four times the tokens, one look each,
# take over 8 times as long (the list read once: about 4 times).
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check tokenizers==0.23.3
"$folder/env/bin/python" - <<'PYTHON'
import time

from tokenizers import Encoding, Tokenizer, models, pre_tokenizers

words = Tokenizer(models.WordLevel({"[UNK]": 0, "ada": 1, "lives": 2}, unk_token="[UNK]"))
words.pre_tokenizer = pre_tokenizers.Whitespace()


def seconds(encoding: Encoding) -> float:
    times = []
    for _ in range(3):
        started = time.process_time()
        for place in range(len(encoding)):
            encoding.offsets[place]
        times.append(time.process_time() - started)
    return min(times)


short, long = (words.encode("ada lives " * count) for count in (1000, 4000))
for name in ("ids", "tokens", "offsets", "special_tokens_mask"):
    first, second = getattr(short, name), getattr(short, name)
    assert first == second and first is not second, name
times = seconds(long) / seconds(short)
print(f"a new list at each look; {len(short):,} and {len(long):,} tokens, one look each: {times:.1f} times as long")
assert times > 8
PYTHON
