#!/usr/bin/env bash
# AIPerf takes the folder of a tokenizer, but with HF_HUB_OFFLINE=1 it reads the folder's path as the name of a
# repository on the hub and fails.
# Why it matters: who measures a box without internet sets this variable so that nothing is downloaded, and has the
# tokenizer's files at hand.
#
# Guess: a folder works with and without HF_HUB_OFFLINE, as it does in transformers, whose tokenizers AIPerf uses.
# Seen: aiperf 0.13.0 loads the folder without the variable. With it: "HFValidationError: Repo id must be in the form
# 'repo_name' or 'namespace/repo_name'". transformers loads the same folder with the variable.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check aiperf==0.13.0
cat >"$folder/load.py" <<'PYTHON'
import json
import sys
from pathlib import Path

from aiperf.common.tokenizer import Tokenizer
from tokenizers import Tokenizer as Words, models, pre_tokenizers
from transformers import AutoTokenizer

folder = Path(sys.argv[1])
folder.mkdir(exist_ok=True)
words = Words(models.WordLevel({"[UNK]": 0, "ada": 1, "lives": 2}, unk_token="[UNK]"))
words.pre_tokenizer = pre_tokenizers.Whitespace()
words.save(str(folder / "tokenizer.json"))
(folder / "config.json").write_text(json.dumps({"model_type": "bert"}))
assert AutoTokenizer.from_pretrained(str(folder)).encode("ada lives")
try:
    print("loaded", Tokenizer.from_pretrained(str(folder)).encode("ada lives"))
except Exception as error:
    print("refused", error)
PYTHON
online=$("$folder/env/bin/python" "$folder/load.py" "$folder/tokenizer" | tail -1)
offline=$(HF_HUB_OFFLINE=1 "$folder/env/bin/python" "$folder/load.py" "$folder/tokenizer" | tail -1)
echo "without the variable: $online"
echo "with HF_HUB_OFFLINE=1: $offline"
[[ $online == loaded* && $offline == refused*HFValidationError* ]]
