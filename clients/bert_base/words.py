"""How a text becomes word pieces: by the model's own description, else by the reference's vocabulary."""

from __future__ import annotations

from pathlib import Path

from tokenizers import BertWordPieceTokenizer, Tokenizer

from sm.errors import StartError

#: Of BERT base uncased, which the reference's client uses for any model: ``vocab.txt`` beside this file.
UNCASED_WORDS = 30522


def tokenizer(model: Path, words: int) -> Tokenizer:
    """``tokenizer.json`` in the model's folder, else ``vocab.txt`` there, else BERT base uncased's.

    Args:
        model: The model's folder in the repository.
        words: How many words the model scores; 0 where that is not known.

    Raises:
        StartError: There is none, and the model's words are not BERT base uncased's by their number.
    """
    tokenizer_file, vocabulary_file = model / "tokenizer.json", model / "vocab.txt"
    if tokenizer_file.is_file():
        return Tokenizer.from_file(str(tokenizer_file))
    if not vocabulary_file.is_file():
        if words not in (0, UNCASED_WORDS):
            raise StartError(
                f"{tokenizer_file} is missing, and a model of {words} words is not BERT base uncased: put "
                "tokenizer.json or vocab.txt there, as save_pretrained() of its tokenizer writes them."
            )
        vocabulary_file = Path(__file__).with_name("vocab.txt")
    wordpiece = BertWordPieceTokenizer(str(vocabulary_file), lowercase=True)
    return Tokenizer.from_str(wordpiece.to_str())
