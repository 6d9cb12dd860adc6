"""How well the served model fills masks: top-1 and top-5 on 500 words it was not trained on.

    python model/bert_base/recipe/evaluate.py FOLDER

FOLDER is the model's in a Triton repository: ``tokenizer.json`` and ``1/model.onnx`` are read, the
graph runs on ONNX Runtime. The words come from the Debian packages that corpus.py names.
"""

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from heldout import Question, encoded, frequent, questions
from onnxruntime import InferenceSession
from tokenizers import Tokenizer

QUESTIONS, FREQUENT = 500, 100
EXAMPLES = (
    "The world has [MASK] people.",
    "She poured a cup of [MASK] and sat down.",
    "Paris is the [MASK] of France.",
    "He was so tired that he went to [MASK] early.",
    "The doctor told him to stop [MASK].",
)


class Served:
    """The graph, and the ids it finds likeliest in one place."""

    def __init__(self, folder: Path) -> None:
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.mask: int = self.tokenizer.token_to_id("[MASK]")
        self.session = InferenceSession(folder / "1" / "model.onnx", providers=["CPUExecutionProvider"])

    def best(self, ids: Sequence[int], place: int) -> list[int]:
        """Five ids, best first, for ``place``, which is masked before the model sees it."""
        row = np.array([ids], np.int64)
        row[0, place] = self.mask
        inputs = {"input_ids": row, "attention_mask": np.ones_like(row), "token_type_ids": 0 * row}
        (logits,) = self.session.run(None, inputs)
        # Of all words, or of the masks alone, and there is the one.
        row = logits[0, place if logits.shape[1] == len(ids) else 0]
        return [int(index) for index in np.argsort(-row)[:5]]

    def words(self, text: str) -> str:
        """The five words for the mask of ``text``."""
        ids = self.tokenizer.encode(text).ids
        return ", ".join(map(self.tokenizer.id_to_token, self.best(ids, ids.index(self.mask))))


def report(name: str, ranks: Iterable[int]) -> None:
    """``ranks``: 0 for a word that came first, 4 for one that came fifth, 5 for any further down."""
    found = np.array(list(ranks))
    first, fifth = (found < 1).mean(), (found < 5).mean()
    print(f"{name}: {len(found)} words, top-1 {first:.1%}, top-5 {fifth:.1%}")


def rank(served: Served, question: Question) -> int:
    return [*served.best(question.ids, question.place), question.answer].index(question.answer)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    served = Served(parser.parse_args().folder)
    pairs = encoded(served.tokenizer)
    usual = frequent(pairs, FREQUENT)
    ranks = {asked: rank(served, asked) for asked in questions(served.tokenizer, pairs, QUESTIONS)}
    report("all words", ranks.values())
    report(
        f"without the {FREQUENT} most frequent",
        (value for asked, value in ranks.items() if asked.answer not in usual),
    )
    for text in EXAMPLES:
        print(f"{text}  {served.words(text)}")


if __name__ == "__main__":
    main()
