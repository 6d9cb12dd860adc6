"""Write the tables of docs/clients/checkpoint-fields.md: ``python -m tests.support.checkpoint_fields``."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import partial

from sm.settings import HERE
from trireme_extensions.tasks.checkpoint.files import Fields, FileField, fields_of
from trireme_extensions.tasks.checkpoint.pictures import processors
from trireme_extensions.tasks.checkpoint.sentences import KINDS, MODULES

PAGE = HERE / "docs" / "clients" / "checkpoint-fields.md"
START, END = "<!-- fields -->", "<!-- /fields -->"
obeyed, unused = partial(FileField, "obeyed"), partial(FileField, "without effect")
OTHER_TASK = (
    *("aggregation_labels", "codec_config", "encoder", "max_input_semantic_length", "max_source_positions"),
    *("no_aggregation_label_index", "num_frames", "sampling_rate", "task_seq_len"),
)
GENERATED = obeyed("where text is generated and `generation_config.json` does not say it")

#: ``config.json``: the fields of ``PretrainedConfig``, and of its classes those that more than the network reads.
#: No field is refused, so the code has no table of it.
CONFIG: Fields = {
    **dict.fromkeys(OTHER_TASK, unused("of a task that is not served here")),
    **dict.fromkeys(("auto_map", "custom_pipelines"), unused("code of a repository is never run")),
    **dict.fromkeys(("bos_token_id", "decoder_start_token_id", "eos_token_id"), GENERATED),
    **dict.fromkeys(
        ("chunk_size_feed_forward", "quantization_config", "tie_word_embeddings"), unused("the graph has it")
    ),
    **dict.fromkeys(
        ("output_attentions", "output_hidden_states", "return_dict"),
        unused("of what a call returns beside the answer"),
    ),
    **dict.fromkeys(("_name_or_path", "transformers_version"), unused("says where the file comes from")),
    **dict.fromkeys(
        ("max_encoder_position_embeddings", "max_position_embeddings"),
        obeyed("a text has at most as many tokens"),
    ),
    "architectures": obeyed("the task, and the class of pictures where no file names it"),
    "dtype": unused("the graph has its types; `TRIREME_PRECISION` chooses"),
    "function_to_apply": unused("`problem_type` decides before it, as in transformers"),
    "id2label": obeyed("`labels.txt`"),
    "inputs_to_logits_ratio": unused("a recording is read whole"),
    "is_encoder_decoder": unused("the two graphs say it"),
    "label2id": unused("`id2label` counts, as in transformers"),
    "model_type": obeyed("how positions are counted, and the class of pictures"),
    "n_positions": obeyed("as `max_position_embeddings`"),
    "num_labels": unused("the graph's outputs count"),
    "pad_token_id": obeyed("the token that pads a text"),
    "prefix": obeyed("where text is generated: what goes before every text"),
    "problem_type": obeyed("how scores become probabilities"),
    "sbert_ce_default_activation_function": obeyed("as `sentence_transformers`, of before 4.0"),
    "sentence_transformers": obeyed(
        "of a cross-encoder: its `activation_fn` is what scores go through where texts are ranked"
    ),
    "task_specific_params": obeyed(
        "where text is generated: those of the task's name, such as `summarization`"
    ),
    "torch_dtype": unused("the older name of `dtype`"),
}

PICTURES, TOKENIZER = fields_of("pictures"), fields_of("tokenizer")
#: The fields of speech, where other fields of a tokenizer have no effect.
SPEECH: Fields = {**dict.fromkeys(TOKENIZER, unused("`vocab.json` counts")), **fields_of("speech")}

#: The tables of the page by their headings.
TABLES: Mapping[str, Fields] = {
    "`config.json`": CONFIG,
    "`tokenizer_config.json` and `special_tokens_map.json`": TOKENIZER,
    "`generation_config.json`": fields_of("generation"),
    "`preprocessor_config.json` of pictures: every class": PICTURES,
    **{
        f"`preprocessor_config.json` of pictures: `{name}ImageProcessor`": {
            field: said for field, said in processor.fields.items() if field not in PICTURES
        }
        for name, processor in processors().items()
    },
    "`preprocessor_config.json` of sound: `Wav2Vec2FeatureExtractor`": fields_of("sound"),
    "`tokenizer_config.json` and `special_tokens_map.json` of speech": SPEECH,
    "`modules.json`": fields_of("modules"),
    "`config_sentence_transformers.json`": fields_of("sentences"),
    ", ".join(f"`sentence_{kind}_config.json`" for kind in KINDS): fields_of("transformer"),
    **{f"`config.json` in the folder of a `{kind}`": fields_of("module", kind) for kind in MODULES},
}


def tables() -> str:
    """Return a table for each file, in Markdown; files with the same fields share one."""
    names: dict[str, list[str]] = {}
    for file, fields in TABLES.items():
        if fields:
            lines = ["| field | here | how, or why not |", "|---|---|---|"]
            lines += [_row(name, field) for name, field in sorted(fields.items())]
            names.setdefault("\n".join(lines), []).append(file)
    return "\n\n".join(f"## {_joined(found)}\n\n{table}" for table, found in names.items())


def _row(name: str, field: FileField) -> str:
    values = " or ".join(f"`{json.dumps(value)}`" for value in field.harmless)
    return f"| `{name}` | {field.effect} | {field.note}{f'; may be {values}' if values else ''} |"


def _joined(names: list[str]) -> str:
    """Return the headings of one table as one: what they begin with comes once."""
    first, *others = names
    start = first.rpartition(": ")[0]
    return ", ".join([first, *(name.removeprefix(f"{start}: ") if start else name for name in others)])


def with_tables(page: str) -> str:
    """Return the page with today's tables between its marks."""
    return re.sub(f"{START}.*?{END}", lambda _: f"{START}\n\n{tables()}\n\n{END}", page, flags=re.S)


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text()))
