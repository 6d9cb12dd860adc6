"""Make small models of other systems from a seed, and write what those systems answer themselves.

This runs in an environment of its own, with what ``environment.py`` names and without Trireme. The folder that
is its argument gets, for each model, a folder with a graph and the files that the system writes beside it, and
``answers.json`` with the requests and the system's own answers. No weights are fetched.
"""

from __future__ import annotations

import base64
import io
import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ |= {"HF_HUB_OFFLINE": "1", "YOLO_AUTOINSTALL": "false", "YOLO_OFFLINE": "true"}

import numpy as np
import soundfile
import tokenizers
import torch
import transformers
from PIL import Image

SEED = 56
#: Width and height of the pictures: square, wide, high, and one with an odd ratio.
SIZES = ((160, 160), (213, 120), (97, 170), (301, 187))
SIDE = 160
TEXTS = (
    "Ada Lovelace lived in London and wrote the first program.",
    "The engine, it 's said, doesn't weave flowers!",
    "Where did she live? In London , of course .",
    "a",
)
WORDS = (*TEXTS, "the quick brown fox jumps over the lazy dog", "translate English to German: good morning")
Rows = list[dict[str, Any]]


def pictures() -> list[tuple[str, Image.Image]]:
    """Return pictures of smooth patches, each also as a PNG in base64."""
    found = []
    for seed, size in enumerate(SIZES):
        patches = np.random.default_rng(seed).integers(0, 256, (9, 9, 3)).astype(np.uint8)
        picture = Image.fromarray(patches).resize(size, Image.Resampling.BICUBIC)
        file = io.BytesIO()
        picture.save(file, "PNG")
        found.append((base64.b64encode(file.getvalue()).decode(), picture))
    return found


def recordings() -> list[tuple[str, Any]]:
    """Return recordings of tones and noise, each also as a WAV in base64."""
    found = []
    for seed, count in enumerate((16_000, 9_137)):
        random, time = np.random.default_rng(seed), np.arange(count) / 16_000
        samples = (np.sin(2000 * time * (1 + time)) / 3 + random.normal(0, 0.1, count)).astype(np.float32)
        file = io.BytesIO()
        soundfile.write(file, samples, 16_000, format="WAV", subtype="FLOAT")
        found.append((base64.b64encode(file.getvalue()).decode(), samples))
    return found


def export(
    model: Any, file: Path, inputs: dict[str, Any], outputs: dict[str, dict[int, str]], **axes: Any
) -> None:
    """Write a graph whose inputs and outputs have these names; ``axes``: of inputs with other than two free ones."""
    free = {name: axes.get(name, {0: "batch", 1: "length"}) for name in inputs}
    torch.onnx.export(
        model.eval(),
        tuple(inputs.values()),
        str(file),
        input_names=list(inputs),
        output_names=list(outputs),
        dynamic_axes={**free, **outputs},
        opset_version=17,
        dynamo=False,
    )


class Outputs(torch.nn.Module):
    """Gives some outputs of a model of transformers, in their order."""

    def __init__(self, model: Any, names: list[str], outputs: list[str]) -> None:
        super().__init__()
        self.model, self.names, self.outputs = model, names, outputs

    def forward(self, *tensors: Any) -> Any:
        found = self.model(**dict(zip(self.names, tensors, strict=True)))
        return tuple(getattr(found, name) for name in self.outputs)


# --- Ultralytics


def yolo(
    folder: Path,
    description: str,
    *,
    task: str = "detect",
    change: Callable[[str], str] = str,
    **options: Any,
) -> Rows:
    """Export a model of Ultralytics from its YAML, and ask Ultralytics itself, with the exported graph."""
    import ultralytics
    from ultralytics.utils import ROOT

    torch.manual_seed(SEED)
    found = next(
        (ROOT / "cfg" / "models").rglob(
            description.replace("yolov8n", "yolov8")
            .replace("yolo26n", "yolo26")
            .replace("yolov5n", "yolov5")
            .replace("yolo11n", "yolo11")
        )
    )
    described = folder / description
    described.write_text(change(found.read_text()))
    kind = ultralytics.RTDETR if "rtdetr" in description else ultralytics.YOLO
    model = kind(str(described)) if kind is ultralytics.RTDETR else kind(str(described), task=task)
    enliven(model.model)
    exported = Path(model.export(format="onnx", imgsz=SIDE, device="cpu", opset=17, **options))
    shutil.move(exported, folder / "model.onnx")
    served = ultralytics.RTDETR if kind is ultralytics.RTDETR else ultralytics.YOLO
    runner = (
        served(str(folder / "model.onnx"), task=task)
        if served is ultralytics.YOLO
        else served(str(folder / "model.onnx"))
    )
    rows: Rows = []
    for text, picture in pictures():
        # The scores of a random RT-DETR are low.
        asked = {"confidence": 0.01 if kind is ultralytics.RTDETR else 0.25, "iou": 0.7}
        result = runner.predict(
            picture, conf=asked["confidence"], iou=0.7, max_det=1000, imgsz=SIDE, device="cpu", verbose=False
        )[0]
        boxes = result.boxes
        answer = [
            {"label": result.names[int(kind_)], "class_id": int(kind_), "score": score, "box": box}
            for kind_, score, box in zip(
                boxes.cls.tolist(), boxes.conf.tolist(), boxes.xyxy.tolist(), strict=True
            )
        ]
        rows.append({"payload": {"image": text, "parameters": asked}, "answer": answer})
    return rows


def enliven(model: Any) -> None:
    """Let the random layers of a detector tell pictures apart, and its classes pass the threshold sometimes."""
    model.train()
    batch = torch.stack([torch.from_numpy(np.asarray(each.resize((SIDE, SIDE)))) for _, each in pictures()])
    for layer in model.modules():
        if isinstance(layer, torch.nn.BatchNorm2d):
            layer.momentum = None  # the statistics become the mean of the batches
            layer.reset_running_stats()
    with torch.no_grad():
        model.predict(batch.permute(0, 3, 1, 2).float() / 255)
        model.eval()
        for name, value in model.named_parameters():
            last = name.endswith(("cv3.0.2.bias", "cv3.1.2.bias", "cv3.2.2.bias")) or "score_head" in name
            if last and name.endswith("bias"):
                value.fill_(-4.0)
            if name.endswith(("cv3.0.2.weight", "cv3.1.2.weight", "cv3.2.2.weight")):
                value.mul_(1.5)


# --- transformers: detectors


def detector(folder: Path, model: Any, processor: Any) -> Rows:
    """Export a detector of transformers, and ask its image processor for the objects over a threshold."""
    model.eval()
    inputs = processor(images=pictures()[0][1], return_tensors="pt")
    outputs = {"logits": {0: "batch"}, "pred_boxes": {0: "batch"}}
    names = ["pixel_values"]
    export(
        Outputs(model, names, list(outputs)),
        folder / "model.onnx",
        {"pixel_values": inputs["pixel_values"]},
        outputs,
        pixel_values={0: "batch"},
    )
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(folder)
    processor.save_pretrained(folder)
    rows: Rows = []
    # The one that is not resized: Pillow and OpenCV differ by a grey level, which a random network makes pixels of.
    for text, picture in pictures()[:1]:
        prepared = processor(images=picture, return_tensors="pt")
        with torch.no_grad():
            found = model(pixel_values=prepared["pixel_values"])
        size = torch.tensor([picture.size[::-1]])
        threshold = 0.3
        result = processor.post_process_object_detection(found, threshold=threshold, target_sizes=size)[0]
        answer = [
            {"label": model.config.id2label[label], "class_id": label, "score": score, "box": box}
            for score, label, box in zip(
                result["scores"].tolist(), result["labels"].tolist(), result["boxes"].tolist(), strict=True
            )
        ]
        rows.append({"payload": {"image": text, "parameters": {"confidence": threshold}}, "answer": answer})
    return rows


def resnet() -> Any:
    return transformers.ResNetConfig(
        embedding_size=8,
        hidden_sizes=[8, 16, 24, 32],
        depths=[1, 1, 1, 1],
        layer_type="basic",
        out_features=["stage2", "stage3", "stage4"],
    )


LABELS = dict(enumerate(("cat", "dog", "bird")))


def widen(model: Any, factor: float) -> Any:
    """Let the scores of a random model differ."""
    with torch.no_grad():
        for value in model.parameters():
            if value.dim() > 1:
                value.mul_(factor)
    return model


def rt_detr(folder: Path) -> Rows:
    torch.manual_seed(SEED)
    backbone = transformers.RTDetrResNetConfig(
        embedding_size=8,
        hidden_sizes=[8, 16, 24, 32],
        depths=[1, 1, 1, 1],
        layer_type="basic",
        out_features=["stage2", "stage3", "stage4"],
    )
    config = transformers.RTDetrConfig(
        backbone_config=backbone,
        use_pretrained_backbone=False,
        id2label=LABELS,
        encoder_hidden_dim=32,
        d_model=32,
        encoder_in_channels=[16, 24, 32],
        encoder_ffn_dim=32,
        decoder_ffn_dim=32,
        decoder_layers=2,
        num_queries=20,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        decoder_in_channels=[32, 32, 32],
        feat_strides=[8, 16, 32],
        anchor_image_size=None,
        initializer_range=0.3,
        initializer_bias_prior_prob=0.3,
    )
    size = {"height": SIDE, "width": SIDE}
    return detector(
        folder, transformers.RTDetrForObjectDetection(config), transformers.RTDetrImageProcessor(size=size)
    )


def detr(folder: Path) -> Rows:
    torch.manual_seed(SEED)
    backbone = resnet()
    backbone.out_features = ["stage4"]
    config = transformers.DetrConfig(
        use_timm_backbone=False,
        backbone_config=backbone,
        use_pretrained_backbone=False,
        id2label=LABELS,
        d_model=32,
        encoder_layers=1,
        decoder_layers=1,
        encoder_ffn_dim=32,
        decoder_ffn_dim=32,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        num_queries=20,
        init_std=0.5,
        backbone=None,
    )
    size = {"height": SIDE, "width": SIDE}
    processor = transformers.DetrImageProcessor(size=size, do_pad=False)
    return detector(folder, transformers.DetrForObjectDetection(config), processor)


# --- transformers: texts


def bert_tokenizer() -> Any:
    """Train a small tokenizer of word pieces."""
    trained = tokenizers.BertWordPieceTokenizer(lowercase=True)
    trained.train_from_iterator(WORDS, vocab_size=150, min_frequency=1, show_progress=False)
    return transformers.BertTokenizer(vocab=trained.get_vocab(), model_max_length=48)


def bert(folder: Path, task: str) -> Rows:
    """Export a BERT for a task, and ask the pipeline of transformers."""
    torch.manual_seed(SEED)
    tokenizer = bert_tokenizer()
    names = {
        "token-classification": ("O", "B-PER", "I-PER", "B-LOC", "I-LOC"),
        "text-classification": ("sad", "glad", "mad"),
    }.get(task, ())
    config = transformers.BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=48,
        max_position_embeddings=64,
        initializer_range=0.4,
        **({"id2label": dict(enumerate(names))} if names else {}),
    )
    kind, outputs = {
        "text-classification": (transformers.BertForSequenceClassification, ["logits"]),
        "fill-mask": (transformers.BertForMaskedLM, ["logits"]),
        "token-classification": (transformers.BertForTokenClassification, ["logits"]),
    }[task]
    model = kind(config).eval()
    model.config.architectures = [kind.__name__]
    example = tokenizer(TEXTS[0], return_tensors="pt")
    inputs = {name: example[name] for name in ("input_ids", "attention_mask", "token_type_ids")}
    axes = {0: "batch"} if task == "text-classification" else {0: "batch", 1: "length"}
    export(Outputs(model, list(inputs), outputs), folder / "model.onnx", inputs, dict.fromkeys(outputs, axes))
    model.config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    ask: Any = transformers.pipeline(task, model=model, tokenizer=tokenizer, device="cpu")
    return [{**row, "answer": plain(ask(row["inputs"], **row["parameters"]))} for row in text_requests(task)]


def text_requests(task: str) -> Rows:
    """Return the requests of a task."""
    if task == "fill-mask":
        masked = [text.replace("London", "[MASK]").replace("engine", "[MASK]") for text in TEXTS[:2]]
        asked: list[tuple[Any, dict[str, Any]]] = [(text, {}) for text in masked]
        asked += [(masked, {"top_k": 2}), (masked[0], {"targets": ["london", "the"]})]
    elif task == "token-classification":
        asked = [(text, {}) for text in TEXTS]
        asked += [
            (TEXTS[0], {"aggregation_strategy": strategy})
            for strategy in ("simple", "first", "average", "max")
        ]
    else:
        asked = [(text, {}) for text in TEXTS]
        asked += [
            (list(TEXTS), {"top_k": None}),
            (TEXTS[0], {"top_k": 2}),
            (TEXTS[0] * 8, {"truncation": True}),
            (TEXTS[0], {"truncation": True, "max_length": 7}),
            ({"text": TEXTS[0], "text_pair": TEXTS[1]}, {}),
            (TEXTS[1], {"function_to_apply": "sigmoid"}),
        ]
    return [{"inputs": inputs, "parameters": parameters} for inputs, parameters in asked]


def sentences(folder: Path) -> Rows:
    """Export a BERT that gives vectors of tokens, and ask sentence-transformers for those of texts."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer import modules

    torch.manual_seed(SEED)
    tokenizer = bert_tokenizer()
    config = transformers.BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=48,
        max_position_embeddings=64,
        initializer_range=0.4,
    )
    model = transformers.BertModel(config).eval()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    word = modules.Transformer(str(folder), max_seq_length=40)
    parts = [word, modules.Pooling(32, "mean"), modules.Normalize()]
    whole = SentenceTransformer(modules=parts, device="cpu")
    whole.save(str(folder))
    example = tokenizer(TEXTS[0], return_tensors="pt")
    inputs = {name: example[name] for name in ("input_ids", "attention_mask", "token_type_ids")}
    outputs = {"last_hidden_state": {0: "batch", 1: "length"}}
    export(Outputs(model, list(inputs), list(outputs)), folder / "model.onnx", inputs, outputs)
    return [
        {"inputs": text, "parameters": {}, "answer": whole.encode([text]).tolist()}
        for text in (*TEXTS, TEXTS[0] * 9)
    ]


def t5(folder: Path) -> Rows:
    """Export the encoder and the decoder of a T5 as optimum does, and ask the model itself for texts."""
    torch.manual_seed(SEED)
    trained = tokenizers.SentencePieceUnigramTokenizer()
    trained.train_from_iterator(
        WORDS,
        vocab_size=120,
        special_tokens=["<pad>", "</s>", "<unk>"],
        unk_token="<unk>",
        show_progress=False,
    )
    trained._tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        "$A </s>", "$A </s> $B </s>", [("</s>", 1)]
    )
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=trained._tokenizer,
        pad_token="<pad>",
        eos_token="</s>",
        unk_token="<unk>",
        model_max_length=64,
    )
    config = transformers.T5Config(
        vocab_size=len(tokenizer),
        d_model=32,
        d_kv=8,
        d_ff=48,
        num_layers=2,
        num_heads=4,
        decoder_start_token_id=0,
        pad_token_id=0,
        eos_token_id=1,
        initializer_factor=3.0,
    )
    model = transformers.T5ForConditionalGeneration(config).eval()
    model.generation_config.update(max_new_tokens=12, num_beams=1)
    model.config.architectures = ["T5ForConditionalGeneration"]
    example = tokenizer(TEXTS[0], return_tensors="pt")
    inputs = {name: example[name] for name in ("input_ids", "attention_mask")}
    free = {0: "batch", 1: "length"}
    encoder = Outputs(model.get_encoder(), list(inputs), ["last_hidden_state"])
    export(encoder, folder / "encoder_model.onnx", inputs, {"last_hidden_state": free})
    with torch.no_grad():
        states = model.get_encoder()(**inputs).last_hidden_state

    class Decoder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, mask: Any, tokens: Any, hidden: Any) -> Any:
            given = transformers.modeling_outputs.BaseModelOutput(last_hidden_state=hidden)
            return self.model(
                encoder_outputs=given, attention_mask=mask, decoder_input_ids=tokens, use_cache=False
            ).logits

    named = {
        "encoder_attention_mask": inputs["attention_mask"],
        "input_ids": torch.tensor([[0, 5, 6]]),
        "encoder_hidden_states": states,
    }
    export(
        Decoder(),
        folder / "decoder_model.onnx",
        named,
        {"logits": free},
        input_ids={0: "batch", 1: "written"},
    )
    model.config.save_pretrained(folder)
    model.generation_config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    rows: Rows = []
    for parameters in (
        {},
        {"num_beams": 3},
        {"max_new_tokens": 5},
        {"no_repeat_ngram_size": 2},
        {"repetition_penalty": 1.7},
    ):
        for text in TEXTS:
            asked = tokenizer(text, return_tensors="pt")
            with torch.no_grad():
                tokens = model.generate(
                    input_ids=asked["input_ids"], attention_mask=asked["attention_mask"], **parameters
                )
            answer = [{"generated_text": tokenizer.decode(tokens[0], skip_special_tokens=True)}]
            rows.append({"inputs": text, "parameters": parameters, "answer": answer})
    return rows


# --- transformers: sounds


def wav2vec2(folder: Path, task: str) -> Rows:
    """Export a Wav2Vec2, and ask the pipeline of transformers."""
    torch.manual_seed(SEED)
    letters = ("<pad>", "<s>", "</s>", "<unk>", "|", *"ETAONIHSR'")
    is_speech = task == "automatic-speech-recognition"
    config = transformers.Wav2Vec2Config(
        vocab_size=len(letters),
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=48,
        conv_dim=[16] * 7,
        num_conv_pos_embeddings=16,
        num_conv_pos_embedding_groups=2,
        initializer_range=0.5,
        pad_token_id=0,
        classifier_proj_size=24,
        **({} if is_speech else {"id2label": dict(enumerate(("up", "down", "left")))}),
    )
    kind = transformers.Wav2Vec2ForCTC if is_speech else transformers.Wav2Vec2ForSequenceClassification
    model = kind(config).eval()
    model.config.architectures = [kind.__name__]
    extractor = transformers.Wav2Vec2FeatureExtractor(return_attention_mask=False)
    parts: dict[str, Any] = {"model": model, "feature_extractor": extractor}
    if is_speech:
        (folder / "vocab.json").write_text(
            json.dumps({letter: number for number, letter in enumerate(letters)})
        )
        parts["tokenizer"] = transformers.Wav2Vec2CTCTokenizer(str(folder / "vocab.json"))
        parts["tokenizer"].save_pretrained(folder)
    given = {"input_values": torch.from_numpy(recordings()[0][1])[None]}
    axes = {0: "batch", 1: "frames"} if is_speech else {0: "batch"}
    export(Outputs(model, ["input_values"], ["logits"]), folder / "model.onnx", given, {"logits": axes})
    model.config.save_pretrained(folder)
    extractor.save_pretrained(folder)
    ask: Any = transformers.pipeline(task, device="cpu", **parts)
    return [
        {"inputs": text, "parameters": {}, "answer": plain(ask(samples.copy()))}
        for text, samples in recordings()
    ]


def plain(value: Any) -> Any:
    """Return a result as JSON takes it."""
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return value.item() if hasattr(value, "item") else value


def smaller(text: str) -> str:
    """Return the YAML of an RT-DETR with a quarter of its width and depth."""
    return text.replace("l: [1.00, 1.00, 1024]", "l: [0.33, 0.25, 256]")


MODELS: dict[str, tuple[str, Callable[[Path], Rows]]] = {
    "yolov8n": ("object-detection", lambda folder: yolo(folder, "yolov8n.yaml")),
    "yolo26n": ("object-detection", lambda folder: yolo(folder, "yolo26n.yaml")),
    "yolov8n_seg": ("object-detection", lambda folder: yolo(folder, "yolov8n-seg.yaml", task="segment")),
    "yolov8n_pose": ("object-detection", lambda folder: yolo(folder, "yolov8n-pose.yaml", task="pose")),
    "rtdetr": ("object-detection", lambda folder: yolo(folder, "rtdetr-l.yaml", change=smaller)),
    "rt_detr": ("object-detection", rt_detr),
    "detr": ("object-detection", detr),
    **{
        task.replace("-", "_"): (task, lambda folder, task=task: bert(folder, task))
        for task in ("text-classification", "fill-mask", "token-classification")
    },
    "sentences": ("sentence-embeddings", sentences),
    "t5": ("text2text-generation", t5),
    "sound_classes": ("audio-classification", lambda folder: wav2vec2(folder, "audio-classification")),
    "speech": (
        "automatic-speech-recognition",
        lambda folder: wav2vec2(folder, "automatic-speech-recognition"),
    ),
}


def main(out: Path, *names: str) -> None:
    """Make all models, or those with these names."""
    for name, (task, make) in MODELS.items():
        if names and name not in names:
            continue
        folder = out / name
        folder.mkdir(parents=True)
        rows = make(folder)
        (out / f"{name}.json").write_text(json.dumps({"task": task, "rows": rows}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
