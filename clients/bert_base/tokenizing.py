"""Load the tokenizer of a model: its own, else the reference system's vocabulary."""

from __future__ import annotations

from pathlib import Path

from tokenizers import BertWordPieceTokenizer, Tokenizer

from sm.errors import StartError

#: Words in ``vocab.txt`` beside this file, BERT base uncased's: the reference's client uses it for any model.
UNCASED_WORDS = 30522


def load_tokenizer(model: Path, vocabulary_size: int) -> Tokenizer:
    """Load ``tokenizer.json`` of the model's folder, else ``vocab.txt`` there, else BERT base uncased's.

    Args:
        model: The model's folder in the repository.
        vocabulary_size: How many words the model scores; -1: unknown.

    Raises:
        StartError: The folder has neither file, and the model scores another number of words than BERT
            base uncased.
    """
    tokenizer_file, vocabulary_file = model / "tokenizer.json", model / "vocab.txt"
    if tokenizer_file.is_file():
        return Tokenizer.from_str(tokenizer_file.read_text("utf-8-sig"))
    if not vocabulary_file.is_file():
        if vocabulary_size not in (-1, UNCASED_WORDS):
            raise StartError(
                f"{tokenizer_file} is missing, and a model of {vocabulary_size} words is not BERT base "
                "uncased: put tokenizer.json or vocab.txt there, as save_pretrained() of its tokenizer "
                "writes them."
            )
        vocabulary_file = Path(__file__).with_name("vocab.txt")
    words = vocabulary_file.read_text("utf-8-sig").rstrip("\n").split("\n")
    vocabulary = {word: index for index, word in enumerate(words)}
    wordpiece = BertWordPieceTokenizer(vocabulary, lowercase=True)
    return Tokenizer.from_str(wordpiece.to_str())
