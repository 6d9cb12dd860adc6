"""Write ``pipeline_answers.json``: what SageMaker's Hugging Face container answers to each of the requests.

It needs torch, and a transformers that has all pipelines, which the tests' environment does not have::

    pip install torch==2.13.0 transformers==4.57.3
    python -m tests.unit.client.make_pipeline_answers

``HuggingFaceHandlerService.predict`` of sagemaker-huggingface-inference-toolkit calls the pipeline with ``inputs``
and the members of ``parameters``. The models are the graphs that the tests give to the tasks.
"""

from __future__ import annotations

import base64
import io
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import soundfile
import torch
import transformers
from PIL import Image
from transformers import (
    GenerationConfig,
    GenerationMixin,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)
from transformers.modeling_outputs import BaseModelOutput, ModelOutput, Seq2SeqLMOutput

from tests.unit.client.pipelines import GENERATED, LABELS, PROCESSORS, REQUESTS, compact, picture, write_model


class GraphModel(PreTrainedModel):  # type: ignore[misc]
    """Answers what an ONNX graph does."""

    config_class = PretrainedConfig

    def __init__(self, config: Any, graph: Path) -> None:
        super().__init__(config)
        self.one = torch.nn.Parameter(torch.zeros(1))
        self.session = onnxruntime.InferenceSession(str(graph))

    def forward(self, **inputs: Any) -> Any:
        names = {each.name for each in self.session.get_inputs()}
        asked = {name: value.numpy() for name, value in inputs.items() if name in names}
        outputs = [each.name for each in self.session.get_outputs()]
        found = self.session.run(outputs, asked)
        return ModelOutput({name: torch.from_numpy(each) for name, each in zip(outputs, found, strict=True)})


class Encoder(torch.nn.Module):  # type: ignore[misc]
    """The encoder of a translator."""

    main_input_name = "input_ids"

    def __init__(self, graph: Path) -> None:
        super().__init__()
        self.session = onnxruntime.InferenceSession(str(graph))

    def forward(self, input_ids: Any, **_options: Any) -> Any:
        (hidden,) = self.session.run(None, {"input_ids": input_ids.numpy()})
        return BaseModelOutput(last_hidden_state=torch.from_numpy(hidden))


class Translator(GraphModel, GenerationMixin):  # type: ignore[misc]
    """An encoder and a decoder without a cache."""

    main_input_name = "input_ids"

    def __init__(self, config: Any, folder: Path) -> None:
        super().__init__(config, folder / "decoder_model.onnx")
        self.encoder = Encoder(folder / "encoder_model.onnx")

    def get_encoder(self, *_args: Any, **_options: Any) -> Any:
        return self.encoder

    def prepare_inputs_for_generation(self, input_ids: Any, **kwargs: Any) -> dict[str, Any]:
        kept = {name: kwargs[name] for name in ("encoder_outputs", "attention_mask")}
        return {"decoder_input_ids": input_ids, **kept}

    def forward(self, decoder_input_ids: Any, encoder_outputs: Any, **options: Any) -> Any:
        inputs = {
            "input_ids": decoder_input_ids,
            "encoder_hidden_states": encoder_outputs.last_hidden_state,
            "encoder_attention_mask": options["attention_mask"],
        }
        return Seq2SeqLMOutput(logits=super().forward(**inputs)["logits"])


def pipeline(task: str, folder: Path) -> Any:
    """Return the pipeline of a task, with the folder's graph."""
    labels = LABELS.get(task, ())
    config = PretrainedConfig(
        id2label=dict(enumerate(labels)), label2id={each: n for n, each in enumerate(labels)}
    )
    options: dict[str, Any] = {"task": task}
    if task in GENERATED:
        stored = json.loads((folder / "config.json").read_text())
        config = PretrainedConfig(
            is_encoder_decoder=True,
            vocab_size=7,
            **{name: each for name, each in stored.items() if name != "architectures"},
        )
        options["tokenizer"] = PreTrainedTokenizerFast(
            tokenizer_file=str(folder / "tokenizer.json"), pad_token="<pad>", eos_token="</s>"
        )
        model: Any = Translator(config, folder)
        model.generation_config = GenerationConfig(
            decoder_start_token_id=0, eos_token_id=config.eos_token_id, pad_token_id=0, use_cache=False,
            **json.loads((folder / "generation_config.json").read_text()),
        )  # fmt: skip
    else:
        model = GraphModel(config, folder / "model.onnx")
        if (folder / "tokenizer.json").is_file():
            options["tokenizer"] = PreTrainedTokenizerFast(
                tokenizer_file=str(folder / "tokenizer.json"),
                model_input_names=["input_ids", "attention_mask"],
                **{f"{name.lower()}_token": f"[{name}]" for name in ("PAD", "UNK", "CLS", "SEP", "MASK")},
            )
        elif "audio" in task:
            options["feature_extractor"] = transformers.Wav2Vec2FeatureExtractor()
        else:
            processor = getattr(transformers, PROCESSORS.get(task, "ViTImageProcessor"))
            steps = json.loads((folder / "preprocessor_config.json").read_text())
            options["image_processor"] = processor.from_dict(steps)
    name = "".join(part.title() for part in task.split("-"))
    return getattr(transformers, f"{name}Pipeline")(model=model.eval(), framework="pt", **options)


def plain(value: Any) -> Any:
    """Return a result as the container's JSON encoder sends it, and masks as rows of numbers."""
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, Image.Image):
        return np.asarray(value).tolist()
    return value.tolist() if hasattr(value, "tolist") else value


def opened(inputs: Any) -> Any:
    """Return pictures and recordings as the pipeline takes them."""
    if isinstance(inputs, list):
        return [opened(each) for each in inputs]
    if isinstance(inputs, str) and inputs.startswith("#"):
        file = io.BytesIO(base64.b64decode(picture(inputs)))
        is_sound = inputs == "#sound"
        return soundfile.read(file, dtype="float32")[0] if is_sound else Image.open(file).convert("RGB")
    return inputs


def main() -> None:
    """Ask the pipelines."""
    answers: dict[str, list[Any]] = {}
    for task, requests in REQUESTS.items():
        with tempfile.TemporaryDirectory() as folder:
            write_model(Path(folder), task)
            asked, answers[task] = pipeline(task, Path(folder)), []
            for inputs, parameters in requests:
                try:
                    with torch.no_grad():
                        answers[task].append({"answer": plain(asked(opened(inputs), **parameters))})
                except Exception as error:  # the container answers 400
                    answers[task].append({"error": f"{type(error).__name__}: {error}"[:200]})
    Path(__file__).with_name("pipeline_answers.json").write_text(compact(answers, 2) + "\n")


if __name__ == "__main__":
    main()
