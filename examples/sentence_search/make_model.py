"""Write the sentences of the manual, and a small model of sentences that was trained on them.

It is latent semantic analysis: a word's vector is its part of the singular value decomposition of the table
of words by sentences, a sentence's is the mean of its words'. So sentences are near each other if their words
occur together in the manual. A model of Hugging Face's hub takes its place without another change.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

MANUAL = Path(__file__).parents[2] / "docs"
FOLDERS = ("start", "clients")
#: Numbers of a vector.
SIZE = 128
#: Words that say nothing about a sentence's subject.
EMPTY = frozenset(
    [
        *(
            "a",
            "all",
            "an",
            "and",
            "are",
            "as",
            "at",
            "be",
            "by",
            "can",
            "do",
            "does",
            "for",
            "from",
            "has",
            "have",
        ),
        *(
            "how",
            "i",
            "if",
            "in",
            "is",
            "it",
            "its",
            "may",
            "more",
            "my",
            "no",
            "not",
            "of",
            "on",
            "one",
            "only",
        ),
        *(
            "or",
            "own",
            "s",
            "so",
            "take",
            "than",
            "that",
            "the",
            "their",
            "them",
            "then",
            "this",
            "to",
            "was",
        ),
        *("what", "when", "where", "which", "with", "you", "your"),
    ]
)
SPECIAL = ("[PAD]", "[UNK]")
#: Characters of a sentence; shorter ones are headings and parts of tables.
SHORTEST, LONGEST = 40, 300


def read_sentences() -> list[str]:
    """Return the sentences of the manual's paragraphs, each once."""
    found: dict[str, None] = {}
    for folder in FOLDERS:
        for page in sorted((MANUAL / folder).glob("*.md")):
            text = re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL)
            lines = [line for line in text.splitlines() if not line.startswith(("|", "#", "```"))]
            plain = (
                re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", "\n".join(lines)).replace("`", "").replace("**", "")
            )
            for paragraph in re.split(r"\n\s*\n|\n- ", plain):
                for sentence in re.split(r"(?<=[.?])\s+(?=[A-Z])", " ".join(paragraph.split())):
                    if SHORTEST <= len(sentence) <= LONGEST:
                        found[sentence.removeprefix("- ")] = None
    return list(found)


def train(sentences: list[list[str]]) -> tuple[list[str], NDArray[np.float32]]:
    """Return the words, and the vector of each: [words, SIZE]. That of a special one is 0."""
    counts = Counter(word for sentence in sentences for word in set(sentence))
    words = sorted(
        word for word, count in counts.items() if count > 1 and word.isalpha() and word not in EMPTY
    )
    index = {word: number for number, word in enumerate(words)}
    weights = np.log(len(sentences) / np.array([counts[word] for word in words]))
    table = np.zeros((len(words), len(sentences)))
    for column, sentence in enumerate(sentences):
        for word in sentence:
            if word in index:
                table[index[word], column] += weights[index[word]]
    table /= np.maximum(np.linalg.norm(table, axis=0), 1e-12)
    directions, _, _ = np.linalg.svd(table, full_matrices=False)
    vectors = weights[:, None] * directions[:, :SIZE]
    return [*SPECIAL, *words], np.vstack([np.zeros((2, SIZE)), vectors]).astype(np.float32)


def write_graph(path: Path, vectors: NDArray[np.float32]) -> None:
    """Write the look-up of each token's vector."""
    tokens: Any = ["batch", "tokens"]
    graph = helper.make_graph(
        [helper.make_node("Gather", ["vectors", "input_ids"], ["last_hidden_state"])],
        "sentences",
        [helper.make_tensor_value_info("input_ids", TensorProto.INT64, tokens)],
        [helper.make_tensor_value_info("last_hidden_state", TensorProto.FLOAT, [*tokens, vectors.shape[1]])],
        [numpy_helper.from_array(vectors, "vectors")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def main(folder: Path) -> None:
    """Write ``sentences.json``, and a folder ``checkpoint`` as sentence-transformers does."""
    sentences = read_sentences()
    split = pre_tokenizers.Whitespace()
    lower = normalizers.Lowercase()
    read = [[word for word, _ in split.pre_tokenize_str(lower.normalize_str(text))] for text in sentences]
    words, vectors = train(read)
    tokenizer = Tokenizer(
        models.WordLevel({word: index for index, word in enumerate(words)}, unk_token=SPECIAL[1])
    )
    tokenizer.normalizer, tokenizer.pre_tokenizer = lower, split
    tokenizer.add_special_tokens(list(SPECIAL))
    model = folder / "checkpoint"
    (model / "1_Pooling").mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(model / "tokenizer.json"))
    write_graph(model / "model.onnx", vectors)
    types = ("Transformer", "Pooling", "Normalize")
    modules = [
        {
            "idx": index,
            "path": f"{index}_{name}" if index else "",
            "type": f"sentence_transformers.models.{name}",
        }
        for index, name in enumerate(types)
    ]
    for name, content in (
        ("config.json", {"model_type": "lsa", "architectures": ["LatentSemanticAnalysis"]}),
        ("modules.json", modules),
        ("1_Pooling/config.json", {"pooling_mode_mean_tokens": True}),
    ):
        (model / name).write_text(json.dumps(content, indent=2))
    (folder / "sentences.json").write_text(json.dumps(sentences, ensure_ascii=False, indent=0))
    print(f"{len(sentences)} sentences, {len(words)} words")  # noqa: T201


if __name__ == "__main__":
    main(Path(sys.argv[1]))
