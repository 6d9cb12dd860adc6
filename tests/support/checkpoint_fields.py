"""Write the tables of docs/clients/checkpoint-fields.md: ``python -m tests.support.checkpoint_fields``."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from sm.server.checkpoint.files import Field, Fields
from sm.server.checkpoint.generation_config import GENERATION
from sm.server.checkpoint.pictures import COMMON, PROCESSORS
from sm.server.checkpoint.sentences import KINDS, MODULE, MODULES, SENTENCES, TRANSFORMER
from sm.server.checkpoint.sounds import SOUND, SPEECH
from sm.server.checkpoint.texts import TOKENIZER
from sm.settings import HERE

PAGE = HERE / "docs" / "clients" / "checkpoint-fields.md"
START, END = "<!-- fields -->", "<!-- /fields -->"
SHAPE = Field("without effect", "the graph has it")
RETURNED = Field("without effect", "of what a call returns beside the answer")
CODE = Field("without effect", "code of a repository is never run")
OTHER_TASK = Field("without effect", "of a task that is not served here")
GENERATED = Field("obeyed", "where text is generated and `generation_config.json` does not say it")

#: ``config.json``: the fields of ``PretrainedConfig``, and of its classes those that more than the network reads.
#: No field is refused, so the code has no table of it.
CONFIG: Fields = {
    "_name_or_path": Field("without effect", "says where the file comes from"),
    "aggregation_labels": OTHER_TASK,
    "architectures": Field("obeyed", "the task, and the class of pictures where no file names it"),
    "auto_map": CODE,
    "bos_token_id": GENERATED,
    "chunk_size_feed_forward": SHAPE,
    "codec_config": OTHER_TASK,
    "custom_pipelines": CODE,
    "decoder_start_token_id": GENERATED,
    "dtype": Field("without effect", "the graph has its types; `TRIREME_PRECISION` chooses"),
    "encoder": OTHER_TASK,
    "eos_token_id": GENERATED,
    "function_to_apply": Field("without effect", "`problem_type` decides before it, as in transformers"),
    "id2label": Field("obeyed", "`labels.txt`"),
    "inputs_to_logits_ratio": Field("without effect", "a recording is read whole"),
    "is_encoder_decoder": Field("without effect", "the two graphs say it"),
    "label2id": Field("without effect", "`id2label` counts, as in transformers"),
    "max_encoder_position_embeddings": Field("obeyed", "a text has at most as many tokens"),
    "max_input_semantic_length": OTHER_TASK,
    "max_position_embeddings": Field("obeyed", "a text has at most as many tokens"),
    "max_source_positions": OTHER_TASK,
    "model_type": Field("obeyed", "how positions are counted, and the class of pictures"),
    "n_positions": Field("obeyed", "as `max_position_embeddings`"),
    "no_aggregation_label_index": OTHER_TASK,
    "num_frames": OTHER_TASK,
    "num_labels": Field("without effect", "the graph's outputs count"),
    "output_attentions": RETURNED,
    "output_hidden_states": RETURNED,
    "pad_token_id": Field("obeyed", "the token that pads a text"),
    "prefix": Field("obeyed", "where text is generated: what goes before every text"),
    "problem_type": Field("obeyed", "how scores become probabilities"),
    "quantization_config": SHAPE,
    "return_dict": RETURNED,
    "sampling_rate": OTHER_TASK,
    "sbert_ce_default_activation_function": Field("obeyed", "as `sentence_transformers`, of before 4.0"),
    "sentence_transformers": Field(
        "obeyed", "of a cross-encoder: its `activation_fn` is what scores go through where texts are ranked"
    ),
    "task_seq_len": OTHER_TASK,
    "task_specific_params": Field(
        "obeyed", "where text is generated: those of the task's name, such as `summarization`"
    ),
    "tie_word_embeddings": SHAPE,
    "torch_dtype": Field("without effect", "the older name of `dtype`"),
    "transformers_version": Field("without effect", "says where the file comes from"),
}

#: The tables of the page by their headings.
TABLES: Mapping[str, Fields] = {
    "`config.json`": CONFIG,
    "`tokenizer_config.json` and `special_tokens_map.json`": TOKENIZER,
    "`generation_config.json`": GENERATION,
    "`preprocessor_config.json` of pictures: every class": COMMON,
    **{
        f"`preprocessor_config.json` of pictures: `{name}ImageProcessor`": processor.fields
        for name, processor in PROCESSORS.items()
    },
    "`preprocessor_config.json` of sound: `Wav2Vec2FeatureExtractor`": SOUND,
    "`tokenizer_config.json` and `special_tokens_map.json` of speech": SPEECH,
    "`modules.json`": MODULE,
    "`config_sentence_transformers.json`": SENTENCES,
    ", ".join(f"`sentence_{kind}_config.json`" for kind in KINDS): TRANSFORMER,
    **{f"`config.json` in the folder of a `{kind}`": fields for kind, fields in MODULES.items()},
}


def tables() -> str:
    """Return a table for each file, in Markdown; files with the same fields share one."""
    names: dict[str, list[str]] = {}
    for name, fields in TABLES.items():
        if fields:
            names.setdefault("\n".join(rows(fields)), []).append(name)
    return "\n\n".join(f"## {_joined(found)}\n\n{table}" for table, found in names.items())


def rows(fields: Fields) -> list[str]:
    """Return the lines of one file's table, by the fields' names."""
    lines = [f"| `{name}` | {field.effect} | {_note(field)} |" for name, field in sorted(fields.items())]
    return ["| field | here | how, or why not |", "|---|---|---|", *lines]


def _note(field: Field) -> str:
    values = " or ".join(f"`{json.dumps(value)}`" for value in field.harmless)
    return f"{field.note}; may be {values}" if values else field.note


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
