"""A text classifier with the methods for batches against the same without, in one run on one box.

    .venv/bin/python -m bench.gathering [ROUNDS]

Its tokenizer is BERT's, by way of ``transformers`` as most clients use it; its model is a table look-up, so
the tokenizer bounds it. 16 callers send a text of 60 words each. The clients take turns in each round; the
ratio is the median of the rounds' own.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import requests

from bench import repositories
from bench.driver import Load, Request, wrk
from tests.support.boxes import running_box
from tests.support.tritons import Model

CALLERS, SECONDS = 16, 5.0
TEXT = "the quick brown fox was happy to jump over a lazy dog and read uncommonly long sentences " * 4
#: Padding is 0, which counts nothing.
MODEL = Model(
    'ids = tensor(request, "input_ids")\n'
    'return {"scores": np.stack([(ids % 7).sum(1), (ids % 5).sum(1)], 1).astype(np.float32)}',
    {"input_ids": ("INT64", [-1])},
    {"scores": ("FP32", [2])},
    max_batch_size=32,
)
CLIENT = """
import numpy as np
from transformers import PreTrainedTokenizerFast

from sm.client import TensorClient, TextPayload


class Mood(TensorClient):
    model, payload = "mood", TextPayload

    def setup(self):
        file = str(self.repository / "mood" / "tokenizer.json")
        self.tokenizer = PreTrainedTokenizerFast(tokenizer_file=file, pad_token="[PAD]")

    def preprocess(self, payload):
        ids = self.tokenizer(payload.text, truncation=True, max_length=512, return_tensors="np")["input_ids"]
        return {"input_ids": ids[0]}

    def postprocess(self, outputs, payload):
        return ["good", "bad"][int(outputs["scores"].argmax())]
"""
BATCH_METHOD = """
    def preprocess_batch(self, payloads):
        texts = [payload.text for payload in payloads]
        encoded = self.tokenizer(texts, padding=True, truncation=True, max_length=512, return_tensors="np")
        return {"input_ids": encoded["input_ids"]}
"""


def rate(port: int, client: str, folder: Path) -> float:
    """Return right answers a second."""
    body = json.dumps({"modelname": client, "payload": TEXT}).encode()
    request = Request("/invocations", {"Content-Type": "application/json"}, body, b'"good"')
    command = wrk(request, port, CALLERS, SECONDS, folder)
    load = Load.read(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert not load.wrong, f"{load.wrong} wrong answers of {client}"
    return load.rate


def main(rounds: int) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        MODEL.write(folder / "repository" / "mood")
        (folder / "repository" / "mood" / "tokenizer.json").symlink_to(
            repositories.demo() / "bert_base" / "tokenizer.json"
        )
        for name, text in {"alone": CLIENT, "together": CLIENT + BATCH_METHOD}.items():
            (folder / "clients" / name).mkdir(parents=True)
            (folder / "clients" / name / "client.py").write_text(text)
        with running_box(folder, folder / "repository", clients=(folder / "clients",)) as box:
            answers = {box.invoke(name, TEXT).json()["result"] for name in ("alone", "together")}
            assert len(answers) == 1, answers
            rates: dict[str, list[float]] = {"alone": [], "together": []}
            for _ in range(rounds):
                for name, found in rates.items():
                    found.append(rate(box.port, name, folder))
            ratio = statistics.median(b / a for a, b in zip(rates["alone"], rates["together"], strict=True))
            for name, found in rates.items():
                print(f"{name}: {statistics.median(found):.0f} answers a second")
            text = requests.get(f"{box.url}/metrics", timeout=30).text
            counts = {
                stage: sum(
                    float(line.rpartition(" ")[2])
                    for line in text.splitlines()
                    if line.startswith("trireme_invocation_duration_seconds_count")
                    and 'model="together"' in line
                    and f'stage="{stage}"' in line
                )
                for stage in ("total", "preprocess")
            }
            print(f"together: {counts['total'] / counts['preprocess']:.1f} records in a call")
            print(f"ratio: {ratio:.2f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
