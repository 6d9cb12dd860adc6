#!/usr/bin/env bash
# pydantic_core.from_json(..., allow_inf_nan=False) refuses the words NaN and Infinity, and returns inf for 1e400.
# Why it matters: who asks for a parser without infinity gets one from a valid JSON number, and it goes on into the
# model's input; orjson refuses the same text.
#
# Guess: with allow_inf_nan=False no number of the result is infinite.
# Seen: pydantic_core 2.50.4 returns [inf] for [1e400], and raises ValueError for [Infinity].
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check pydantic_core==2.50.4 orjson==3.13.0
"$folder/env/bin/python" - <<'PYTHON'
import math

import orjson
from pydantic_core import from_json


def is_refused(read, text: bytes) -> bool:
    try:
        read(text)
    except ValueError:
        return True
    return False


assert is_refused(lambda text: from_json(text, allow_inf_nan=False), b"[Infinity]")
(value,) = from_json(b"[1e400]", allow_inf_nan=False)
print(f"from_json(b'[1e400]', allow_inf_nan=False) is [{value}]")
assert math.isinf(value)
assert is_refused(orjson.loads, b"[1e400]")
PYTHON
