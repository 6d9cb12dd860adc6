"""What ``serve --demo`` serves, and the commands it ends with."""

from __future__ import annotations

import shlex
from pathlib import Path

from sm.build.cache import Cache
from sm.build.pictures import STREET
from sm.settings import HERE, Settings

SENTENCE = '{"modelname":"bert_base","payload":{"text":"The world has [MASK] people."}}'


def repository(settings: Settings) -> Path:
    """Triton's models for the CPU, as ``sm prepare`` leaves them."""
    return Cache(settings.cache).repositories / "cpu"


def lines(settings: Settings) -> str:
    """Three commands that work as printed, from any folder."""
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
            "",
        ]
    )


def _with_body(file: Path, content_type: str) -> str:
    return f"curl -s --data-binary {shlex.quote(f'@{file}')} -H 'Content-Type: {content_type}'"
