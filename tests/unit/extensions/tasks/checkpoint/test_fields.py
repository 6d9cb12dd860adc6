"""Each field that the libraries have is in the table of what is obeyed, refused or without effect; a refusal names it."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import pytest
import transformers
from transformers import GenerationConfig, PretrainedConfig, Wav2Vec2CTCTokenizer, Wav2Vec2FeatureExtractor
from transformers.models.auto import configuration_auto
from transformers.tokenization_utils_base import PreTrainedTokenizerBase

from sm.errors import CommandError
from tests.support.checkpoint_fields import CONFIG, SPEECH
from trireme_extensions.tasks import hugging_face
from trireme_extensions.tasks.checkpoint.files import fields_of, read_table
from trireme_extensions.tasks.checkpoint.generation_config import generation
from trireme_extensions.tasks.checkpoint.pictures import picture_steps, processors
from trireme_extensions.tasks.checkpoint.sounds import sounds
from trireme_extensions.tasks.task_table import TASKS

LIBRARY = Path(transformers.__file__).parent
GENERATED = {"decoder_start_token_id": 0, "eos_token_id": 1}
#: Arguments that transformers makes of the files itself, and hands on to its classes.
INTERNAL = (
    "_json_padding _json_truncation _spm_precompiled_charsmap gguf_file merges post_processor tokenizer "
    "tokenizer_object tokenizer_padding tokenizer_truncation unk_id vocab vocab_file"
)


def fields_of_pipelines() -> set[str]:
    read = re.compile(r"\bmodel\.config\.([a-z]\w*)\b(?!\()")
    return {name for path in LIBRARY.glob("pipelines/*.py") for name in read.findall(path.read_text("utf-8"))}


def fields_of_tokenizers() -> set[str]:
    read = re.compile(r"""kwargs(?:\.(?:pop|get|setdefault)\(|\[)\s*"(\w+)\"""")
    classes = (PreTrainedTokenizerBase, transformers.PreTrainedTokenizerFast)
    found = {name for each in classes for name in read.findall(inspect.getsource(each.__init__))}
    return found | set(PreTrainedTokenizerBase.SPECIAL_TOKENS_ATTRIBUTES) - {*INTERNAL.split()}


def fields_of_speech() -> Collection[str]:
    given = {"self", "vocab_file", "kwargs"}
    return inspect.signature(Wav2Vec2CTCTokenizer.__init__).parameters.keys() - given


def fields_of_sound() -> Collection[str]:
    extractor: Any = Wav2Vec2FeatureExtractor()  # type: ignore[no-untyped-call]
    return {*extractor.to_dict(), *vars(extractor)}


def fields_of_pictures(name: str) -> Any:
    return getattr(transformers, f"{name}ImageProcessorPil").valid_kwargs.__annotations__.keys


@pytest.mark.parametrize(
    ("read", "table"),
    [
        (lambda: PretrainedConfig().to_dict().keys() - {"model_type"}, CONFIG),
        (fields_of_pipelines, {**CONFIG, **fields_of("generation")}),
        (lambda: vars(GenerationConfig()).keys(), fields_of("generation")),  # type: ignore[no-untyped-call]
        (fields_of_tokenizers, {**fields_of("tokenizer"), **dict.fromkeys(INTERNAL.split())}),
        (fields_of_speech, SPEECH),
        (fields_of_sound, fields_of("sound")),
        *((fields_of_pictures(name), each.fields) for name, each in processors().items() if name),
    ],
)
def test_every_field_of_transformers_is_in_the_table(read: Any, table: Collection[str]) -> None:
    found = set(read())
    assert len(found) > 5
    assert found <= set(table)


def test_every_type_of_transformers_whose_positions_begin_behind_the_padding_is_known() -> None:
    found = set()
    table = re.compile(r"position_embeddings = nn\.Embedding\(\s*config\.max_position_embeddings")
    for kind in vars(configuration_auto)["CONFIG_MAPPING_NAMES"]:
        folder = LIBRARY / "models" / configuration_auto.model_type_to_module_name(kind)
        for text in (code.read_text("utf-8") for code in folder.glob("modeling_*.py")):
            if "create_position_ids_from_input_ids" in text and table.search(text):
                found.add(kind)
    # Of the same files, but without texts; the last reads pictures of pages.
    others = {kind for kind in found if re.search("vision|audio|Model$", kind)} | {"pp_doclayout_v2"}
    assert found > others
    assert found - others <= {*read_table("types")["positions"]["offset"]}


def test_the_obeyed_fields_are_those_that_the_code_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: set[str] = set()

    class Noted(dict[str, Any]):
        def get(self, key: str, default: Any = None) -> Any:
            asked.add(key)
            return super().get(key, default)

        def __getitem__(self, key: str) -> Any:
            return self.get(key)

    (tmp_path / "preprocessor_config.json").write_text('{"size": 9, "image_mean": 0, "image_std": 1}')
    words = '{"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}'
    (tmp_path / "tokenizer.json").write_text(f'{{"added_tokens": [], "model": {words}}}')
    (tmp_path / "generation_config.json").write_text('{"num_beams": 1}')
    full: dict[str, Any] = {"architectures": ["BertForMaskedLM"], "max_position_embeddings": 9}
    full |= {"id2label": {"0": "a"}, **GENERATED}
    # The second leaves out what the first says, so that the code looks for it elsewhere.
    less: dict[str, Any] = {"bos_token_id": 0, "eos_token_id": 1}
    for content, tasks in ((full, ("", *TASKS)), (less, ("text2text-generation", "fill-mask"))):
        monkeypatch.setattr(hugging_face, "read_json", lambda _, config=content: Noted(config))
        for task in tasks:
            hugging_face.read_folder(tmp_path, task)
    assert asked == {name for name, field in CONFIG.items() if field.effect == "obeyed"}


NOT_DONE: list[dict[str, Any]] = [
    {"do_sample": True},
    {"num_beam_groups": 2},
    {"force_words_ids": [[1]]},
    {"num_return_sequences": 3},
    {"guidance_scale": 1.5},
    {"stop_strings": ["."]},
    {"forced_decoder_ids": [[1, 2]]},
    {"num_beams": "many"},
    {"watermarking_config": {"bias": 2.0}},
    {"repetition_penalty": 0},
    {"decoder_start_token_id": [0, 0]},
    {"eos_token_id": None},
    {"penalty_alpha": 0.6},
]
VIT = {"image_processor_type": "ViTImageProcessor"}
#: Readers of a folder, by the files that they read.
READERS: dict[str, Callable[[Path], object]] = {
    "generation_config.json": lambda folder: generation(folder, {}),
    "preprocessor_config.json": lambda folder: sounds(folder, is_speech=True),
    "tokenizer_config.json": lambda folder: sounds(folder, is_speech=True),
    "pictures": lambda folder: picture_steps(folder, {}),
}


@pytest.mark.parametrize(
    ("file", "fields", "named"),
    [
        *(("generation_config.json", GENERATED | wrong, next(iter(wrong))) for wrong in NOT_DONE),
        ("preprocessor_config.json", {"feature_extractor_type": "WhisperFeatureExtractor"}, "Whisper"),
        ("preprocessor_config.json", {"feature_size": 80}, "feature_size"),
        ("preprocessor_config.json", {"padding_side": "left"}, "padding_side"),
        ("tokenizer_config.json", {"do_lower_case": True}, "do_lower_case"),
        ("tokenizer_config.json", {"target_lang": "fra"}, "target_lang"),
        ("tokenizer_config.json", {"tokenizer_class": "Wav2Vec2PhonemeCTCTokenizer"}, "Phoneme"),
        ("pictures", {"image_processor_type": "ImageGPTImageProcessor", "clusters": [[0]]}, "ImageGPT"),
        ("pictures", {**VIT, "pad_size": {"height": 9, "width": 9}}, "pad_size"),
        ("pictures", {"image_processor_type": "DPTImageProcessor", "size_divisor": 14}, "size_divisor"),
        ("pictures", {"size": 224}, "image_mean"),
        ("pictures", {**VIT, "size": "large"}, "preprocessor_config.json"),
        ("pictures", {"image_processor_type": "CLIPImageProcessor", "resample": 9}, "preprocessor_config.json"),
    ],
)  # fmt: skip
def test_what_is_not_done_is_refused(tmp_path: Path, file: str, fields: dict[str, Any], named: str) -> None:
    (tmp_path / ("preprocessor_config.json" if file == "pictures" else file)).write_text(json.dumps(fields))
    with pytest.raises(CommandError, match=named):
        READERS[file](tmp_path)
