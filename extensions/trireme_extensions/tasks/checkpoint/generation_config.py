"""Read how a model generates text: ``generation_config.json``, or ``config.json`` of an older checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from sm.errors import CommandError
from trireme_extensions.tasks.checkpoint.files import Fields, FileField, read_object, refuse
from trireme_extensions.tasks.token_rules import TokenRules

FILE = "generation_config.json"
OBEYED, ORIGIN = FileField("obeyed"), FileField("without effect", "says where the file comes from")
#: Fields that change how fast an answer comes, or what a call returns beside it.
SPEED = FileField("without effect", "of speed and memory")
RETURNED = FileField("without effect", "of what a call returns beside the text")
SAMPLING = FileField("without effect", "of sampling, which `do_sample` asks for")
ASSISTANT = FileField("without effect", "of a second model that guesses; the answer is the same")

#: ``generation_config.json``: the fields of transformers' ``GenerationConfig``.
GENERATION: Fields = {
    **dict.fromkeys(TokenRules.model_fields, OBEYED),
    **dict.fromkeys(("decoder_start_token_id", "eos_token_id"), OBEYED),
    **dict.fromkeys(
        (
            *("use_cache", "cache_implementation", "cache_config", "max_cache_len", "low_memory"),
            *("compile_config", "disable_compile", "continuous_batching_config", "prefill_chunk_size"),
            "use_mtp",
        ),
        SPEED,
    ),
    **dict.fromkeys(
        (
            *("output_attentions", "output_hidden_states", "output_scores", "output_logits"),
            "return_dict_in_generate",
        ),
        RETURNED,
    ),
    **dict.fromkeys(
        ("temperature", "top_k", "top_p", "min_p", "top_h", "typical_p", "epsilon_cutoff", "eta_cutoff"),
        SAMPLING,
    ),
    **dict.fromkeys(
        (
            *("is_assistant", "num_assistant_tokens", "num_assistant_tokens_schedule", "speculation_type"),
            *("assistant_confidence_threshold", "assistant_early_exit", "assistant_lookbehind"),
            *("target_lookbehind", "assistant_ensemble_weight", "max_matching_ngram_size"),
        ),
        ASSISTANT,
    ),
    "bos_token_id": FileField("obeyed", "the start if there is no `decoder_start_token_id`"),
    "pad_token_id": FileField("without effect", "answers are generated one by one"),
    "transformers_version": ORIGIN,
    "_from_model_config": ORIGIN,
    "_commit_hash": ORIGIN,
    "constraints": FileField("refused", "needs constrained beams"),
    "diversity_penalty": FileField("refused", "needs groups of beams", (0, 0.0)),
    "do_sample": FileField("refused", "asks for samples; here the likeliest answer is given", (False,)),
    "dola_layers": FileField("refused", "needs the scores of inner layers"),
    "force_words_ids": FileField("refused", "needs constrained beams"),
    "forced_decoder_ids": FileField("refused", "is not obeyed here", ([],)),
    "guidance_scale": FileField("refused", "needs a second prompt", (1, 1.0)),
    "max_time": FileField("refused", "makes answers that depend on the machine"),
    "num_beam_groups": FileField("refused", "needs groups of beams", (1,)),
    "num_return_sequences": FileField("refused", "asks for several answers", (1,)),
    "penalty_alpha": FileField("refused", "needs the hidden states of the decoder", (0, 0.0)),
    "prompt_lookup_num_tokens": ASSISTANT,
    "stop_strings": FileField("refused", "is not obeyed here", ([],)),
    "token_healing": FileField("refused", "changes the text", (False,)),
    "watermarking_config": FileField("refused", "changes the answer"),
}


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
    refuse(path, described, GENERATION, "Change the file to serve the model without it.")
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
