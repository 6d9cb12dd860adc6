"""Read what a checkpoint says of recordings, and of the letters that a model of speech answers with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trireme_extensions.tasks.checkpoint.files import Fields, FileField, read_object, refuse
from trireme_extensions.tasks.checkpoint.texts import CLEAN_UP, ORIGIN, TOKENIZER

FILE = "preprocessor_config.json"
#: The class that makes samples; the others make spectrograms or codes.
EXTRACTOR = "Wav2Vec2FeatureExtractor"
#: ``preprocessor_config.json``: the fields of that class.
SOUND: Fields = {
    "auto_map": FileField("without effect", "code of a repository is never run"),
    "do_normalize": FileField("obeyed", "is `normalise`"),
    "feature_extractor_type": FileField("refused", "is not a class that reads samples", (EXTRACTOR,)),
    "feature_size": FileField("refused", "is of spectrograms", (1,)),
    "padding_side": FileField("refused", "pads before a recording", ("right",)),
    "padding_value": FileField("refused", "pads with other than silence", (0, 0.0)),
    "processor_class": FileField("without effect", "no language model weighs the words"),
    "return_attention_mask": FileField("without effect", "the graph's inputs count"),
    "sampling_rate": FileField("obeyed", "is `rate`"),
}
#: ``tokenizer_config.json`` of a model of speech: the fields of ``Wav2Vec2CTCTokenizer``.
SPEECH: Fields = {
    **dict.fromkeys(TOKENIZER, FileField("without effect", "`vocab.json` counts")),
    "auto_map": FileField("without effect", "code of a repository is never run"),
    CLEAN_UP: FileField("obeyed", "is `clean_up`"),
    "do_lower_case": FileField("refused", "changes the letters of an answer", (False,)),
    "pad_token": FileField("obeyed", "is `blank`"),
    "processor_class": ORIGIN,
    "replace_word_delimiter_char": FileField("refused", "is not a space between words", (" ",)),
    "target_lang": FileField("refused", "chooses a part of vocab.json; write that part alone into the file"),
    "tokenizer_class": FileField(
        "refused",
        "is not one that joins letters",
        ("Wav2Vec2CTCTokenizer", "Wav2Vec2Tokenizer"),
    ),
    "word_delimiter_token": FileField("obeyed", "is `delimiter`"),
}


def extractor(folder: Path) -> tuple[Path, dict[str, Any]]:
    """Return the file that describes the feature extractor, and what it says; empty if none does."""
    path = folder / FILE
    if described := read_object(path):
        return path, described
    path = folder / "processor_config.json"
    return path, read_object(path).get("feature_extractor") or {}


def sounds(folder: Path, is_speech: bool) -> dict[str, Any]:
    """Return the options of a model of sound.

    Args:
        folder: A folder with ``preprocessor_config.json`` or ``processor_config.json``, or without.
        is_speech: ``tokenizer_config.json`` counts too.

    Raises:
        CommandError: A file asks for what is not done here; the sentence names the field.
    """
    path, described = extractor(folder)
    refuse(path, described, SOUND)
    found = {"rate": described.get("sampling_rate"), "normalise": described.get("do_normalize")}
    if is_speech:
        path = folder / "tokenizer_config.json"
        tokens = {**read_object(folder / "special_tokens_map.json"), **read_object(path)}
        refuse(path, tokens, SPEECH)
        blank = tokens.get("pad_token")
        found["blank"] = blank.get("content") if isinstance(blank, dict) else blank
        found["delimiter"] = tokens.get("word_delimiter_token")
        found["clean_up"] = tokens.get(CLEAN_UP)
    return {name: value for name, value in found.items() if value is not None}
