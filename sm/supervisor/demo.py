"""What ``serve --demo`` and ``serve --examples`` serve, and the commands they end with."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

from sm.build.cache import Cache
from sm.build.pictures import STREET
from sm.settings import HERE, Settings

SENTENCE = '{"modelname":"bert_base","payload":{"text":"The world has [MASK] people."}}'


def repository(settings: Settings, examples: bool = False) -> Path:
    """Triton's models for the CPU, as ``sm prepare`` leaves them."""
    return Cache(settings.cache).repositories / ("examples" if examples else "cpu")


def lines(settings: Settings, examples: bool = False) -> str:
    """Commands that work as printed, from any folder: three, and those of the examples."""
    address = f"localhost:{settings.port}/invocations"
    cat = HERE / "clients" / "resnet" / "sample" / "cat.png"
    street = Cache(settings.cache).pictures / STREET.file
    return "\n".join(
        [
            "",
            "The box is ready. Try:",
            f"{_with_body(cat, 'image/png')} '{address}?modelname=resnet'",
            f"{_with_body(street, 'image/jpeg')} '{address}?modelname=yolov5'",
            f"curl -s --data '{SENTENCE}' -H 'Content-Type: application/json' {address}",
            *(_of_examples(settings.port) if examples else ()),
            "",
        ]
    )


def _with_body(file: Path, content_type: str) -> str:
    return f"curl -s --data-binary {shlex.quote(f'@{file}')} -H 'Content-Type: {content_type}'"


def _of_examples(port: int) -> Iterator[str]:
    for file in sorted((HERE / "examples").glob("*/curl.txt")):
        text = file.read_text(encoding="utf-8").strip()
        folder = shlex.quote(str(file.parent))
        yield text.replace("{address}", f"localhost:{port}").replace("{folder}", folder)
