"""Write the golden answer from the package's own graph: ``python golden.py PACKAGE.tgz``.

Tokenizing and pooling are written here again, with NumPy: only ONNX Runtime is shared with the served model.
"""

import json
import sys
import tarfile
from pathlib import Path

import numpy as np
import onnxruntime

FOLDER = "package/dist/Xenova/all-MiniLM-L6-v2"
SAMPLE = Path(__file__).parents[1] / "repository" / "code" / "bert_encode" / "sample"


def tokenize(text: str, vocabulary: dict[str, int]) -> list[int]:
    """Tokenize a text of whole words, which is all that the sample has."""
    words = text.lower().replace(".", " .").split()
    return [vocabulary[word] for word in ("[CLS]", *words, "[SEP]")]


def main(package: str) -> None:
    with tarfile.open(package) as opened:
        graph, words = (
            opened.extractfile(f"{FOLDER}/{name}").read() for name in ("onnx/model.onnx", "vocab.txt")
        )
    vocabulary = {word: index for index, word in enumerate(words.decode().splitlines())}
    text = json.loads((SAMPLE / "payload.json").read_text())["text"]
    ids = np.array([tokenize(text, vocabulary)])
    feed = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
    (hidden,) = onnxruntime.InferenceSession(graph).run(None, feed)
    mean = hidden[0].mean(axis=0)
    embedding = [round(float(number), 6) for number in mean / np.linalg.norm(mean)]
    (SAMPLE / "golden.json").write_text(json.dumps({"embedding": embedding}) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
