"""Read what a checkpoint says of recordings, and of the letters that a model of speech answers with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trireme_extensions.tasks.checkpoint.files import fields_of, read_object, refuse
from trireme_extensions.tasks.checkpoint.texts import CLEAN_UP

FILE = "preprocessor_config.json"


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
    refuse(path, described, fields_of("sound"))
    found = {"rate": described.get("sampling_rate"), "normalise": described.get("do_normalize")}
    if is_speech:
        path = folder / "tokenizer_config.json"
        tokens = {**read_object(folder / "special_tokens_map.json"), **read_object(path)}
        refuse(path, tokens, fields_of("speech"))
        blank = tokens.get("pad_token")
        found["blank"] = blank.get("content") if isinstance(blank, dict) else blank
        found["delimiter"] = tokens.get("word_delimiter_token")
        found["clean_up"] = tokens.get(CLEAN_UP)
    return {name: value for name, value in found.items() if value is not None}
