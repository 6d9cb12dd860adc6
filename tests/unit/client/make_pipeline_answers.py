"""Write the answers of ``pipeline_answers.json``: what SageMaker's Hugging Face container answers to its requests.

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
from transformers.modeling_outputs import ModelOutput

from tests.unit.client.pipelines import (
    ANSWERS_FILE,
    LABELS,
    LONG,
    MAX_TOKENS,
    PROCESSORS,
    compact,
    stand_in,
    write_model,
)


class GraphModel(transformers.PreTrainedModel):  # type: ignore[misc]
    """Answers what an ONNX graph does."""

    config_class = transformers.PretrainedConfig

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


def pipeline(task: str, folder: Path) -> Any:
    """Return the pipeline of a task, with the folder's graph."""
    labels = dict(enumerate(LABELS.get(task, ())))
    config = transformers.PretrainedConfig(
        id2label=labels, label2id={label: number for number, label in labels.items()}
    )
    options: dict[str, Any] = {"task": task, "model": GraphModel(config, folder / "model.onnx").eval()}
    if (folder / "tokenizer.json").is_file():
        options["tokenizer"] = transformers.PreTrainedTokenizerFast(
            tokenizer_file=str(folder / "tokenizer.json"),
            model_input_names=["input_ids", "attention_mask"],
            **({"model_max_length": MAX_TOKENS[task]} if task in MAX_TOKENS else {}),
            **{f"{name.lower()}_token": f"[{name}]" for name in ("PAD", "UNK", "CLS", "SEP", "MASK")},
        )
    elif task in PROCESSORS:
        steps = json.loads((folder / "preprocessor_config.json").read_text())
        options["image_processor"] = getattr(transformers, PROCESSORS[task]).from_dict(steps)
    else:
        options["feature_extractor"] = transformers.Wav2Vec2FeatureExtractor()
    name = "".join(part.title() for part in task.split("-"))
    return getattr(transformers, f"{name}Pipeline")(framework="pt", **options)


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
    if not isinstance(inputs, str) or not inputs.startswith("#"):
        return inputs
    if inputs == "#long":
        return LONG
    file = io.BytesIO(base64.b64decode(stand_in(inputs)))
    is_sound = inputs == "#sound"
    return soundfile.read(file, dtype="float32")[0] if is_sound else Image.open(file).convert("RGB")


def main() -> None:
    """Ask the pipelines again, and for what has been added to the file."""
    tasks = json.loads(ANSWERS_FILE.read_text())
    for task, rows in tasks.items():
        with tempfile.TemporaryDirectory() as folder, torch.no_grad():
            write_model(Path(folder), task)
            ask = pipeline(task, Path(folder))
            for row in rows:
                try:
                    row["answer"] = plain(ask(opened(row["inputs"]), **row["parameters"]))
                except Exception as error:  # the container answers 400
                    row["error"] = f"{type(error).__name__}: {error}"[:200]
    ANSWERS_FILE.write_text(compact(tasks, 2) + "\n")


if __name__ == "__main__":
    main()
