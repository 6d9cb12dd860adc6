"""Read how a model generates text: ``generation_config.json``, or ``config.json`` of an older checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from sm.errors import CommandError
from trireme_extensions.tasks.checkpoint.files import fields_of, read_object, refuse
from trireme_extensions.tasks.token_rules import TokenRules

FILE = "generation_config.json"
#: The member of the answer for two of Hugging Face's names of this task.
ANSWERS = {"summarization": "summary_text", "translation": "translation_text"}


def generation(folder: Path, config: Mapping[str, Any], task: str = "") -> dict[str, Any]:
    """Return the options of a model that generates text.

    Args:
        folder: The checkpoint.
        config: Its ``config.json``.
        task: By Hugging Face's name, such as ``translation_en_to_de``: its ``task_specific_params`` count.

    Raises:
        CommandError: Something is missing, wrong, or not obeyed here; the sentence names the field.
    """
    path = folder / FILE
    own = read_object(path)
    # Without the file transformers reads these fields in the configuration.
    described = own or dict(config)
    if not own:
        path = folder / "config.json"
    of_task = (config.get("task_specific_params") or {}).get(task) or {}
    described = {**described, **of_task}
    prefix = of_task.get("prefix", config.get("prefix"))
    name = ANSWERS.get(task.partition("_")[0])
    refuse(path, described, fields_of("generation"), "Change the file to serve the model without it.")
    start = next(
        (
            each[name]
            for name in ("decoder_start_token_id", "bos_token_id")
            for each in (own, config)
            if each.get(name) is not None
        ),
        None,
    )
    end = own.get("eos_token_id", config.get("eos_token_id"))
    if start is None or end is None:
        raise CommandError(f"{path} does not say decoder_start_token_id and eos_token_id.")
    if isinstance(start, list):
        raise CommandError(
            f"{path}: decoder_start_token_id is {start}: one for each record is not obeyed here."
        )
    rules = {name: described[name] for name in TokenRules.model_fields if described.get(name) is not None}
    try:
        read = TokenRules.model_validate(rules)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"]))
        raise CommandError(f"{path}: {field} is {first['input']!r}: {first['msg']}.") from None
    asked = read.model_dump(mode="json", exclude_defaults=True)
    return {
        "start": start,
        "end": end if isinstance(end, list) else [end],
        **({"rules": asked} if asked else {}),
        **({"prefix": prefix} if prefix else {}),
        **({"answer": name} if name else {}),
    }
